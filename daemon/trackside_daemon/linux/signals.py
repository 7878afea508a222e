"""The signals that a daemon waits for, and those of its child processes."""

from __future__ import annotations

import signal

STOP = (signal.SIGTERM, signal.SIGINT)
SIGNALS = (*STOP, signal.SIGHUP)


def block_signals() -> None:
    """Block `SIGNALS` for `signal.sigwait`, in this thread and in the threads and child processes that it starts later."""
    # Call this before the daemon binds anything, so that no signal ends it half started.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def reset_signals() -> None:
    """Set the handlers that a child process of the daemon needs, whatever it inherited."""
    # The daemon blocks the signals that it waits for, and a child process inherits the mask.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # A Python handler would never run inside a driver call that hangs.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Ctrl-C reaches the whole foreground group, but the daemon ends its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A closed pipe ends the process without a traceback.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
