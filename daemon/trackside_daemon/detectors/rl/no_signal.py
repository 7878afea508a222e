"""Detect rewards without any spread: advantages are zero, so the policy learns nothing from them."""

from __future__ import annotations

from trackside_daemon.detectors.rl.levels import SampleAlert, Shares
from trackside_daemon.detectors.settings import DEFAULTS
from trackside_daemon.model.text import number, percent

SAMPLES = 20  # samples whose mean share of groups decides
ZEROS = 32  # samples in a row without spread; with one prompt a step, healthy runs have up to 14
ENDS = 0.6  # share of groups below which the alert ends
NONE = 1e-8  # spread that counts as none: rewards of half precision are still exact for equal answers


class ZeroVariance(SampleAlert):
    """`NoLearningSignal`: a share of the groups have equal rewards, as the mean of 20 samples.

    Args:
        most: The share.
    """

    alerts: tuple[str, ...] = ("NoLearningSignal",)
    severity = "warning"

    def __init__(self, most: float = DEFAULTS.no_signal_ratio) -> None:
        super().__init__()
        self._most = most
        self._shares = Shares(SAMPLES)

    def judge(self, step: int, value: float) -> str | None:
        """Return what changes at this share of groups."""
        share = self._shares.add(value)
        if share is None:
            return None
        if self.firing:
            return f"{percent(share)} of the groups have equal rewards at step {number(step)}" if share < ENDS else None
        if share < self._most:
            return None
        return (
            f"in {percent(share)} of the groups all rewards are equal, over {SAMPLES} samples up to step {number(step)}"
        )


class ZeroSpread(SampleAlert):
    """`NoLearningSignal`: the standard deviation of the rewards is zero for 32 samples."""

    alerts: tuple[str, ...] = ("NoLearningSignal",)
    severity = "warning"

    def __init__(self) -> None:
        super().__init__()
        self._zeros = 0
        self._since = 0

    def judge(self, step: int, value: float) -> str | None:
        """Return what changes at this standard deviation."""
        if abs(value) > NONE:
            self._zeros = 0
            return f"the rewards differ again at step {number(step)}" if self.firing else None
        self._since = self._since if self._zeros else step
        self._zeros += 1
        if self.firing or self._zeros < ZEROS:
            return None
        return f"all rewards are equal from step {number(self._since)} to step {number(step)}, so nothing is learnt from them"
