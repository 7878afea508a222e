"""Detect a reward that falls back, far beyond its noise and for good."""

from __future__ import annotations

from math import inf, sqrt

from trackside_daemon.detectors.rl.levels import SampleAlert
from trackside_daemon.detectors.settings import DEFAULTS
from trackside_daemon.detectors.window import Window
from trackside_daemon.model.robust import NORMAL
from trackside_daemon.model.text import number

BLOCK = 24  # samples whose mean is the present level; the best level is that of two such blocks in a row
CONFIRM = 8  # samples in a row with a level that low
ERRORS = 4.0  # standard errors that it must be below the best level
WIDER = 1.25  # factor of the standard error by the scatter within blocks: the order of the tasks makes rewards wander
ENDS = 0.5  # share of the fall that must be gone before the alert ends

_KNOWN = 4  # bends from block to block that give a noise
_NORMAL = NORMAL / sqrt(6)  # standard deviations of independent means by the median bend of three of them


class RewardCollapse(SampleAlert):
    """`RewardCollapse`: the mean of 24 rewards undoes a share of what was learnt.

    What was learnt is the rise from the lowest level before to the best one. A reward that is never negative must also lose
    that share of the best level.

    Args:
        share: The share.
    """

    alerts: tuple[str, ...] = ("RewardCollapse",)
    severity = "warning"

    def __init__(self, share: float = DEFAULTS.reward_collapse_ratio) -> None:
        super().__init__()
        self._share = share
        self._recent = Window(BLOCK)
        self._block: list[float] = []
        self._means: list[float] = []
        self._scatter, self._bends = Window(16), Window(24)
        self._lowest, self._best, self._base, self._least = inf, -inf, inf, inf
        self._low = 0
        self._deepest = 0.0

    def judge(self, step: int, value: float) -> str | None:
        """Return what changes at this reward."""
        self._recent.add(value)
        self._least = min(self._least, value)
        mean = sum(self._recent.arrived) / len(self._recent)
        if self.firing:
            self._deepest = min(self._deepest, mean)
            back = mean > self._best - ENDS * (self._best - self._deepest)
            return f"the reward is {number(mean)} at step {number(step)}" if back else None
        self._learn(value)
        self._low = self._low + 1 if self._best > -inf and self._is_low(mean) else 0
        if self._low < CONFIRM:
            return None
        self._low, self._deepest = 0, mean
        return f"the reward fell to {number(mean)} up to step {number(step)}, from {number(self._best)} at its best"

    def _learn(self, value: float) -> None:
        """Add a reward to its block, and at the block's end its mean to what is known."""
        self._block.append(value)
        if len(self._block) < BLOCK:
            return
        mean = sum(self._block) / BLOCK
        self._scatter.add(sqrt(sum((one - mean) ** 2 for one in self._block) / (BLOCK - 1)))
        self._block.clear()
        self._means = [*self._means[-2:], mean]
        if len(self._means) == 3:
            self._bends.add(abs(self._means[0] - 2 * self._means[1] + self._means[2]))
        self._lowest = min(self._lowest, mean)
        level = sum(self._means[-2:]) / 2
        if len(self._means) > 1 and level > self._best:
            self._best, self._base = level, self._lowest

    def _is_low(self, mean: float) -> bool:
        learnt = self._best - self._base
        whole = self._best if self._least >= 0 else learnt
        wander = _NORMAL * self._bends.median() if len(self._bends) >= _KNOWN else 0.0
        error = max(WIDER * self._scatter.median() / sqrt(BLOCK), wander)
        return self._best - mean > max(ERRORS * error, self._share * max(learnt, whole)) > 0
