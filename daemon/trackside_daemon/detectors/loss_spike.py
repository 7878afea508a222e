"""A loss that jumps for one sample or a few, and a batch that is hard to learn.

A single high sample that does not move the gradients is a hard batch: real runs have many, and they do no harm. The
gradient norm distinguishes it from a spike at once; without a gradient norm, the next samples do.

Two kinds of jumps look like spikes but are none. Losses of small batches, and of batches with wrong labels, jump again
and again and recover by themselves: after the third jump the detector reports no more. Late in fine-tuning, the loss of
one batch is many times that of the others and still close to zero.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Detection
from trackside_daemon.detectors.outlier import SCALES, SHARE, Jump, Jumps
from trackside_daemon.detectors.wording import HUGE, count, factor, number, rate_raised, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context

MOVED = 2.0  # factor over its own median from which a gradient norm moved together with the loss
AGREES = 3.0  # factor over its own median from which a gradient norm supports a jump of the loss

# Largest jump of a hard batch, as a fraction of the level: without a gradient norm; with one that did not move.
HARD, HARD_UNMOVED = 0.6, 1.0

# USED_TO jumps of at least USED times the height that recovered among LATELY samples: one more is ordinary for this
# loss. Each of them has at most USED_TO high samples; one that stays up as long is reported.
USED_TO, USED, LATELY = 3, 2 / 3, 10_000

PASSED = 16  # recovered jumps that are remembered

BEGINNING, LITTLE = 5, 0.01  # first samples, whose median is the initial loss; the fraction of it that is negligible

# Consecutive samples at the old level that end a spike; samples above it after which it is no longer a spike.
BACK, GIVEN_UP = 5, 64

# A sample is still high above this fraction of the jump, or this many deviations; the lower counts.
ABOVE, ABOVE_NOISE = 0.5, 4.0


class LossSpike:
    """`LossSpike`: the loss jumps by *scales* robust deviations and *ratio* of its level. `LossHardBatch`: a small single jump."""

    alerts: tuple[str, ...] = ("LossSpike", "LossHardBatch")

    def __init__(self, *, scales: float = SCALES, ratio: float = SHARE) -> None:
        self._jumps = Jumps(scales=scales, ratio=ratio)
        self._step: int | None = None
        self._alert = ""
        self._begun = Jump(0.0, 0.0, 0.0)
        self._first = 0
        self._high = self._back = self._seen = 0
        self._index = 0
        self._passed: deque[tuple[int, float]] = deque(maxlen=PASSED)
        self._beginning: list[float] = []
        self._little = 0.0

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next losses show."""
        gradients, jumps = context.gradients, self._jumps
        for at, (step, value) in enumerate(zip(column.steps, column.values, strict=True)):
            if not -HUGE < value < HUGE:
                continue
            if self._step is not None and step < self._step:
                yield from self._end(at, f"the training went back to step {count(step)}")
                jumps.clear()
            self._step = step
            self._index += 1
            if self._index <= BEGINNING:
                self._beginning.append(abs(value))
                self._little = LITTLE * median(self._beginning)
            jump = jumps.add(value, agreed=step in gradients and gradients[step] >= AGREES)
            if self._alert:
                yield from self._follow(at, step, value, jump, context)
            elif jump:
                yield self._begin(at, step, value, jump, context)

    def _begin(self, at: int, step: int, value: float, jump: Jump, context: Context) -> Detection:
        moved = context.gradients.get(step)
        most = HARD if moved is None else HARD_UNMOVED if moved < MOVED else 0.0
        hard = jump.height < most * jump.before or self._is_ordinary(jump.height)
        self._alert = "LossHardBatch" if hard else "LossSpike"
        self._begun, self._first, self._high, self._back, self._seen = jump, step, 1, 0, 1
        text = _text(step, value, jump, context)
        return Detection(self._alert, "info", at, text) if hard else Detection(self._alert, "warning", at, text)

    def _is_ordinary(self, height: float) -> bool:
        """Return whether jumps of this height are ordinary for this loss, or negligible."""
        if height < self._little:
            return True
        since = self._index - LATELY
        return sum(at > since and was >= USED * height for at, was in self._passed) >= USED_TO

    def _follow(self, at: int, step: int, value: float, jump: Jump | None, context: Context) -> Iterator[Detection]:
        self._seen += 1
        begun, height = self._begun, value - self._begun.before
        if height > min(ABOVE * begun.height, max(ABOVE_NOISE * begun.noise, 0.1 * abs(begun.before))):
            self._high, self._back = self._high + 1, 0
            if self._alert == "LossHardBatch" and (self._high >= USED_TO or not self._is_ordinary(height)):
                yield Detection("LossHardBatch", "info", at, "it is more than a single batch", over=True)
                self._alert = "LossSpike"
                text = _text(step, value, begun._replace(height=height), context)
                yield Detection("LossSpike", "warning", at, f"{text}, and since step {count(self._first)}")
            elif jump and self._alert == "LossSpike":
                yield Detection("LossSpike", "warning", at, _text(step, value, jump, context))
            elif self._seen > GIVEN_UP:
                yield from self._end(at, f"loss stays at {number(value)}, above the {number(begun.before)} before")
        else:
            self._back += 1
            if self._back >= BACK:
                if self._high <= USED_TO:
                    self._passed.append((self._index, begun.height))
                was = "a single hard batch" if self._high == 1 else f"{self._high} samples were above"
                yield from self._end(at, f"loss is back at {number(value)} at step {count(step)}: {was}")

    def _end(self, at: int, text: str) -> Iterator[Detection]:
        if self._alert:
            yield Detection(self._alert, "info" if self._alert == "LossHardBatch" else "warning", at, text, over=True)
        self._alert = ""


def _text(step: int, value: float, jump: Jump, context: Context) -> str:
    """Return ``loss 5.31 at step 31,219, 2.41 times the 2.2 of the steps before (41 times their noise above)``."""
    text = f"loss {number(value)} at step {count(step)}, {times(value, jump.before, jump.noise)} of the steps before"
    if jump.noise:
        text += f" ({factor(jump.height / jump.noise)} their noise above)"
    moved = context.gradients.get(step)
    if moved is not None:
        verdict = "agrees" if moved >= MOVED else "does not move"
        text += f"; the gradient norm {verdict} ({factor(moved)} its recent level)"
    return text + rate_raised(step, context)
