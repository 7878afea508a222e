"""Detect that training and generation no longer compute the same probabilities."""

from __future__ import annotations

from math import exp, log

from trackside_daemon.detectors.rl.levels import LevelAlert
from trackside_daemon.detectors.settings import DEFAULTS
from trackside_daemon.detectors.wording import factor
from trackside_daemon.model.text import number

NOW, USUAL, LEAST = 8, 128, 24
TIMES, SPREADS = 3.0, 8.0  # factor over the usual difference, and robust standard deviations of single samples above it
ENDS = 0.5  # share of the rise below which the alert ends
RATIO_NOW = 12


class Mismatch(LevelAlert):
    """`TrainInferenceMismatch`: the difference of the log probabilities leaves its noise band, or is above a limit.

    Args:
        most: The limit, in nats.
    """

    alerts: tuple[str, ...] = ("TrainInferenceMismatch",)
    severity = "warning"

    def __init__(self, most: float = DEFAULTS.mismatch_most) -> None:
        super().__init__(NOW, USUAL)
        self._most = most
        self._limit = most

    def judge_levels(self, step: int) -> str | None:
        """Return what changes at this difference."""
        levels, now = self.levels, self.levels.now
        if self.firing:
            text = f"the difference between training and generation is {number(now)} at step {number(step)}"
            return text if now < self._limit else None
        text = f"training and generation differ by {number(now)} at step {number(step)}"
        if len(levels.before) >= LEAST:
            usual = levels.usual
            if now > TIMES * usual and now > usual + SPREADS * levels.before.spread() and now > self._most / 100:
                self._limit = usual + ENDS * (now - usual)
                return f"{text}, " + (f"{factor(now / usual)} the usual {number(usual)}" if usual else "usually not")
        if now > self._most:
            self._limit = ENDS * self._most
            return text
        return None


class ImportanceRatio(LevelAlert):
    """`TrainInferenceMismatch`: the importance ratios collapse or explode, as the median of 12 samples.

    Args:
        most: The factor from 1, up or down.
    """

    alerts: tuple[str, ...] = ("TrainInferenceMismatch",)
    severity = "warning"

    def __init__(self, most: float = DEFAULTS.importance_ratio_most) -> None:
        super().__init__(RATIO_NOW, 1)
        self._most = log(most)

    def judge_levels(self, step: int) -> str | None:
        """Return what changes at this ratio."""
        now = self.levels.now
        away = abs(log(now)) if now > 0 else 2 * self._most
        if self.firing:
            return (
                f"the mean importance ratio is {number(now)} at step {number(step)}"
                if away < ENDS * self._most
                else None
            )
        if away <= self._most:
            return None
        text = f"the mean importance ratio is {number(now)} at step {number(step)}; it is 1 if training and generation agree"
        return f"{text}, and {number(exp(-self._most))} to {number(exp(self._most))} is usual"
