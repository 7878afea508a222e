"""Detect steps that become slower bit by bit, over thousands of steps, as on a laptop that grows warm."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from trackside.totals.phases import PAUSES
from trackside_daemon.detectors.base import Detection
from trackside_daemon.detectors.settings import DEFAULTS
from trackside_daemon.model.text import duration, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context

BLOCK, BLOCKS = 100, 10  # samples whose median is a level, and levels whose median is compared: 1,000 samples

# Share of the whole rise that one block may add: beyond that the steps became slower at once, which is another detection.
AT_ONCE = 0.5


class SlowDrift:
    """`ThroughputRegression`, once: 1,000 samples take *ratio* times as long as the fastest 1,000 before, without a leap.

    They must also lose *lost* seconds.
    """

    alerts: tuple[str, ...] = ("ThroughputRegression",)

    def __init__(self, *, ratio: float = DEFAULTS.throughput_ratio, lost: float = 0.0) -> None:
        self._ratio = ratio
        self._lost = lost
        self._block: list[float] = []
        self._levels: deque[float] = deque(maxlen=BLOCKS)
        self._fastest = float("inf")
        self._since = 0
        self._leap = 0.0
        self._found = 0

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next durations show, in seconds per step."""
        if context.phase in PAUSES or self._found >= BLOCKS:
            return
        for at, (step, seconds) in enumerate(zip(column.steps, column.values, strict=True)):
            if 0 < seconds < float("inf"):
                self._block.append(seconds)
                if len(self._block) == BLOCK:
                    level = median(self._block)
                    self._block.clear()
                    yield from self._judge(at, step, level)

    def _judge(self, at: int, step: int, level: float) -> Iterator[Detection]:
        self._levels.append(level)
        self._leap = max(self._leap, level - self._levels[-2] if len(self._levels) > 1 else 0.0)
        if self._found:
            self._found += 1
            if self._found == BLOCKS:
                text = f"steps have taken {duration(level)} for {BLOCK * BLOCKS:,} samples: this is the new normal"
                yield Detection("ThroughputRegression", "info", at, text, over=True)
            return
        if len(self._levels) < BLOCKS:
            return
        now = median(self._levels)
        rise = now - self._fastest
        if rise < 0:
            self._fastest, self._since = now, step
            self._leap = max(after - before for before, after in pairwise(self._levels))
        elif now > self._ratio * self._fastest and self._leap < AT_ONCE * rise and BLOCK * BLOCKS * rise >= self._lost:
            self._found = 1
            text = f"steps take {duration(now)}, {percent(rise / self._fastest)} more than the {duration(self._fastest)} up to"
            yield Detection(
                "ThroughputRegression", "info", at, f"{text} step {self._since:,}: they became slower bit by bit"
            )
