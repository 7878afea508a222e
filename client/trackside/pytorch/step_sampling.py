"""Choose the steps that are timed, if timing each step would cost too much."""

from __future__ import annotations

from random import Random
from time import monotonic

from trackside.pytorch.overhead_budget import OverheadBudget


class StepSampler:
    """Draws steps at random, so that no rhythm of the training is hit, within a share of the time.

    Args:
        share: Share of the time.
        cost: Seconds that a mark costs.

    Attributes:
        marks: Marks of the current step, as its timer counts them.
        is_sampled: The current or the next step is timed.
        weight: Number of steps that it stands for: itself and those before it that were not timed.
        next_step: Number of finished steps at which `step_finished` must be called.
    """

    def __init__(self, share: float, cost: float) -> None:
        self.marks = 0
        self.next_step = 0
        self.is_sampled = True
        self.weight = 1
        self._budget = OverheadBudget(share)
        self._cost = cost
        self._random = Random()  # noqa: S311  no secret; and the training's own generator is not touched
        self._last_step = 0
        self._last_timed = 0
        self._next_sample = 0
        self._since = 0.0

    def step_timed(self, number: int) -> None:
        """Record that *number* steps are finished, the last one was timed anyway, and the next one will be."""
        self._last_step, self._since, self._last_timed, self._next_sample = number, monotonic(), number, 0
        self.marks, self.is_sampled, self.weight, self.next_step = 0, True, 1, number + 1

    def step_finished(self, number: int) -> bool:
        """Record that *number* steps are finished, and return whether the next one is timed."""
        now = monotonic()
        if self._since and number > self._last_step:
            self._budget.add_step((now - self._since) / (number - self._last_step))
        self._last_step, self._since = number, now
        if self.is_sampled:
            self._budget.add_cost(self.marks * self._cost)
            self.marks, self._last_timed = 0, number
            self._next_sample = number + self._random.randint(1, 2 * self._budget.every - 1)  # with mean `every`
        self.is_sampled = number + 1 >= self._next_sample
        self.weight = number + 1 - self._last_timed
        self.next_step = number + 1 if self.is_sampled else self._next_sample - 1
        return self.is_sampled
