"""A value that is NaN or infinite."""

from __future__ import annotations

from collections import deque
from math import isfinite
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Detection
from trackside_daemon.detectors.wording import count, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context

CALM = 10
"""Finite samples in a row after which it has passed."""

SKIPPED, OF = 3, 20
"""Steps of the last ones that mixed precision may not skip: one now and then only lowers the loss scale."""

FROM_THE_START = 40
"""Norms before the first finite one that mixed precision may skip: its loss scale begins at 2**16 or 2**32, far above what
the gradients bear, and each skipped step halves it.
"""


class NonFinite:
    """A value that is NaN or infinite.

    Args:
        skips: It is a gradient norm, of which single ones are so by design: with mixed precision, where the loss scale
            was too great, the step is skipped and the scale lowered. These, and all at the very beginning until the scale
            fits, are told, but as nothing to act on.
    """

    alerts: tuple[str, ...] = ("NonFinite",)

    def __init__(self, *, skips: bool = False) -> None:
        self._skips = skips
        self._firing = False
        self._first = self._count = self._calm = self._seen = 0
        self._good: float | None = None
        self._lately: deque[int] = deque([-OF] * (SKIPPED if skips else 1), maxlen=SKIPPED if skips else 1)

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:  # noqa: ARG002  needs no other key
        """What is found in the samples that come next: each that is not finite, anew."""
        if not self._firing and all(map(isfinite, column.values)):
            if column.values:
                self._good = column.values[-1]
            self._seen += len(column.values)
            return
        for at, (step, value) in enumerate(zip(column.steps, column.values, strict=True)):
            self._seen += 1
            if not isfinite(value):
                self._lately.append(self._seen)
                yield self._found(at, step, value)
            elif self._firing:
                self._calm += 1
                if self._calm >= CALM:
                    self._firing = False
                    text = f"finite again for {CALM} samples, {number(value)} at step {count(step)}"
                    yield Detection("NonFinite", "critical", at, text, over=True)
            self._good = value if isfinite(value) else self._good

    def _found(self, at: int, step: int, value: float) -> Detection:
        if not self._firing:
            self._firing, self._first, self._count = True, step, 0
        self._calm = 0
        self._count += 1
        text = f"{number(value)} at step {count(step)}"
        if self._count > 1:
            text += f", {count(self._count)} since step {count(self._first)}"
        if self._good is not None:
            text += f"; the last finite value was {number(self._good)}"
        many = self._seen - self._lately[0] < OF
        begins = self._skips and self._good is None and self._count <= FROM_THE_START
        return Detection("NonFinite", "critical" if many and not begins else "info", at, text)
