"""The GPUs that workers hung at, left alone for a while so that the others go on."""

from __future__ import annotations

from trackside_daemon.nvml.backoff import Backoff

FIRST, LAST = 60.0, 600.0
"""Seconds without a question after the first hang, and at most. Each try that hangs costs all GPUs a worker."""


class Avoided:
    """Indexes of GPUs, each with its own back-off; all times are of one clock that only goes forward.

    Any thread may call `at`.
    """

    def __init__(self) -> None:
        self._until: dict[int, float] = {}
        self._backoffs: dict[int, Backoff] = {}

    def hung(self, index: int, now: float) -> None:
        """A worker hung there."""
        self._until[index] = now + self._backoffs.setdefault(index, Backoff(FIRST, LAST)).wait()

    def answered(self, index: int) -> None:
        """It was asked, and the answer came."""
        self._until.pop(index, None)
        self._backoffs.pop(index, None)

    def at(self, now: float) -> frozenset[int]:
        """Those that are not to be asked."""
        return frozenset(index for index, until in self._until.copy().items() if now < until)
