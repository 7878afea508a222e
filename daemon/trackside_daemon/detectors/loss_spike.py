"""A loss that jumps and stays up for some samples, and a batch that is hard to learn.

Up to three high samples are a hard batch: real runs have many, and they do no harm. Four make it a spike, if most samples
since the jump are high. Both are information: `LossDiverging` warns if the loss does not come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import HUGE, Episode, Test
from trackside_daemon.detectors.outlier import Jump, Jumps
from trackside_daemon.detectors.settings import DEFAULTS
from trackside_daemon.model.records import STEP
from trackside_daemon.model.text import factor, number, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context, Detection

MOVED = 2.0  # factor over its own median from which a gradient norm moved together with the loss

SEVERAL = 4  # high samples that are a spike and not a hard batch

# Consecutive samples at the old level that end a spike; samples above it after which it is no longer a spike.
BACK, GIVEN_UP = 5, 64

# Deviations and fraction of the level above which a sample is still high. A spike decays, so it is less than a jump.
ABOVE = 4.0, 0.1


class LossSpike:
    """`LossSpike`: the loss jumps by *scales* robust deviations and *ratio* of its level, and stays. `LossHardBatch`: a short jump."""

    alerts: tuple[str, ...] = ("LossSpike", "LossHardBatch")

    def __init__(self, *, scales: float = DEFAULTS.loss_spike_scales, ratio: float = DEFAULTS.loss_spike_ratio) -> None:
        self._jumps = Jumps(scales=scales, ratio=ratio)
        self._batch, self._spike = Episode("LossHardBatch"), Episode("LossSpike")
        self._begun = Jump(0.0, 0.0, 0.0)
        self._first = 0
        self._high = 0  # samples above the level before, since the jump

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next losses show."""
        jumps = self._jumps
        for at, (step, value) in enumerate(zip(column.steps, column.values, strict=True)):
            if not -HUGE < value < HUGE:
                continue
            if context.restarts.get(step):
                for firing in (one for one in (self._batch, self._spike) if one.fires):
                    yield firing.end(at, f"the training has started again at step {number(step)}")
                jumps.clear()
            jump = jumps.add(value)
            if self._batch.fires or self._spike.fires:
                yield from self._follow(at, step, value, context)
            elif jump:
                self._begun, self._first, self._high = jump, step, 1
                yield self._batch.report("info", at, _text(step, value, jump, context))

    def explain(self) -> Iterator[Test]:
        """Yield the tests of the last loss: whether it jumps, and whether a jump is over."""
        firing = next((one for one in (self._batch, self._spike) if one.fires and one.seen), None)
        yield from (
            [Test("samples in a row that are not high", firing.calm, BACK - 1)] if firing else self._jumps.explain()
        )

    def _follow(self, at: int, step: int, value: float, context: Context) -> Iterator[Detection]:
        batch, spike = self._batch, self._spike
        begun, height = self._begun, value - self._begun.before
        high = height > max(ABOVE[0] * begun.noise, ABOVE[1] * abs(begun.before))
        firing = batch if batch.fires else spike
        firing.follow(calm=not high)
        self._high += high
        if firing.calm >= BACK:
            was = "a single hard batch" if self._high == 1 else f"{self._high} samples were above"
            yield firing.end(at, f"loss is back at {number(value)} at step {number(step)}: {was}")
        elif high:
            if batch.fires and SEVERAL <= self._high > (firing.seen + 1) / 2:
                yield batch.end(at, "it is more than a single batch")
                text = _text(step, value, begun._replace(height=height), context)
                yield spike.report("info", at, f"{text}, and since step {number(self._first)}", {STEP: self._first})
                spike.seen = batch.seen
            elif firing.seen >= GIVEN_UP:
                yield firing.end(at, f"loss stays at {number(value)}, above the {number(begun.before)} before")


def _text(step: int, value: float, jump: Jump, context: Context) -> str:
    """Return ``loss 5.31 at step 31,219, 2.41 times the 2.2 of the steps before (41 times their noise above)``."""
    text = f"loss {number(value)} at step {number(step)}, {times(value, jump.before, jump.noise)} of the steps before"
    if jump.noise:
        text += f" ({factor(jump.height / jump.noise)} their noise above)"
    moved = context.gradients.get(step)
    if moved is not None:
        verdict = "agrees" if moved >= MOVED else "does not move"
        text += f"; the gradient norm {verdict} ({factor(moved)} its recent level)"
    return text + context.rate_raised(step)
