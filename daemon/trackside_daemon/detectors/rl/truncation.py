"""Detect responses that the limit of the length cuts, or that suddenly grow towards it."""

from __future__ import annotations

from trackside_daemon.detectors.rl.levels import LevelAlert
from trackside_daemon.detectors.settings import DEFAULTS
from trackside_daemon.detectors.wording import factor
from trackside_daemon.model.text import number, percent

NOW, USUAL = 10, 64
ENDS = 0.8  # share of the threshold below which the alert ends

# A length that blows up: by this factor over the median of the samples before, and by so many standard errors. Lengths that
# grow with the ability to reason do so over hundreds of steps.
LONGER, ERRORS = 1.65, 5.0
NOW_LENGTH, USUAL_LENGTH = 24, 128
LEAST = 32  # samples before that are needed
ACCEPTED = 256  # samples after which a longer length is the usual one


class Truncation(LevelAlert):
    """`TruncationRising`: the median share of responses that are cut, over 10 samples, is above a threshold.

    Args:
        most: The threshold.
    """

    alerts: tuple[str, ...] = ("TruncationRising",)
    severity = "warning"

    def __init__(self, most: float = DEFAULTS.truncated_ratio) -> None:
        super().__init__(NOW, USUAL)
        self._most = most

    def judge_levels(self, step: int) -> str | None:
        """Return what changes at this share."""
        levels = self.levels
        if self.firing:
            ends = levels.now < ENDS * self._most
            return f"{percent(levels.now)} of the responses are cut at step {number(step)}" if ends else None
        if levels.now < self._most:
            return None
        before = f", {percent(levels.usual)} before" if len(levels.before) and levels.usual < self._most else ""
        return f"the limit cuts {percent(levels.now)} of the responses at step {number(step)}{before}"


class LengthBlowup(LevelAlert):
    """`TruncationRising`: the length of the responses has grown suddenly. Without the limit, that is only information."""

    alerts: tuple[str, ...] = ("TruncationRising",)
    severity = "info"

    def __init__(self) -> None:
        super().__init__(NOW_LENGTH, USUAL_LENGTH, LEAST)

    def judge_levels(self, step: int) -> str | None:
        """Return what changes at this length."""
        levels = self.levels
        now, usual = levels.now, levels.usual
        if self.firing:
            if self.firing_for >= ACCEPTED:
                levels.before.clear()
                return f"responses of {number(now)} tokens are the usual ones at step {number(step)}"
            ends = now < usual + (LONGER - 1) / 2 * usual
            return f"responses have {number(now)} tokens at step {number(step)}" if ends else None
        if usual <= 0 or now < LONGER * usual or now - usual < ERRORS * levels.error():
            return None
        return f"responses of {number(now)} tokens at step {number(step)} are {factor(now / usual)} as long as before"
