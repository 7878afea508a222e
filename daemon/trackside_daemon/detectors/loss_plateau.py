"""Detect a loss that no longer falls, or weights that no longer change: the optimizer changes nothing, or the loss repeats exactly.

`LossPlateau` compares blocks of medians over the last tenth of the run, 500 samples or more. The slope is the median slope of
all pairs of blocks (Theil-Sen), so single blocks do not change it. The severity is info: at the end of a schedule a plateau is
normal. A gain that is no larger than its error is none, unless the noise is too large to decide.
"""

from collections.abc import Iterator
from statistics import median

from trackside_daemon.detectors.base import HUGE, Column, Context, Detection, Episode, Streak, Test
from trackside_daemon.detectors.levels import SampleAlert
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.finding import Severity
from trackside_daemon.model.robust import middle_and_spread
from trackside_daemon.model.text import number, percent

BLOCK, BLOCKS = 25, 20  # samples in the smallest block, and blocks that are compared: 500 samples

PART = 0.1  # fraction of the run that is compared, once that is more than the smallest blocks hold

# Fractions of the loss: the largest gain that its error may hide; a larger gain, by so many of its errors, ends the plateau.
UNSURE, AGAIN, ERRORS = 0.02, 0.005, 4.0

HIDDEN = 1.2  # standard errors within which a gain is none

FALLING = 0.98  # Fraction of the learning rate at the first block. Below it a schedule ends, and a plateau is normal.

FROZEN, LEAST = 300, 3  # steps without any update, and samples of them

# Equal losses that are no chance, the steps that they cover, and the losses before that all differed: a loss that converges, or
# is logged with few digits, repeats now and then before.
EQUAL, COVERED, DIFFERED = 30, 100, 32


class LossPlateau:
    """`LossPlateau`: the loss gains less than a ratio of itself."""

    alerts: tuple[str, ...] = ("LossPlateau",)

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        self._ratio = thresholds.loss_plateau_ratio
        self._again = max(AGAIN, self._ratio)
        self._samples: list[float] = []
        self._medians: list[float] = []
        self._blocks: list[float] = []
        self._rates: list[float | None] = []
        self._merged = 1
        self._seen = self._still = 0
        self._error = 0.0
        self._tests: list[Test] = []
        self._step: int | None = None
        self._episode = Episode("LossPlateau")

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next losses show."""
        for at, (step, value) in enumerate(zip(column.steps, column.values, strict=True)):
            if not -HUGE < value < HUGE:
                continue
            if self._step is not None and step < self._step:
                self._blocks, self._rates, self._still = [], [], 0
            self._step = step
            self._samples.append(value)
            if len(self._samples) == BLOCK:
                self._seen += BLOCK
                self._medians.append(median(self._samples))
                self._samples.clear()
                if len(self._medians) == self._merged:
                    yield from self._judge(at, step, context)

    def explain(self) -> Iterator[Test]:
        """Yield the tests of the last complete block."""
        yield from self._tests or [Test("blocks", len(self._blocks), BLOCKS - 1)]

    def _judge(self, at: int, step: int, context: Context) -> Iterator[Detection]:
        """Add a complete block and compare the last ones."""
        self._blocks.append(sum(self._medians) / self._merged)
        self._rates.append(context.rate_at(step))
        self._medians.clear()
        if len(self._blocks) < BLOCKS:
            return
        del self._blocks[:-BLOCKS], self._rates[:-BLOCKS]
        gain, error = _gain(self._blocks)
        level = abs(self._blocks[-1])
        rates = [rate for rate in self._rates if rate is not None]
        ending = bool(rates) and rates[-1] < FALLING * rates[0]
        fires = self._episode.fires
        hides = max(self._ratio * level, HIDDEN * error)
        self._tests = [
            Test("gain that its ratio or error hides", hides, abs(gain)),
            Test("gain that is no noise", UNSURE * level, hides),
            Test("blocks without a gain", self._still + 1, BLOCKS // 2 - 1),
        ]
        self._error = max(self._error if fires else 0.0, error)  # few blocks may look alike by chance
        if fires and (ending or gain > self._again * level + ERRORS * self._error):
            self._still = 0
            yield self._episode.end(at, "the learning rate falls" if ending else f"loss {number(level)} falls again")
        elif abs(gain) < hides < UNSURE * level and not ending:
            self._still += 1
            if not fires and self._still >= BLOCKS // 2:
                samples = BLOCKS * self._merged * BLOCK
                text = f"loss {number(self._blocks[-1])} at step {number(step)} gained {percent(gain / level, '+')}"
                than = ", no more than its error" if HIDDEN * error > self._ratio * level else ""
                yield self._episode.report("info", at, f"{text} in the last {number(samples)} samples{than}")
        else:
            self._still = 0
        if PART * self._seen > BLOCKS * self._merged * BLOCK:
            self._blocks = [(one + other) / 2 for one, other in zip(self._blocks[::2], self._blocks[1::2], strict=True)]
            self._rates = self._rates[::2]
            self._merged *= 2


def _gain(blocks: list[float]) -> tuple[float, float]:
    """Return how much the loss fell over *blocks*, and the standard error of that."""
    many = len(blocks)
    slopes = [(b - a) / apart for apart in range(1, many) for a, b in zip(blocks, blocks[apart:], strict=False)]
    slope = median(slopes)
    rests = [block - slope * index for index, block in enumerate(blocks)]
    noise = middle_and_spread(rests)[1]
    # The variance of a slope over n evenly spaced blocks is about 12 / n**3 times that of a block; here it is for n.
    return -slope * many, noise * (12 / many) ** 0.5


class Frozen(SampleAlert):
    """`LossPlateau`: the update ratio is zero for 300 steps. A learning rate of zero is reported as that."""

    alerts = ("LossPlateau",)
    severity: Severity = "warning"

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._zeros = Streak()
        self._rate: float | None = None

    def _judge(self, step: int, value: float) -> str | None:
        zeros = self._zeros
        self._rate = self.context.rates.get(step, self._rate)
        if value != 0 or self._rate == 0 or (zeros.count and step < zeros.since):
            zeros.count = 0
            return f"the weights change at step {number(step)}" if self.firing and value != 0 else None
        zeros.add(step)
        if self.firing or zeros.count < LEAST or step - zeros.since < FROZEN:
            return None
        text = f"no step has changed the weights from step {number(zeros.since)} to step {number(step)}"
        return f"{text}: the optimizer is without effect"


class LossRepeats(SampleAlert):
    """`LossPlateau`: the loss, other than zero, is the same for 30 samples and 100 steps, and always differed before."""

    alerts: tuple[str, ...] = ("LossPlateau",)
    severity: Severity = "info"

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._value = 0.0
        self._since = self._equal = self._differed = 0

    def _judge(self, step: int, value: float) -> str | None:
        if value != self._value or step < self._since:
            self._differed = 0 if self._equal else self._differed + 1
            self._value, self._since, self._equal = value, step, 0
            return f"loss {number(value)} moves again" if self.firing else None
        self._equal += 1
        covers = self._equal >= EQUAL and step - self._since >= COVERED
        if self.firing or not (covers and self._differed >= DIFFERED and value):
            return None
        text = f"loss {number(value)} repeats exactly from step {number(self._since)} to step {number(step)}"
        return f"{text}: the weights seem not to change"
