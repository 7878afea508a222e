"""Detect a loss whose level rises and stays, at once or gradually.

The level is the median of the last 16 samples. It is compared with the lowest level so far: three quarters of the samples
must lie 15 % above it, so that neither a decaying spike nor single high samples count. How severe a rise is depends on the
share of what was learnt that it undoes.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Detection
from trackside_daemon.detectors.learnt import LITTLE, MUCH, Learnt
from trackside_daemon.detectors.window import Window
from trackside_daemon.detectors.wording import HUGE, count, number, rate_raised, times
from trackside_daemon.model.finding import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context
    from trackside_daemon.model.finding import Severity

LEVEL, LEAST = 16, 32  # samples whose median is the level; samples before the first comparison

RISE, NOISE = 0.15, 5.0  # required rise: fraction of the lowest level, and standard deviations of single samples

# Fraction of the rise of the highest quarter that the newer half must keep. After a spike the newer half is lower.
STAYS = 0.7

CROSSING = 12.0  # standard deviations needed where the loss crosses zero: a fraction of it means nothing there
CRITICAL = 0.5  # rise, as a fraction of the lowest level, from which the model loses what it learned
AFTER = 60.0  # seconds for which it must have risen, and LEVEL samples, until that is critical

HOLD, ACCEPTED = 64, 1000  # samples between two findings; samples after which a new level becomes the accepted one

_NORMAL = 1.4826 / 2**0.5  # standard deviations of one sample per median distance of two successive samples


class LossDiverging:
    """`LossDiverging`: the level rises by *ratio* of the lowest level and stays; critical after so many seconds."""

    alerts: tuple[str, ...] = ("LossDiverging",)

    def __init__(self, *, ratio: float = RISE, after: float = AFTER) -> None:
        self._ratio = ratio
        self._after = after
        self._learnt = Learnt()
        self._severity: Severity = "info"
        self._since = 0.0
        self._samples = 0
        self._step: int | None = None
        self._firing = False
        self._good = 0.0
        self._good_at = 0
        self._forget()

    def _forget(self) -> None:
        self._last = Window(LEVEL)
        self._changes: deque[float] = deque(maxlen=64)
        self._before = 0.0
        self._count = self._hold = 0
        self._lowest: float | None = None
        self._lowest_at = 0

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next losses show."""
        for at, (step, time, value) in enumerate(zip(*column, strict=True)):
            if not -HUGE < value < HUGE:
                continue
            if self._step is not None and step < self._step:
                if self._firing:
                    yield self._end(at, f"the training went back to step {count(step)}")
                self._forget()
            self._step = step
            self._changes.append(abs(value - self._before))
            self._before = value
            self._last.add(value)
            self._count += 1
            self._learnt.add(value)
            if self._count >= LEAST:
                yield from self._judge(at, step, time, context)

    def _judge(self, at: int, step: int, time: float, context: Context) -> Iterator[Detection]:
        level = self._last.median()
        if self._lowest is None or level < self._lowest:
            self._lowest, self._lowest_at = level, step
        self._hold -= 1
        if self._firing and level - self._good < self._ratio / 2 * abs(self._good):
            yield self._end(at, f"loss is back at {number(level)} at step {count(step)}")
        elif self._firing and self._hold < HOLD - ACCEPTED:
            yield self._end(at, f"loss stays at {number(level)}, which is now its accepted level")
        elif self._hold < 0 and self._is_above(level, self._lowest):
            if not self._firing:
                self._firing, self._good, self._good_at = True, self._lowest, self._lowest_at
                self._since, self._samples = time, 0
            self._severity = self._judge_severity(level, time)
            yield Detection("LossDiverging", self._severity, at, self._text(level, step, context))
            self._lowest, self._hold = None, HOLD
        elif self._firing and self._severity != "critical":
            self._samples += 1
            severity = self._judge_severity(level, time)
            if SEVERITIES.index(severity) > SEVERITIES.index(self._severity):
                self._severity = severity
                yield Detection("LossDiverging", severity, at, self._text(level, step, context))

    def _judge_severity(self, level: float, time: float) -> Severity:
        rise = level - self._good
        lost = self._learnt.lost(rise, self._good)
        if lost < LITTLE:
            return "info"
        lasts = self._samples >= LEVEL and not time - self._since < self._after  # a log may have no times
        return "critical" if lasts and lost >= MUCH and rise > CRITICAL * abs(self._good) else "warning"

    def _is_above(self, level: float, lowest: float) -> bool:
        if self._last.ordered[LEVEL // 4] - lowest <= self._ratio * abs(lowest):
            return False
        newer = median(list(self._last.arrived)[LEVEL // 2 :])
        if newer - lowest < STAYS * (self._last.ordered[3 * LEVEL // 4] - lowest):
            return False
        least = CROSSING if lowest <= 0 <= level else NOISE
        return level - lowest > least * _NORMAL * median(self._changes)

    def _end(self, at: int, text: str) -> Detection:
        self._firing = False
        return Detection("LossDiverging", "warning", at, text, over=True)

    def _text(self, level: float, step: int, context: Context) -> str:
        than = times(level, self._good)
        since = f" since its lowest at step {count(self._good_at)}"
        return f"loss has risen to {number(level)} at step {count(step)}, {than}{since}{rate_raised(step, context)}"
