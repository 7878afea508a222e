"""Which steps are timed, where timing each would take too much of them."""

from __future__ import annotations

from random import Random
from time import monotonic

from trackside.pytorch.overhead_budget import OverheadBudget


class StepSampler:
    """Draws steps by chance, so that no rhythm of the training's own is met, and so few that a *share* of the time goes.

    Args:
        share: Of the time, at most.
        cost: Seconds that a mark takes.

    Attributes:
        marks: Of the step that is timed, as it is counted by whoever times it.
        drawn: The step that is under way, or comes, is timed.
        stands_for: For so many steps, itself and those before it.
        next: When so many steps are over, `over` is to be called.
    """

    def __init__(self, share: float, cost: float) -> None:
        self.marks = self.next = 0
        self.drawn, self.stands_for = True, 1
        self._pace, self._cost = OverheadBudget(share), cost
        self._chance = Random()  # noqa: S311  no secret; and the training's own generator is not touched
        self._number, self._timed, self._at, self._since = 0, 0, 0, 0.0

    def timed(self, number: int) -> None:
        """So many steps are over, of which the last was timed whatever was drawn, and so is the one that comes."""
        self._number, self._since, self._timed, self._at = number, monotonic(), number, 0
        self.marks, self.drawn, self.stands_for, self.next = 0, True, 1, number + 1

    def over(self, number: int) -> bool:
        """So many steps are over; whether the one that comes is timed."""
        now = monotonic()
        if self._since and number > self._number:
            self._pace.took((now - self._since) / (number - self._number))
        self._number, self._since = number, now
        if self.drawn:
            self._pace.spent(self.marks * self._cost)
            self.marks, self._timed = 0, number
            self._at = number + self._chance.randint(1, 2 * self._pace.every - 1)
        self.drawn = number + 1 >= self._at
        self.stands_for = number + 1 - self._timed
        self.next = number + 1 if self.drawn else self._at - 1
        return self.drawn
