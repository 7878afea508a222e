"""Detect a learning rate that is unlikely to be intended."""

from collections.abc import Iterator
from math import isfinite

from trackside_daemon.detectors.base import Column, Context, Detection, Streak
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds

# Samples at the start of a schedule in which the rate may rise by any factor, or as many as those at which zero is a mistake.
START = 10

# Factor over the greatest rate before: a schedule that starts again returns to its old maximum, not beyond.
ABOVE = 2.0

SLIP = 0.95  # share of a jump that counts as one: a rate that is logged ten times too great has moved with its schedule as well

# A rate that was never higher changes no weight of 32 bits: a mistake in the schedule, or in its unit.
NOTHING = 1e-8

STEPS_AT_ZERO = 100
SAMPLES_AT_ZERO = 3  # The first rate of a warm-up and the last of a decay are zero. For this long, zero is a mistake.

# A schedule reaches a rate this low within its last hundredth, or within that of each of its cycles.
ENDS = 0.01  # share of the run's steps
REMAINS = 0.1  # share of the run's steps that remain, below which the end is near, and may be intended
STEPS_LOW, SAMPLES_LOW, LOW = 1000, 100, 0.1  # without a number of steps: also as a share of the steps before


class LearningRate:
    """`LearningRateOutOfRange`: a rate below zero, too great, not finite, many times the one before, or zero for 100 steps.

    Or one that has fallen to next to nothing long before the run's end. Yields a detection when a fault begins and when it
    ends; of rates that are zero or intended, only the first. A jump ends with the next rate that is not a jump.
    """

    alerts: tuple[str, ...] = ("LearningRateOutOfRange",)

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        self._most, self._least = thresholds.learning_rate_most, thresholds.learning_rate_least
        self._jump = thresholds.learning_rate_jump_ratio
        self._usual = max(NOTHING, self._least)  # a rate above needs no look
        self._seen = Streak()
        self._last = 0.0
        self._greatest = 0.0
        self._zeros = Streak()
        self._lows = Streak()
        self._wrong = ""
        self._told: set[str] = set()

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next learning rates show."""
        zeros, lows = self._zeros, self._lows
        for at, (step, rate) in enumerate(zip(column.steps, column.values, strict=True)):
            usual = self._usual < rate <= self._greatest and rate <= self._most
            if usual and not (self._wrong or zeros.count or lows.count):
                self._seen.count += 1
                self._last = rate
                continue
            kind, text = self._judge(step, rate, context.total_steps)
            if kind and kind != self._wrong:
                # A great rate at the start, or by a schedule, may be intended, as with clipped gradients.
                intended = kind == "great" and (not self._greatest or rate <= ABOVE * self._greatest)
                if not (kind in self._told and (intended or kind == "zero")):
                    self._told.add(kind)
                    yield Detection("LearningRateOutOfRange", "info" if intended else "warning", at, text)
            elif not kind and self._wrong:
                text = f"the learning rate is {rate:.3g} at step {step:,}"
                yield Detection("LearningRateOutOfRange", "warning", at, text, over=True)
            self._wrong = kind
            self._remember(step, rate)

    def _judge(self, step: int, rate: float, total: int | None) -> tuple[str, str]:
        """Return the kind of fault, empty for none, and its description."""
        if not isfinite(rate):
            return "not finite", f"the learning rate is {rate} at step {step:,}"
        if rate < 0:
            return "negative", f"the learning rate is {rate:.3g} at step {step:,}: a negative rate raises the loss"
        if rate > self._most:
            return "great", f"the learning rate is {rate:.3g} at step {step:,}, above {self._most:.3g}"
        if rate == 0 or max(rate, self._greatest) <= NOTHING:
            return self._zero(step, rate)
        self._zeros.count = 0
        if (
            self._has_started(step)
            and self._last > 0
            and rate > max(SLIP * self._jump * self._last, ABOVE * self._greatest)
        ):
            return "jump", (
                f"the learning rate rose to {rate:.3g} at step {step:,}, {rate / self._last:.3g} times the {self._last:.3g} "
                f"of the step before and {rate / self._greatest:.3g} times the greatest so far"
            )
        return self._low(step, rate, total)

    def _has_started(self, step: int) -> bool:
        seen = self._seen
        return seen.count >= START or (seen.count >= SAMPLES_AT_ZERO and step - seen.since >= STEPS_AT_ZERO)

    def _zero(self, step: int, rate: float) -> tuple[str, str]:
        zeros = self._zeros
        zeros.add(step)
        if zeros.count < SAMPLES_AT_ZERO or step - zeros.since < STEPS_AT_ZERO:
            return "", ""
        size = f"{rate:.3g}" if rate else "zero"
        text = f"the learning rate is logged as {size} from step {zeros.since:,} to step {step:,}"
        return "zero", f"{text}: nothing is learned, unless the log rounds it"

    def _low(self, step: int, rate: float, total: int | None) -> tuple[str, str]:
        lows = self._lows
        if not rate <= self._least < self._greatest:
            lows.count = 0
            return "", ""
        lows.add(step)
        lasted = step - lows.since
        if total:
            left = total - step
            too_low = (
                lasted >= max(STEPS_AT_ZERO, ENDS * total) and lows.count >= SAMPLES_AT_ZERO and left > REMAINS * total
            )
            rest = f", and {left:,} of {total:,} steps remain"
        else:
            too_low = lasted >= max(STEPS_LOW, LOW * lows.since) and lows.count >= SAMPLES_LOW
            rest = ""
        if not too_low and self._wrong != "low":
            return "", ""
        return "low", (
            f"the learning rate has been {self._least:.3g} or less since step {lows.since:,}, {rate:.3g} at step {step:,}{rest}: "
            f"next to nothing is learned"
        )

    def _remember(self, step: int, rate: float) -> None:
        if isfinite(rate) and rate >= 0:
            self._seen.add(step)
            self._last = rate
            self._greatest = max(self._greatest, rate)
