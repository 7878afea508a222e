"""Detect weights that no longer change: the optimizer changes nothing, or the loss repeats exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Detection
from trackside_daemon.model.text import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context

STEPS, LEAST = 300, 3  # steps without any update, and samples of them

# Equal losses that are no chance, the steps that they cover, and the losses before that all differed: a loss that converges, or
# is logged with few digits, repeats now and then before.
EQUAL, COVERED, DIFFERED = 30, 100, 32


class Frozen:
    """`LossPlateau`: the update ratio is zero for 300 steps. A learning rate of zero is reported as that."""

    alerts: tuple[str, ...] = ("LossPlateau",)

    def __init__(self) -> None:
        self._since: int | None = None
        self._zeros = 0
        self._rate: float | None = None
        self._firing = False

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next update ratios show."""
        for at, (step, ratio) in enumerate(zip(column.steps, column.values, strict=True)):
            self._rate = context.rates.get(step, self._rate)
            if ratio != 0 or self._rate == 0 or (self._since is not None and step < self._since):
                if self._firing and ratio != 0:
                    yield Detection(
                        "LossPlateau", "warning", at, f"the weights change at step {number(step)}", over=True
                    )
                    self._firing = False
                self._since, self._zeros = None, 0
                continue
            self._since = step if self._since is None else self._since
            self._zeros += 1
            if not self._firing and self._zeros >= LEAST and step - self._since >= STEPS:
                self._firing = True
                text = f"no step has changed the weights from step {number(self._since)} to step {number(step)}"
                yield Detection("LossPlateau", "warning", at, f"{text}: the optimizer is without effect")


class LossRepeats:
    """`LossPlateau`: the loss, other than zero, is the same for 30 samples and 100 steps, and always differed before."""

    alerts: tuple[str, ...] = ("LossPlateau",)

    def __init__(self) -> None:
        self._value = 0.0
        self._since = 0
        self._equal = 0
        self._differed = 0
        self._firing = False

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:  # noqa: ARG002  needs no other key
        """Yield what the next losses show."""
        for at, (step, value) in enumerate(zip(column.steps, column.values, strict=True)):
            if value != self._value or step < self._since:
                if self._firing:
                    yield Detection("LossPlateau", "info", at, f"loss {number(value)} moves again", over=True)
                    self._firing = False
                self._differed = 0 if self._equal else self._differed + 1
                self._value, self._since, self._equal = value, step, 0
                continue
            self._equal += 1
            covers = self._equal >= EQUAL and step - self._since >= COVERED
            if covers and not self._firing and self._differed >= DIFFERED and value:
                self._firing = True
                text = f"loss {number(value)} repeats exactly from step {number(self._since)} to step {number(step)}"
                yield Detection("LossPlateau", "info", at, f"{text}: the weights seem not to change")
