"""The wish that the demo, or a training of it, ends: of SIGINT and SIGTERM, so that a step is never cut short."""

from __future__ import annotations

import signal
from contextlib import suppress
from queue import Empty, SimpleQueue


class Stop:
    """Set by a signal. A handler that sets a `threading.Event` hangs when it cuts into another, or into a wait for it."""

    def __init__(self) -> None:
        self._set = False
        self._told: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """From now on."""
        self._set = True
        self._told.put(None)

    def is_set(self) -> bool:
        """Whether it is."""
        return self._set

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, at most so long; whether it is."""
        if not self._set:
            with suppress(Empty):
                self._told.get(timeout=seconds)
        return self._set


def stopped_by_signals() -> Stop:
    """One that SIGINT and SIGTERM set."""
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
