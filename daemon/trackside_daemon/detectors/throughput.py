"""Detect steps that became slower and stay slower."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside.totals.phases import PAUSES
from trackside_daemon.detectors.base import Detection, slower
from trackside_daemon.model.robust import Window
from trackside_daemon.model.text import duration, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context
    from trackside_daemon.model.finding import Severity

BLOCK = 10  # samples whose median is judged: pauses and single slow steps do not change it
BEFORE = 32  # recent blocks that give the usual duration: at most BEFORE, at least ENOUGH
ENOUGH = 6

LASTING = 4  # consecutive slower blocks that make an alert
RETURNED = 2  # consecutive normal blocks that end it
USUAL = 100  # blocks after which the slower steps are the new normal

WORTH = 60.0  # seconds lost from which it is a warning; less is info

# Share of the run's time that slower steps must lose where that is less than the floor in seconds: a training of a few
# seconds is judged by its own length.
SHARE = 0.1


class Throughput:
    """`ThroughputRegression`: for 40 samples, steps take *ratio* times as long as before.

    The increase must also exceed *scales* deviations of the levels, and all slower steps together must lose *lost* seconds,
    or `SHARE` of the run's time if that is less.
    """

    alerts: tuple[str, ...] = ("ThroughputRegression",)

    def __init__(self, *, ratio: float = 1.15, scales: float = 3.0, lost: float = 0.0) -> None:
        self._ratio = ratio
        self._lost = lost
        self._scales = scales
        self._block: list[float] = []
        self._window = Window(BEFORE)
        self._slower: list[float] = []
        self._since = 0
        self._began = 0
        self._began_at = self._since_at = 0.0
        self._usual: float | None = None
        self._loses = 0.0
        self._blocks = 0
        self._back = 0
        self._ran = 0.0

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next durations show, in seconds per step."""
        if context.phase in PAUSES:
            return
        block = self._block
        for at, (step, time, seconds) in enumerate(zip(*column, strict=True)):
            if 0 < seconds < float("inf"):
                if not block:
                    self._began, self._began_at = step, time - seconds
                block.append(seconds)
                if len(block) == BLOCK:
                    block.sort()
                    level = (block[BLOCK // 2 - 1] + block[BLOCK // 2]) / 2
                    block.clear()
                    self._ran += BLOCK * level
                    yield from self._judge(at, step, level) if self._usual is None else self._watch(at, step, level)

    def _judge(self, at: int, step: int, level: float) -> Iterator[Detection]:
        if len(self._window) < ENOUGH:
            self._window.add(level)
            return
        usual = self._window.median()
        least = max((self._ratio - 1) * usual, self._scales * self._window.spread())
        if level - usual <= least:
            # The slower blocks join only now: those of a lasting slowdown must not become part of the usual duration.
            for held in (*self._slower, level):
                self._window.add(held)
            self._slower.clear()
            return
        if not self._slower:
            self._since, self._since_at = self._began, self._began_at
        self._slower.append(level)
        self._loses = BLOCK * (sum(self._slower) - len(self._slower) * usual)
        if len(self._slower) >= LASTING and self._loses >= min(self._lost, SHARE * self._ran):
            now = sorted(self._slower)[len(self._slower) // 2]
            self._slower.clear()
            self._usual, self._blocks, self._back = usual, 0, 0
            yield self._found(at, step, now)

    def _found(self, at: int, step: int, level: float) -> Detection:
        usual = self._usual or 0.0
        text = (
            f"steps take {duration(level)} since about step {self._since:,}, {percent(level / usual - 1)} more than "
            f"the {duration(usual)} before: {percent(1 - usual / level)} of the throughput is lost at step {step:,}"
        )
        severity: Severity = "warning" if self._loses >= WORTH else "info"
        return Detection("ThroughputRegression", severity, at, text, evidence=slower(level, usual, self._since_at))

    def _watch(self, at: int, step: int, level: float) -> Iterator[Detection]:
        usual = self._usual or 0.0
        self._blocks += 1
        self._back = self._back + 1 if level <= (1 + (self._ratio - 1) / 2) * usual else 0
        if self._back >= RETURNED:
            text = f"steps take {duration(level)} again at step {step:,}"
        elif self._blocks >= USUAL:
            text = f"steps have taken {duration(level)} for {USUAL * BLOCK:,} samples: this is the new normal"
            self._window.clear()
        else:
            before, self._loses = self._loses, self._loses + BLOCK * (level - usual)
            if before < WORTH <= self._loses:
                yield self._found(at, step, level)
            return
        self._usual = None
        yield Detection("ThroughputRegression", "warning", at, text, over=True)
