"""Detectors of reinforcement learning: policies that learn nothing, run away or fall back.

In: samples of the quantities of `trackside.rl_keys`. Out: detections.
"""

from collections import deque
from collections.abc import Iterator
from math import inf, log, sqrt

from trackside_daemon.detectors.base import HUGE, Column, Context, Detection, Episode, Streak
from trackside_daemon.detectors.levels import LevelAlert, SampleAlert
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.finding import Severity
from trackside_daemon.model.robust import NORMAL, SortedWindow
from trackside_daemon.model.text import factor, number, percent

SHARES = 20  # samples whose mean share of groups decides
SHARE_ENDS = 0.6  # share of groups below which the alert ends

ZEROS = 32  # samples in a row without spread; with one prompt a step, healthy runs have up to 14
NONE = 1e-8  # spread that counts as none: rewards of half precision are still exact for equal answers

KL_LEAST = 32  # samples before that a sudden rise needs
KL_TIMES = 10.0  # factor over the highest level before, from which a sudden rise counts below the limit
KL_FLOOR = 0.02  # share of the limit that a level counts for at least: a divergence of zero is the reference itself
KL_ENDS = 0.5  # share of what was exceeded below which the alert ends

MISMATCH_LEAST = 24  # samples before that a noise band needs
# Factor over the usual difference, and robust standard deviations of single samples above it.
MISMATCH_TIMES, MISMATCH_SPREADS = 3.0, 8.0
MISMATCH_ENDS = 0.5  # share of the rise below which the alert ends

CUT_ENDS = 0.8  # share of the threshold below which the alert ends

# A length that blows up: by this factor over the median of the samples before, and by so many standard errors. Lengths that
# grow with the ability to reason do so over hundreds of steps.
LENGTH_TIMES, LENGTH_ERRORS = 1.65, 5.0
LENGTH_ACCEPTED = 256  # samples after which a longer length is the usual one

ENTROPY_TIMES = 3.0  # factor from the usual entropy, up or down
NATS = 1.1  # the same for entropies of continuous actions, which may be negative: the logarithm of that factor
ENTROPY_ERRORS = 8.0
COLLAPSED = 0.01  # entropies below are those of a policy that has collapsed already
ENTROPY_ACCEPTED = 128  # samples after which the new level is the usual one

BLOCK = 24  # rewards whose mean is the present level; the best level is that of two such blocks in a row
LEAST = 6  # blocks that are needed
CONFIRM = 8  # samples in a row with a level that low

# Standard errors that it must be below the best level. For a warning they are more: the best of many blocks lies above the level
# by chance, and few blocks give the error badly.
REWARD_ERRORS, FEW = 4.0, 3.0

# Distances in blocks over which rewards wander: the order of the tasks, and what the policy tries, make them.
SPANS = (1, 2, 4)
SCATTERS = 16  # blocks that give the scatter of single rewards
WIDER = 1.25  # factor of the standard error by that scatter
SWINGS = 1.5  # factor by which a fall must be deeper than earlier ones that were made good
REWARD_ENDS = 0.5  # share of the fall that must be gone before the alert ends

_KNOWN = 2  # bends from block to block that give a noise
_NORMAL = NORMAL / sqrt(6)  # standard deviations of independent means by the median bend of three of them


class ZeroVariance(SampleAlert):
    """`NoLearningSignal`: a share of the groups have equal rewards, as the mean of 20 samples."""

    alerts = ("NoLearningSignal",)
    setting = "no_signal_ratio"

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._shares: deque[float] = deque(maxlen=SHARES)

    def _judge(self, step: int, value: float) -> str | None:
        self._shares.append(value)
        share = sum(self._shares) / SHARES
        if len(self._shares) < SHARES or (share >= SHARE_ENDS if self.firing else share < self.most):
            return None
        if self.firing:
            return f"{percent(share)} of the groups have equal rewards at step {number(step)}"
        return (
            f"in {percent(share)} of the groups all rewards are equal, over {SHARES} samples up to step {number(step)}"
        )


class ZeroSpread(SampleAlert):
    """`NoLearningSignal`: the standard deviation of the rewards is zero for 32 samples."""

    alerts = ("NoLearningSignal",)

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._zeros = Streak()

    def _judge(self, step: int, value: float) -> str | None:
        if abs(value) > NONE:
            self._zeros.count = 0
            return f"the rewards differ again at step {number(step)}" if self.firing else None
        zeros = self._zeros
        zeros.add(step)
        if self.firing or zeros.count < ZEROS:
            return None
        return f"all rewards are equal from step {number(zeros.since)} to step {number(step)}, so nothing is learnt from them"


