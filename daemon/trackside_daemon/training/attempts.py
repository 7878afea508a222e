"""The number of the attempt that a session belongs to."""

from collections.abc import Callable

from trackside.wire import Identity
from trackside_daemon.training.run import RunStatus

LastAttempt = Callable[[str], tuple[int, float | None] | None]


class AttemptNumbers:
    """Numbers attempts, of live runs and of runs from before this daemon.

    Args:
        last_attempt: Returns the last attempt of a run from before this daemon, by run id, and when it ended; the end is
            None for a run that is alive, the result None for an unknown run.
    """

    def __init__(self, last_attempt: LastAttempt) -> None:
        self._last_attempt = last_attempt

    def is_new(self, run: RunStatus, identity: Identity) -> bool:
        """Return whether a session restarts a run: its launcher counts one more, or a rank of an ended run is back."""
        return identity.attempt > run.identity.attempt or (run.ended and identity.rank in run.ranks)

    def next(self, identity: Identity, before: RunStatus | None) -> tuple[int, bool]:
        """Return the number of the next attempt, and whether it continues one from before this daemon.

        It is one more than the last that ended, here or before this daemon, unless the launcher counts further.
        """
        last = (before.attempt, 0.0) if before is not None else self._last_attempt(identity.run)
        if last is None:
            return identity.attempt, False
        number = max(identity.attempt, last[0] + (last[1] is not None))
        return number, number == last[0]

    def of_late(self, identity: Identity, run: RunStatus | None, since: float) -> int:
        """Return the attempt of a session that began at *since*, in Unix seconds, and whose messages arrive late.

        It is the last attempt, unless that had ended by then.
        """
        last = self._last_attempt(identity.run) if run is None else (run.attempt, run.run_state().ended)
        number, ended = last or (0, None)
        return max(identity.attempt, number + (ended is not None and since > ended))

    def of_stray(self, identity: Identity, run: RunStatus | None) -> int:
        """Return the attempt of a session that is over a limit and so not attached to its run."""
        if run is None or self.is_new(run, identity):
            return self.next(identity, run)[0]
        return min(run.attempt, identity.attempt) if identity.attempt < run.identity.attempt else run.attempt
