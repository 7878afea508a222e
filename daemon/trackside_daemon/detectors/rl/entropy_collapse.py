"""Detect an entropy that leaves the range of its own history: information, since healthy runs do it too."""

from __future__ import annotations

from trackside_daemon.detectors.rl.levels import LevelAlert
from trackside_daemon.model.text import number

NOW, USUAL, LEAST = 16, 96, 48
TIMES = 3.0  # factor from the usual entropy, up or down
NATS = 1.1  # the same for entropies of continuous actions, which may be negative: the logarithm of that factor
ERRORS = 8.0
LEAST_NATS = 0.01  # entropies below are those of a policy that has collapsed already
ACCEPTED = 128  # samples after which the new level is the usual one


class EntropyCollapse(LevelAlert):
    """`EntropyCollapse`: the median of 16 samples is a third of that of the 96 samples before, or three times as high."""

    alerts: tuple[str, ...] = ("EntropyCollapse",)
    severity = "info"

    def __init__(self) -> None:
        super().__init__(NOW, USUAL, LEAST, signed=True)

    def judge_levels(self, step: int) -> str | None:
        """Return what changes at this entropy."""
        levels = self.levels
        now, usual = levels.now, levels.usual
        far = self._is_far(now, usual)
        if self.firing:
            if far and self.firing_for < ACCEPTED:
                return None
            if far:
                levels.before.clear()
            return f"the entropy is {number(now)} at step {number(step)}"
        if not far or abs(now - usual) < ERRORS * levels.error():
            return None
        how = "fell to" if now < usual else "rose to"
        return f"the entropy {how} {number(now)} up to step {number(step)}, from {number(usual)}"

    def _is_far(self, now: float, usual: float) -> bool:
        if usual > 0 and now >= 0:
            return max(now, usual) > LEAST_NATS and not usual / TIMES <= now <= usual * TIMES
        return abs(now - usual) > NATS