class KlBlowup(LevelAlert):
    """`KlBlowup`: the policy runs away from its reference, or from the policy before the update.

    The median of 10 samples of the divergence is above *most* nats a token, or ten times its highest level before.
    """

    alerts = ("KlBlowup",)
    setting = "kl_most"
    spans = 10, 96
    _limit = _highest = 0.0

    def _judge_level(self, step: int, now: float) -> str | None:
        if self.firing:
            return f"the KL divergence is {number(now)} at step {number(step)}" if now < self._limit else None
        enough = len(self.before) >= KL_LEAST
        if enough:
            self._highest = max(self._highest, self.usual)
        known = max(self._highest, KL_FLOOR * self.most)
        if now <= self.most and not (enough and now > KL_TIMES * known):
            return None
        self._limit = KL_ENDS * (self.most if now > self.most else KL_TIMES * known)
        rose = enough and 0 < 2 * self.usual < now
        before = f", {factor(now / self.usual)} the {number(self.usual)} before" if rose else ""
        return f"the KL divergence is {number(now)} at step {number(step)}{before}"


class UpdateKlBlowup(KlBlowup):
    """`KlBlowup` of the divergence from the policy before the update."""

    setting = "update_kl_most"


class Mismatch(LevelAlert):
    """`TrainInferenceMismatch`: training and generation no longer compute the same probabilities.

    The difference of the log probabilities leaves its noise band, or is above *most* nats.
    """

    alerts = ("TrainInferenceMismatch",)
    setting = "mismatch_most"
    spans = 8, 128
    _limit = 0.0

    def _judge_level(self, step: int, now: float) -> str | None:
        if self.firing:
            text = f"the difference between training and generation is {number(now)} at step {number(step)}"
            return text if now < self._limit else None
        how = ""
        if len(self.before) >= MISMATCH_LEAST and now > self._band(usual := self.usual):
            self._limit = usual + MISMATCH_ENDS * (now - usual)
            how = f", {factor(now / usual)} the usual {number(usual)}" if usual else ", usually not"
        elif now > self.most:
            self._limit = MISMATCH_ENDS * self.most
        else:
            return None
        return f"training and generation differ by {number(now)} at step {number(step)}{how}"

    def _band(self, usual: float) -> float:
        """Return the end of the noise band."""
        spread = MISMATCH_SPREADS * self.before.spread()
        return max(MISMATCH_TIMES * usual, usual + spread, self.most / 100)


class ImportanceRatio(LevelAlert):
    """`TrainInferenceMismatch`: the median of 12 importance ratios is *most* times 1, or a part of 1 as small."""

    alerts = ("TrainInferenceMismatch",)
    setting = "importance_ratio_most"
    spans = 12, 1

    def _judge_level(self, step: int, now: float) -> str | None:
        most = log(self.most)
        away = abs(log(now)) if now > 0 else 2 * most
        if away >= MISMATCH_ENDS * most if self.firing else away <= most:
            return None
        text = f"the mean importance ratio is {number(now)} at step {number(step)}"
        if self.firing:
            return text
        usual = f"{number(1 / self.most)} to {number(self.most)} is usual"
        return f"{text}; it is 1 if training and generation agree, and {usual}"


class Truncation(LevelAlert):
    """`TruncationRising`: the median share of responses that the limit of the length cuts, over 10 samples, is *most* or above."""

    alerts = ("TruncationRising",)
    setting = "truncated_ratio"
    spans = 10, 64

    def _judge_level(self, step: int, now: float) -> str | None:
        if self.firing:
            ends = now < CUT_ENDS * self.most
            return f"{percent(now)} of the responses are cut at step {number(step)}" if ends else None
        if now < self.most:
            return None
        before = f", {percent(self.usual)} before" if len(self.before) and self.usual < self.most else ""
        return f"the limit cuts {percent(now)} of the responses at step {number(step)}{before}"


class LengthBlowup(LevelAlert):
    """`TruncationRising`: the length of the responses has grown suddenly. Without the limit, that is only information."""

    alerts = ("TruncationRising",)
    severity = "info"
    spans = 24, 128
    least = 32

    def _judge_level(self, step: int, now: float) -> str | None:
        usual = self.usual
        if self.firing:
            if self.firing_for >= LENGTH_ACCEPTED:
                self.before.clear()
                self.accepted = True
                return f"responses of {number(now)} tokens are the usual ones at step {number(step)}"
            ends = now < usual + (LENGTH_TIMES - 1) / 2 * usual
            return f"responses have {number(now)} tokens at step {number(step)}" if ends else None
        if usual <= 0 or now < LENGTH_TIMES * usual or now - usual < LENGTH_ERRORS * self.error():
            return None
        return f"responses of {number(now)} tokens at step {number(step)} are {factor(now / usual)} as long as before"


