"""Detect a policy that runs away from its reference, or from the policy before the update."""

from __future__ import annotations

from trackside_daemon.detectors.rl.levels import LevelAlert
from trackside_daemon.detectors.settings import DEFAULTS
from trackside_daemon.detectors.wording import factor
from trackside_daemon.model.text import number

NOW, USUAL, LEAST = 10, 96, 32
TIMES = 10.0  # factor over the highest level before, from which a sudden rise counts below the limit
FLOOR = 0.02  # share of the limit that a level counts for at least: a divergence of zero is the reference itself
ENDS = 0.5


class KlBlowup(LevelAlert):
    """`KlBlowup`: the median of 10 samples of the divergence is above a limit, or ten times its highest level before.

    Args:
        most: The limit, in nats a token.
    """

    alerts: tuple[str, ...] = ("KlBlowup",)
    severity = "warning"

    def __init__(self, most: float = DEFAULTS.kl_most) -> None:
        super().__init__(NOW, USUAL)
        self._most = most
        self._limit = most
        self._highest = 0.0

    def judge_levels(self, step: int) -> str | None:
        """Return what changes at this divergence."""
        levels, now = self.levels, self.levels.now
        if self.firing:
            return f"the KL divergence is {number(now)} at step {number(step)}" if now < self._limit else None
        if len(levels.before) >= LEAST:
            self._highest = max(self._highest, levels.usual)
        known = max(self._highest, FLOOR * self._most)
        sudden = len(levels.before) >= LEAST and now > TIMES * known
        if not sudden and now <= self._most:
            return None
        self._limit = ENDS * (self._most if now > self._most else TIMES * known)
        before = f", {factor(now / levels.usual)} the {number(levels.usual)} before" if self._rose() else ""
        return f"the KL divergence is {number(now)} at step {number(step)}{before}"

    def _rose(self) -> bool:
        before = self.levels.before
        return len(before) >= LEAST and 0 < 2 * before.median() < self.levels.now
