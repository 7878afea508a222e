"""The learning rate now, compared with a moment: a schedule that has begun again, as with warm restarts, makes a loss rise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.detectors.base import Context

# Factor by which the rate must have risen since the moment, and by which it may exceed the highest before: beyond that no
# schedule has begun again, but the rate is higher than it ever was.
RAISED, ABOVE = 1.5, 1.1


class RateRestart:
    """The learning rate of a key's samples, now and at a marked one."""

    __slots__ = ("_highest", "_highest_then", "_now", "_then")

    def __init__(self) -> None:
        self._now = self._highest = self._then = self._highest_then = 0.0

    def add(self, step: int, context: Context) -> None:
        """Apply the rate of a step, if it has one."""
        rate = context.rates.get(step)
        if rate is not None:
            self._now = rate
            self._highest = max(self._highest, rate)

    def mark(self) -> None:
        """Compare with this moment from now on."""
        self._then, self._highest_then = self._now, self._highest

    def is_on(self) -> bool:
        """Return whether the rate is higher than at the marked moment, and not above what it was before."""
        return RAISED * self._then < self._now <= ABOVE * self._highest_then
