"""Report what a training does to the trackside daemon.

    import trackside

    for step, batch in enumerate(loader):
        loss = train(batch)
        trackside.push(step=step, loss=loss)

The first push opens a run; `init` opens one with a name, a configuration and more. A push costs about as much as an
append to a list, never waits for the network, the disk or the daemon, and never raises.
"""

from trackside.default_run import alert, data, event, finish, init, phase, push, watch
from trackside.run import Run

__all__ = ["Run", "alert", "data", "event", "finish", "init", "phase", "push", "watch"]
