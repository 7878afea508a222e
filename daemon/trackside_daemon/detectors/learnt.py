"""Measure a rise of the loss by what the training has learnt so far: the fall from its first losses."""

from __future__ import annotations

from math import inf
from statistics import median

FIRST = 5  # samples whose median is the initial loss

# Share of what was learnt below which a rise is only information. Late in a training that has converged, the noise of the
# loss is many times its level and still next to nothing of the fall.
LITTLE = 0.02

MUCH = 0.05  # share of it from which a spike matters, and from which a lasting rise can be critical


class Learnt:
    """The initial loss of one key."""

    __slots__ = ("_first", "_initial")

    def __init__(self) -> None:
        self._first: list[float] = []
        self._initial = 0.0

    def add(self, value: float) -> None:
        """Add a finite loss."""
        if len(self._first) < FIRST:
            self._first.append(value)
            self._initial = median(self._first)

    def lost(self, rise: float, level: float) -> float:
        """Return the share of the fall from the initial loss to *level* that a *rise* undoes; infinite without a fall."""
        learnt = self._initial - level
        return rise / learnt if learnt > 0 else inf
