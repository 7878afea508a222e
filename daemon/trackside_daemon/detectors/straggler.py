"""A rank that is slower than its peers by its own time: in total step time all ranks look equal, as they wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from trackside_daemon.detectors.wording import span
from trackside_daemon.model.metric import Batch, Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from trackside_daemon.detectors.clock import Clock
    from trackside_daemon.detectors.run_rank import Rank
    from trackside_daemon.detectors.run_view import Run
    from trackside_daemon.model.finding import Finding
    from trackside_daemon.model.records import Alert

OWN = ("data", "forward")
"""Phases of a rank's own, in which it waits for nobody."""

OWN_BESIDE_SYNC = ("backward", "optimizer")
"""So are these where the waiting is a phase of its own; else it is in them, as DDP reduces gradients in backward()."""

STEPS, SECONDS = 20, 10.0
"""A window is of so many steps and so long, at least."""

WINDOWS = 50
SHARE, CALM = 0.6, 0.3
"""A rank is a straggler that was slow in this share of the last windows, until it is slow in no more than that."""

SLOWER, SCORE = 1.1, 4.0
"""It is slow that takes so many times what the median rank takes, and lies so many robust deviations above it."""

_SCALE, _NOISE = 1.4826, 0.02
_MASK = (1 << WINDOWS) - 1


RATIO = Metric(
    "trackside_training_straggler_ratio",
    "gauge",
    "The rank's own time a step (phases in which it waits for nobody) over that of the median rank on this "
    "machine, over 20 steps and 10 s or more; absent where the run has one rank here, or tells no phases.",
    ("run", "rank"),
    "ratio",
)


class Mark(NamedTuple):
    """Where a rank was when a window began: its steps, and its own seconds."""

    steps: float
    seconds: float


class Straggler:
    """`StragglerRank` of one run: of several it is said of the slowest.

    Args:
        window: Seconds in which the ranks are compared once, at least.
        slower: It is slow that takes so many times what the median rank takes.
    """

    alert = "StragglerRank"

    def __init__(self, run: Run, window: float = SECONDS, slower: float = SLOWER) -> None:
        self._run = run
        self._slower = slower
        self._window = window
        self._adopted: Alert | None = None
        self._ratios: dict[int, float] | None = None
        self._marks: dict[int, Mark] = {}
        self._slow: dict[int, int] = {}
        self._began = run.at - crc32(run.id.encode()) % 1000 / 1000 * window  # not all runs at the same tick
        self._steps = 0.0
        self._said: int | None = None

    def restore(self, kept: Alert) -> None:
        """A rank was slow in all windows before this daemon."""
        self._adopted, self._said = kept, int(kept.labels.get("rank", 0))
        self._slow[self._said] = _MASK

    def shown(self) -> Iterator[Batch]:
        """The ratios of the last window, once."""
        if self._ratios is not None:
            samples = [Sample(RATIO, (self._run.name, str(rank)), ratio) for rank, ratio in self._ratios.items()]
            yield Batch(f"training:{self._run.id}.{self._run.attempt}:straggler", samples, complete=True)
            self._ratios = None

    def evaluate(self, clock: Clock) -> Iterator[Finding]:
        """Once a window, which is when each rank is looked at."""
        run = self._run
        if self._adopted is not None:
            yield run.again(self._adopted, clock.now)
            self._adopted = None
        if len(run.ranks) < 2 or run.steps - self._steps < STEPS or clock.at - self._began < self._window:
            return
        self._began, self._steps = clock.at, run.steps
        times = self._times()
        if len(times) >= 2:
            yield from self._judge(times, clock)

    def end(self, clock: Clock) -> Iterator[Finding]:
        """It is as fast as the others, or has ended."""
        if self._said is not None:
            text = f"rank {self._said} of run {self._run.name} is as fast as the others again"
            yield self._run.alarm("StragglerRank", "warning", clock.now, text, rank=self._said, over=True)
        self._said = None
        if self._run.state:
            self._ratios = {}

    def _times(self) -> dict[int, float]:
        """Own seconds a step in the window, of each rank that made steps and tells its phases."""
        phases = OWN + OWN_BESIDE_SYNC if self._run.syncs else OWN
        times = {}
        for number, rank in self._run.ranks.items():
            if rank.ended or not rank.phases:
                self._marks.pop(number, None)
                continue
            mark = Mark(rank.steps, _own(rank, phases))
            before = self._marks.get(number)
            self._marks[number] = mark
            if before is not None and mark.steps > before.steps:
                times[number] = max(0.0, mark.seconds - before.seconds) / (mark.steps - before.steps)
        return times

    def _judge(self, times: Mapping[int, float], clock: Clock) -> Iterator[Finding]:
        usual = _lower_median(times.values())
        self._ratios = {number: time / usual for number, time in times.items()} if usual > 0 else {}
        spread = _lower_median(abs(time - usual) for time in times.values())
        least = max(self._slower * usual, usual + SCORE * (_SCALE * spread + _NOISE * usual))
        for number, time in times.items():
            self._slow[number] = (self._slow.get(number, 0) << 1 | (time > least > 0)) & _MASK
        slow = {number: time for number, time in times.items() if self._share(number) >= SHARE}
        if self._said is not None and self._share(self._said) <= CALM:
            yield from self.end(clock)
        if self._said is None and slow:
            self._said = max(slow, key=lambda number: slow[number])
            yield self._finding(self._said, slow[self._said], usual, len(slow) - 1, clock)

    def _share(self, number: int) -> float:
        return self._slow.get(number, 0).bit_count() / WINDOWS

    def _finding(self, number: int, time: float, usual: float, others: int, clock: Clock) -> Finding:
        run = self._run
        more = f"; {others} more ranks are slow too" if others > 1 else "; one more rank is slow too" if others else ""
        factor = f"{time / usual:.2f} times the {span(usual)}" if usual > 0 else "where others take no time"
        summary = f"rank {number} of run {run.name} takes {span(time)} of its own for a step, {factor} of the median rank{more}"
        text = (
            f"So it was in {self._share(number):.0%} of the last {WINDOWS} windows of {STEPS} steps or more, and all "
            f"others wait for it. Look at its GPU's clocks, temperature and throttling, and at what else runs on its CPUs."
        )
        evidence = {"value": time, "usual": usual}
        return run.alarm("StragglerRank", "warning", clock.now, summary, text, rank=number, evidence=evidence)


def _own(rank: Rank, phases: tuple[str, ...]) -> float:
    return sum(rank.phases.get(phase, 0.0) for phase in phases)


def _lower_median(values: Iterable[float]) -> float:
    """Of two the lower one: with two ranks the slow one must not be half of what it is measured by."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
