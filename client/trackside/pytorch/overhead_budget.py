"""Keep the cost of a measurement within a share of the training's time."""

from __future__ import annotations

from collections import deque
from math import ceil, log2

MOST = 1024  # limit of steps between two measurements by default, whatever they cost

# Factor by which a measurement must be too rare before it doubles its rate: measurements should come evenly.
LOWER = 4


class OverheadBudget:
    """Chooses each *every*-th step for a measurement, a power of two, so that it costs about *share* of the time.

    Ranks of one run with different powers of two measure together at each step of the larger one.

    Args:
        share: Share of the time.
        most: Limit of steps between two measurements, whatever they cost.

    Attributes:
        every: Steps from one measurement to the next.
    """

    def __init__(self, share: float, most: int = MOST) -> None:
        self.every = 1
        self._share = share
        self._most = most
        self._costs: deque[float] = deque(maxlen=5)
        self._steps: deque[float] = deque(maxlen=9)
        self._is_warm = False

    def is_due(self, step: int) -> bool:
        """Return whether step number *step* is measured."""
        return step % self.every == 0

    def next_due(self, step: int) -> int:
        """Return the next step after *step* that is measured."""
        return (step // self.every + 1) * self.every

    def add_step(self, seconds: float) -> None:
        """Record the duration of a step without measurements."""
        self._steps.append(seconds)

    def add_cost(self, seconds: float) -> None:
        """Record the cost of a measurement; the first one, with its preparations, does not count."""
        if not self._is_warm:
            self._is_warm = True
            return
        self._costs.append(seconds)
        steps = sorted(self._steps)
        usual = (steps[len(steps) // 2] + steps[~len(steps) // 2]) / 2 if steps else 0.0
        if usual <= 0:
            return
        wanted = sum(self._costs) / len(self._costs) / (self._share * usual)
        if wanted > self.every:
            self.every = min(self._most, 2 ** ceil(log2(wanted)))
        elif wanted * LOWER < self.every:
            self.every = max(1, self.every // 2)
