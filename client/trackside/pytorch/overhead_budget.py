"""How often something may be measured that costs time."""

from __future__ import annotations

from collections import deque
from math import ceil, log2
from statistics import fmean, median

MOST = 1024
"""Steps between two measurements at most, whatever they cost."""

LOWER = 4
"""So many times too seldom a measurement comes before it comes twice as often: what is measured should come evenly."""


class OverheadBudget:
    """Each *every*-th step, a power of two, such that measuring takes about *share* of the time at most.

    Ranks of one run that take different powers of two meet at each of the larger one's.

    Attributes:
        every: So many steps from one measurement to the next.
    """

    def __init__(self, share: float) -> None:
        self.every = 1
        self._share = share
        self._costs: deque[float] = deque(maxlen=5)
        self._steps: deque[float] = deque(maxlen=9)
        self._warm = False

    def due(self, step: int) -> bool:
        """Whether it is to be measured in a step of that number."""
        return step % self.every == 0

    def after(self, step: int) -> int:
        """The next step after that one in which it is."""
        return (step // self.every + 1) * self.every

    def took(self, seconds: float) -> None:
        """A step takes so long, without what was measured."""
        self._steps.append(seconds)

    def spent(self, seconds: float) -> None:
        """So long the measurement took; the first, which has to prepare much, does not count."""
        if not self._warm:
            self._warm = True
            return
        self._costs.append(seconds)
        usual = median(self._steps) if self._steps else 0.0
        if usual <= 0:
            return
        wanted = fmean(self._costs) / (self._share * usual)
        if wanted > self.every:
            self.every = min(MOST, 2 ** ceil(log2(wanted)))
        elif wanted * LOWER < self.every:
            self.every = max(1, self.every // 2)
