"""Detect steps that became slower and stay slower."""

from collections.abc import Iterator

from trackside.totals.phases import PAUSES
from trackside_daemon.detectors.base import Column, Context, Detection, Episode, slower
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.robust import SortedWindow
from trackside_daemon.model.text import duration, percent

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
SCALES = 3.0


class Throughput:
    """`ThroughputRegression`: for 40 samples, steps take a multiple of the time before.

    The increase must also exceed `SCALES` deviations of the levels, and all slower steps together must lose `Context.lost` seconds,
    or `SHARE` of the run's time if that is less.
    """

    alerts: tuple[str, ...] = ("ThroughputRegression",)

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        self._ratio = thresholds.throughput_ratio
        self._lost = 0.0
        self._block: list[float] = []
        self._window = SortedWindow(BEFORE)
        self._slower: list[float] = []
        self._since = 0
        self._began = 0
        self._began_at = self._since_at = 0.0
        self._episode = Episode("ThroughputRegression", RETURNED)
        self._usual = 0.0  # seconds of a step before it became slower
        self._loses = 0.0
        self._ran = 0.0

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next durations show, in seconds per step."""
        if context.phase in PAUSES:
            return
        self._lost = context.lost
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
                    yield from self._watch(at, step, level) if self._episode.fires else self._judge(at, step, level)

    def _judge(self, at: int, step: int, level: float) -> Iterator[Detection]:
        if len(self._window) < ENOUGH:
            self._window.add(level)
            return
        usual = self._window.median()
        least = max((self._ratio - 1) * usual, SCALES * self._window.spread())
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
            self._usual = usual
            yield self._found(at, step, now)

    def _found(self, at: int, step: int, level: float) -> Detection:
        usual = self._usual
        text = (
            f"steps take {duration(level)} since about step {self._since:,}, {percent(level / usual - 1)} more than "
            f"the {duration(usual)} before: {percent(1 - usual / level)} of the throughput is lost at step {step:,}"
        )
        evidence = slower(level, usual, self._since_at)
        return self._episode.report("warning" if self._loses >= WORTH else "info", at, text, evidence)

    def _watch(self, at: int, step: int, level: float) -> Iterator[Detection]:
        episode, usual = self._episode, self._usual
        if episode.follow(calm=level <= (1 + (self._ratio - 1) / 2) * usual):
            yield episode.end(at, f"steps take {duration(level)} again at step {step:,}")
        elif episode.seen >= USUAL:
            self._window.clear()
            text = f"steps have taken {duration(level)} for {USUAL * BLOCK:,} samples: this is the new normal"
            yield episode.end(at, text)
        else:
            before, self._loses = self._loses, self._loses + BLOCK * (level - usual)
            if before < WORTH <= self._loses:
                yield self._found(at, step, level)
