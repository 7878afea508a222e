"""Request to stop the demo or one of its ranks, from SIGINT or SIGTERM, so that a step is never cut short."""

import signal
from contextlib import suppress
from queue import Empty, SimpleQueue


class StopRequest:
    """Flag that a signal handler sets."""

    def __init__(self) -> None:
        self._is_set = False
        # Not a threading.Event: a handler that sets one hangs if it interrupts another such handler, or a wait for it.
        self._wakeups: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Set the flag."""
        self._is_set = True
        self._wakeups.put(None)

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait at most that long for the flag; return whether it is set."""
        if not self._is_set:
            with suppress(Empty):
                self._wakeups.get(timeout=seconds)
        return self._is_set


def stop_on_signals() -> StopRequest:
    """Return a request that SIGINT and SIGTERM set."""
    stop = StopRequest()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
