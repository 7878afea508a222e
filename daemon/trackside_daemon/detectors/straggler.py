"""Detect a rank that is slower than the others by its own time.

The step time is the same on all ranks, because they wait for the slowest.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

from trackside_daemon.detectors.run_view import RunAlert, RunClock, RunProgress
from trackside_daemon.model.families import training
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.records import Alert
from trackside_daemon.model.text import duration
from trackside_daemon.model.time_ledger import Excess, excess, lower_median, own_times, slow_from
from trackside_daemon.model.troubles import TROUBLES

STEPS = 20  # least steps of a window

WINDOWS = 50  # recent windows that are remembered per rank
# A rank becomes a straggler when it is slow in SHARE of the windows, or by FAR times the factor's excess in MOST of the LATEST
# ones. It has recovered when it is slow in none of these.
SHARE = 0.6
MOST, LATEST = 3, 4
FAR = 2.0

BEFORE = 8  # windows that a rank's own past has at least

_MASK = (1 << WINDOWS) - 1
_LATEST = (1 << LATEST) - 1


class WindowStart(NamedTuple):
    """Steps and seconds by phase of a rank at the start of a window."""

    steps: float
    phases: Mapping[str, float]


class Straggler(RunAlert):
    """`StragglerRank` of one run: of several stragglers, the slowest is reported.

    Args:
        run: The run.
        window: Least seconds between two comparisons of the ranks.
        slower: Factor over the time of the median rank from which a rank is slow.
    """

    alert = "StragglerRank"
    ends = "rank {rank} of run {run} is as fast as the others again"

    def __init__(self, run: RunProgress, window: float, slower: float) -> None:
        super().__init__(run)
        self._slower = slower
        self._window = window
        self._ratios: dict[int, float] | None = None
        self._marks: dict[int, WindowStart] = {}
        self._slow: dict[int, int] = {}
        self._far: dict[int, int] = {}
        self._calm_since = 0.0
        self._past: dict[int, deque[float]] = {}  # its times in the last windows in which it was not slow
        # Spreads the comparisons of many runs over the ticks; hash() of a text would differ after each restart.
        self._began = run.at - crc32(run.id.encode()) % 1000 / 1000 * window
        self._steps = 0.0

    def restore(self, kept: Alert) -> None:
        """Continue an alert of the previous daemon, as if the rank had been slow in all windows."""
        super().restore(kept)
        self._slow[self._rank or 0] = _MASK

    def shown(self) -> Iterator[Batch]:
        """Yield the ratios of the last window, once."""
        if self._ratios is not None:
            samples = [
                Sample(training.STRAGGLER_RATIO, (self._run.name, str(rank)), ratio)
                for rank, ratio in self._ratios.items()
            ]
            yield Batch(f"training:{self._run.id}.{self._run.attempt}:straggler", samples, complete=True)
            self._ratios = None

    def _changes(self, clock: RunClock) -> Iterator[Finding]:
        run = self._run
        if len(run.ranks) < 2 or run.steps - self._steps < STEPS or clock.at - self._began < self._window:
            return
        began, self._began, self._steps = clock.now - (clock.at - self._began), clock.at, run.steps
        phases = self._phases()
        if len(phases) >= 2:
            yield from self._judge(phases, clock, began)

    def end(self, clock: RunClock, since: float | None = None) -> Iterator[Finding]:
        """End the straggler: it is as fast as the others *since* a Unix time, or has ended."""
        if self._rank is not None:
            self._slow[self._rank] = 0
        yield from super().end(clock, since)
        if self._run.state:
            self._ratios = {}

    def _phases(self) -> dict[int, dict[str, float]]:
        """Return seconds per step by phase in the window, for each rank that made steps and pushes its phases."""
        found = {}
        for number, rank in self._run.ranks.items():
            if rank.ended or not rank.phases:
                self._marks.pop(number, None)
                continue
            mark = WindowStart(rank.steps, dict(rank.phases))
            before = self._marks.get(number)
            self._marks[number] = mark
            if before is not None and mark.steps > before.steps:
                steps = mark.steps - before.steps
                found[number] = {
                    phase: max(0.0, seconds - before.phases.get(phase, 0.0)) / steps
                    for phase, seconds in mark.phases.items()
                }
        return found

    def _judge(self, phases: Mapping[int, Mapping[str, float]], clock: RunClock, began: float) -> Iterator[Finding]:
        """Judge a window that began at a Unix time."""
        each = list(phases.values())
        times = dict(zip(phases, own_times(each), strict=True))
        usual = lower_median(times.values())
        self._ratios = {number: time / usual for number, time in times.items()} if usual > 0 else {}
        least = max(self._slower * usual, slow_from(times.values()))
        for number, time in times.items():
            is_slow = time > least > 0
            if number == self._rank and not is_slow and self._slow.get(number, 0) & 1:
                self._calm_since = began
            self._slow[number] = (self._slow.get(number, 0) << 1 | is_slow) & _MASK
            is_far = is_slow and time > (1 + FAR * (self._slower - 1)) * usual
            self._far[number] = (self._far.get(number, 0) << 1 | is_far) & _LATEST
            if not is_slow:
                self._past.setdefault(number, deque(maxlen=WINDOWS)).append(time)
        if self._rank is not None and not self._slow.get(self._rank, 0) & _LATEST:
            yield from self.end(clock, self._calm_since)
        slow = {number: time for number, time in times.items() if self._is_straggler(number)}
        if self._rank is None and slow:
            self._rank = max(slow, key=lambda number: slow[number])
            most = excess(each, list(phases).index(self._rank))
            yield self._finding(slow, usual, most, clock)

    def _is_straggler(self, number: int) -> bool:
        """Return whether a rank has been slow for long, or has just become far slower."""
        far, slow = self._far[number], self._slow[number]
        return bool(slow & 1) and ((far & 1 and far.bit_count() >= MOST) or slow.bit_count() >= SHARE * WINDOWS)

    def _finding(self, slow: Mapping[int, float], usual: float, most: Excess, clock: RunClock) -> Finding:
        number, others = self._rank or 0, len(slow) - 1
        time = slow[number]
        more = f"; {others} more ranks are slow too" if others > 1 else "; one more rank is slow too" if others else ""
        factor = f"{time / usual:.2f} times the {duration(usual)}" if usual > 0 else "while others take no time"
        summary = f"rank {number} of run {self._run.name} needs {duration(time)} per step, without waiting, {factor} of the median rank; {most.text(number)}{more}"
        past = self._past.get(number, ())
        own = lower_median(past) if len(past) >= BEFORE else 0.0
        before = (
            f"Before, it took {duration(own)}: now {time / own:.2f} times its own past. "
            if own > 0
            else "It was not faster before, as far as is known. "
        )
        far = self._far[number].bit_count()
        count, last = (far, LATEST) if far >= MOST else (self._slow[number].bit_count(), WINDOWS)
        text = (
            f"{before}It was slow in {count} of the last {last} windows of {STEPS} steps or more, and all other ranks wait for it. "
            f"{TROUBLES['StragglerRank'].advice()}"
        )
        evidence = {"value": time, "usual": usual} | ({"past": own} if own > 0 else {})
        return self.report("warning", clock, summary, text, evidence)