class EntropyCollapse(LevelAlert):
    """`EntropyCollapse`: the entropy leaves the range of its own history: information, since healthy runs do it too.

    The median of 16 samples is a third of that of the 96 samples before, or three times as high.
    """

    alerts = ("EntropyCollapse",)
    severity = "info"
    spans = 16, 96
    least = 48
    signed = True

    def _judge_level(self, step: int, now: float) -> str | None:
        usual = self.usual
        far = self._is_far(now, usual)
        if self.firing:
            if far and self.firing_for < ENTROPY_ACCEPTED:
                return None
            if far:
                self.before.clear()
                self.accepted = True
            return f"the entropy is {number(now)} at step {number(step)}"
        if not far or abs(now - usual) < ENTROPY_ERRORS * self.error():
            return None
        how = "fell to" if now < usual else "rose to"
        return f"the entropy {how} {number(now)} up to step {number(step)}, from {number(usual)}"

    def _is_far(self, now: float, usual: float) -> bool:
        if usual > 0 and now >= 0:
            return max(now, usual) > COLLAPSED and not usual / ENTROPY_TIMES <= now <= usual * ENTROPY_TIMES
        return abs(now - usual) > NATS


class RewardCollapse:
    """`RewardCollapse`: the mean of 24 rewards falls back, far beyond its noise and its earlier swings: what was learnt is gone.

    What was learnt is the rise from the lowest level before to the best one. A reward that is never negative must also lose
    that share of the best level. It is information while the fall may be the greatest one of a run that swings so.
    """

    alerts: tuple[str, ...] = ("RewardCollapse",)

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        self._share = thresholds.reward_collapse_ratio
        self._recent = SortedWindow(BLOCK)
        self._block: list[float] = []
        self._blocks = 0
        self._means: deque[float] = deque(maxlen=2 * SPANS[-1] + 1)
        self._scatter = SortedWindow(SCATTERS)
        self._bends = {span: SortedWindow(BLOCK) for span in SPANS}
        self._lowest, self._best, self._base, self._least = inf, -inf, inf, inf
        # The mean of the present swing below the best level, and the depth of those that are over.
        self._deepest, self._swing = inf, 0.0
        self._low = 0
        self._episode = Episode("RewardCollapse")

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:  # noqa: ARG002  needs no other key
        """Yield what the next rewards show."""
        episode = self._episode
        for at, (step, value) in enumerate(zip(column.steps, column.values, strict=True)):
            if not -HUGE < value < HUGE:
                continue
            self._recent.add(value)
            self._least = min(self._least, value)
            mean = sum(self._recent.arrived) / len(self._recent)
            self._learn(value)
            if episode.fires and self._swings_back(mean):
                self._low = 0
                yield episode.end(at, f"the reward is {number(mean)} at step {number(step)}")
                continue
            severity = self._judge(mean)
            self._low = self._low + 1 if severity is not None else 0
            if severity is not None and self._low >= CONFIRM and (not episode.fires or episode.worsens(severity)):
                text = f"the reward fell to {number(mean)} up to step {number(step)}, from {number(self._best)} at its best"
                self._deepest = min(self._deepest, mean)
                yield episode.report(severity, at, text)

    def _learn(self, value: float) -> None:
        """Add a reward to its block, and at the block's end its mean to what is known."""
        self._block.append(value)
        if len(self._block) < BLOCK:
            return
        mean = sum(self._block) / BLOCK
        self._scatter.add(sqrt(sum((one - mean) * (one - mean) for one in self._block) / (BLOCK - 1)))
        self._block.clear()
        self._blocks += 1
        self._means.append(mean)
        for span, bends in self._bends.items():
            if len(self._means) > 2 * span:
                bends.add(mean - 2 * self._means[-1 - span] + self._means[-1 - 2 * span])
        self._lowest = min(self._lowest, mean)
        if self._best > -inf and not self._episode.fires:
            self._swings_back(mean)
        level = (mean + self._means[-2]) / 2 if self._blocks > 1 else -inf
        if level > self._best:
            self._best, self._base = level, self._lowest

    def _swings_back(self, mean: float) -> bool:
        """Return whether a swing below the best level is over, and remember its depth."""
        self._deepest = min(self._deepest, mean)
        back = mean > self._best - REWARD_ENDS * (self._best - self._deepest)
        if back:
            self._swing, self._deepest = max(self._swing, self._best - self._deepest), mean
        return back

    def _judge(self, mean: float) -> Severity | None:
        """Return how severe it is that the last rewards have this mean."""
        if self._blocks < LEAST:
            return None
        # The upper quartile, since a policy that learns ever slower bends downwards only.
        bends = [_NORMAL * one.ordered[3 * len(one) // 4] for one in self._bends.values() if len(one) >= _KNOWN]
        learnt = self._best - self._base
        whole = self._best if self._least >= 0 else learnt
        error = max([WIDER * self._scatter.median() / sqrt(BLOCK), *bends])
        fell = self._best - mean
        if not fell > max(REWARD_ERRORS * error, self._share * max(learnt, whole), SWINGS * self._swing) > 0:
            return None
        by_chance = (REWARD_ERRORS + sqrt(2 * log(self._blocks))) * (1 + FEW / self._blocks)
        return "warning" if fell > by_chance * error else "info"
