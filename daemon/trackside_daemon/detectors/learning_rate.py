"""A learning rate that cannot be meant."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Detection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context

START = 10
"""Samples of a schedule in which it may rise from next to nothing by any factor."""

ABOVE = 10.0
"""Times the greatest before: a schedule that begins anew comes back to where it was, and not beyond."""

STEPS_AT_ZERO = 100
SAMPLES_AT_ZERO = 3
"""A warm-up's first and a decay's last rate are zero; for so long it is a mistake."""


class LearningRate:
    """A rate below zero, above *most*, not finite, *jump* times the one before at once, or zero for 100 steps.

    What is wrong is told when it begins and when it ends; a jump ends with the next rate that is no jump.
    """

    alerts: tuple[str, ...] = ("LearningRateOutOfRange",)

    def __init__(self, *, most: float = 10.0, jump: float = 100.0) -> None:
        self._most = most
        self._jump = jump
        self._seen = 0
        self._last = 0.0
        self._greatest = 0.0
        self._zeros = 0
        self._zero_since = 0
        self._wrong = ""

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:  # noqa: ARG002  it is judged in every phase
        """Learning rates, in order."""
        for at, (step, rate) in enumerate(zip(column.steps, column.values, strict=True)):
            if rate == self._last and rate and not self._wrong:
                self._seen += 1
                continue
            kind, text = self._judge(step, rate)
            if kind and kind != self._wrong:
                yield Detection("LearningRateOutOfRange", "warning", at, text)
            elif not kind and self._wrong:
                text = f"the learning rate is {rate:.3g} at step {step:,}"
                yield Detection("LearningRateOutOfRange", "warning", at, text, over=True)
            self._wrong = kind
            self._remember(rate)

    def _judge(self, step: int, rate: float) -> tuple[str, str]:
        """What kind of wrong it is, empty for none, and that in words."""
        if not isfinite(rate):
            return "not finite", f"the learning rate is {rate} at step {step:,}"
        if rate < 0:
            return "negative", f"the learning rate is {rate:.3g} at step {step:,}: below zero, steps go uphill"
        if rate > self._most:
            return "great", f"the learning rate is {rate:.3g} at step {step:,}, above {self._most:.3g}"
        if rate == 0:
            return self._zero(step)
        self._zeros = 0
        if self._seen >= START and self._last > 0 and rate > self._jump * self._last and rate > ABOVE * self._greatest:
            return "jump", (
                f"the learning rate rose to {rate:.3g} at step {step:,}, {rate / self._last:.3g} times the {self._last:.3g} "
                f"of the step before and {rate / self._greatest:.3g} times the greatest so far"
            )
        return "", ""

    def _zero(self, step: int) -> tuple[str, str]:
        if not self._zeros:
            self._zero_since = step
        self._zeros += 1
        if self._zeros < SAMPLES_AT_ZERO or step - self._zero_since < STEPS_AT_ZERO:
            return "", ""
        return (
            "zero",
            f"the learning rate is zero since step {self._zero_since:,}: nothing was learnt up to step {step:,}",
        )

    def _remember(self, rate: float) -> None:
        if isfinite(rate) and rate >= 0:
            self._seen += 1
            self._last = rate
            self._greatest = max(self._greatest, rate)
