"""Detect a step that takes much longer than those before it, except for scheduled pauses.

A schedule has the steps at which a training pauses on purpose: to evaluate, to save, to load the next part of its data.
In real logs, 95 of 100 steps that are much slower than their neighbours are such pauses, so a pause that fits a schedule must
not be reported. But with a dozen earlier pauses, nearly every step lies at equal distance from two of them. A schedule is
therefore accepted only where random pauses would hardly fit as well.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from math import inf, isfinite
from typing import NamedTuple

from trackside.totals.phases import PAUSES
from trackside_daemon.detectors.base import Column, Context, Detection, Episode, SlowSteps, slower
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.robust import SortedWindow
from trackside_daemon.model.text import duration, factor

BEFORE = 50  # recent samples that a step is compared with: at most BEFORE, at least ENOUGH
ENOUGH = 16

# Thresholds for remembering a pause, lower than those for reporting, so that a pause near the limit is remembered: part of
# the excess, and robust standard deviations.
LEARNT_PART, LEARNT_SCALES = 0.8, 3.0

INSTANT = 1e-12  # seconds: what is shorter is no step

# Relative resolution of logged times: to the millisecond or to a per mille. Equal durations differ by this much.
QUANTUM = 1e-3

APART = 3  # slow steps that are at most so many samples apart are one problem, or one pause
CALM = 20  # samples without a slow step that end the alert
USUAL = 1000  # samples after which slow steps are the new normal

# After USED_TO reported slow steps among LATELY samples, none shorter by more than `ALIKE`, another is only info.
USED_TO, LATELY = 3, 10_000

WORTH = 60.0  # seconds lost by one step from which it is a warning; less is info

SPAN = 1000.0  # seconds of the run after which the floor of one second is a thousandth of its time, and grows

KEPT = 64  # pauses that are remembered
SHORTEST = 4  # Shortest gap in samples. Anything more frequent is not a pause but the normal duration of some steps.
ALIKE = 3.0  # factor by which a pause may be longer than the others of its schedule
CROWDED = 10  # slow steps are crowded if there is one in so many steps, over all that are remembered
OFF = 2.0  # samples by which a pause may come early or late: less than `SHORTEST`, or a pause would follow itself
NEGLIGIBLE = 1e-4  # probability that needs no further proof, even with as many candidate gaps as pauses

# A schedule of steps is accepted if random pauses would fit as well with a smaller probability than this.
CHANCE = 0.03

CHANCE_BY_TIME = 0.01  # the same for schedules by time, which are rarer and need more proof


class Schedule:
    """Recent pauses, and whether another one fits their schedule. Places are steps, or seconds.

    Args:
        start: The place of the first sample.
        chance: See `CHANCE`.
    """

    __slots__ = ("_accepted", "_pauses", "_start")

    def __init__(self, start: float, *, chance: float) -> None:
        self._start = start
        self._accepted = chance
        self._pauses: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def note(self, place: float, excess: float) -> None:
        """Record a pause at *place* that took *excess* times as long as a step, in addition to that step."""
        self._pauses.append((place, excess))

    def forget_from(self, place: float) -> None:
        """Forget the pauses from *place* on, because the training went back to it."""
        self._pauses = deque((pause for pause in self._pauses if pause[0] < place), maxlen=KEPT)

    def crowded(self, place: float, unit: float) -> bool:
        """Return whether recent slow steps are so many that they are normal, as on a noisy host: nothing to report."""
        return len(self._pauses) == KEPT and place - self._pauses[0][0] < KEPT * CROWDED * unit

    def expects(self, place: float, excess: float, unit: float) -> bool:
        """Return whether a pause at *place* is due; *unit* is the distance of two samples there.

        Schedules count from the first step, so a gap that divides the place itself needs no third pause.
        """
        alike = [earlier for earlier, took in self._pauses if took * ALIKE >= excess]
        if not alike:
            return False
        known = self._pauses[0][0] if len(self._pauses) == KEPT else self._start
        density = min(1.0, len(alike) * unit / max(unit, place - known))
        oldest = alike[0] - OFF * unit
        for earlier in reversed(alike):
            gap = place - earlier
            if gap < SHORTEST * unit:
                continue
            whole = round(place / gap)
            chance = float(len(alike))
            if whole >= 2 and abs(place - whole * gap) <= whole * unit:
                chance *= min(1.0, (2 * abs(place - whole * gap) + unit) / gap)
            if earlier - gap > oldest:
                chance *= _chance(alike, gap, earlier - gap, unit, density)
            if chance < self._accepted:
                return True
        return False


def _chance(alike: list[float], gap: float, due: float, unit: float, density: float) -> float:
    """Return the probability that random pauses lie where one is due, one gap before that, and so on."""
    chance = 1.0
    while chance > NEGLIGIBLE:
        at = bisect_left(alike, due)
        if at == len(alike) or (at and due - alike[at - 1] < alike[at] - due):
            at -= 1
        off = abs(alike[at] - due)
        if off > OFF * unit:
            break
        chance *= min(1.0, (2 * off / unit + 1) * density)
        due = alike[at] - gap
    return chance


class Slow(NamedTuple):
    """A slow step: its duration and the usual one in seconds; *derived* if durations come from the times of pushes."""

    step: int
    time: float
    seconds: float
    usual: float
    derived: bool = False

    @property
    def excess(self) -> float:
        """Duration beyond the usual one, as a fraction of that."""
        return self.seconds / self.usual - 1

    def evidence(self) -> dict[str, float]:
        """Return the evidence for the alert."""
        return slower(self.seconds, self.usual, self.time - self.seconds)

    def text(self) -> str:
        """Return the description for the alert."""
        what = f"step {self.step:,} took {duration(self.seconds)}"
        if self.derived:  # a script that pushes at the end of a step spent this time in the next step
            what = f"{duration(self.seconds)} passed between the pushes of step {self.step:,} and the next"
        return (
            f"{what}, {factor(self.seconds / self.usual)} the {duration(self.usual)} of the steps before: "
            f"{duration(self.seconds - self.usual)} lost, and no schedule of pauses explains it"
        )


class SlowStep:
    """`SlowStep`: steps that take a multiple of the recent median.

    They must also lie robust deviations above it and lose `Context.lost` seconds or more, and as many more for each `SPAN` seconds of the run, up to `WORTH`: on a noisy host, the longer steps of a long run are only counted.
    """

    alerts: tuple[str, ...] = ("SlowStep",)

    def __init__(self, thresholds: DetectorThresholds = DEFAULTS) -> None:
        self._ratio, self._scales = thresholds.slow_step_ratio, thresholds.slow_step_scales
        self._learnt = 1 + LEARNT_PART * (self._ratio - 1)
        self._learnt_scales = min(LEARNT_SCALES, self._scales)
        self._lost = 0.0
        self._window = SortedWindow(BEFORE)
        self._by_step: Schedule | None = None
        self._by_time: Schedule | None = None
        self._step = 0
        self._unit = 1
        self._index = 0
        self._last_slow = -APART - 1
        self._pause = (-APART - 1, 0.0)
        self._episode = Episode("SlowStep", CALM)
        self._usual = 0.0  # seconds of a step before the alert began
        self._reported: deque[tuple[int, float]] = deque(maxlen=2 * USED_TO)
        self._ran = 0.0

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:
        """Yield what the next durations show, in seconds per step."""
        if context.phase in PAUSES:
            return
        self._lost = context.lost
        for at, (step, time, seconds) in enumerate(zip(*column, strict=True)):
            if INSTANT < seconds < inf:
                self._advance(step, time)
                if len(self._window) >= ENOUGH and seconds > self._learnt * (usual := self._window.median()):
                    yield from self._exceeds(at, Slow(step, time, seconds, usual, context.derived), context.slow)
                if self._episode.fires:
                    yield from self._watch(at, step, seconds)
                self._window.add(seconds)
                self._ran += seconds

    def _advance(self, step: int, time: float) -> None:
        if self._by_step is None:
            self._by_step = Schedule(step, chance=CHANCE)
        elif step < self._step:
            self._by_step.forget_from(step)
        elif step > self._step:
            self._unit = step - self._step
        if self._by_time is None and isfinite(time):
            self._by_time = Schedule(time, chance=CHANCE_BY_TIME)
        self._step = step
        self._index += 1

    def _exceeds(self, at: int, slow: Slow, counted: SlowSteps) -> Iterator[Detection]:
        scales = (slow.seconds - slow.usual) / (self._window.spread() + QUANTUM * slow.usual)
        if scales <= self._learnt_scales:
            return
        exceeds = slow.seconds > self._ratio * slow.usual and scales > self._scales
        if exceeds and not self._due(slow):
            counted.count += 1
            counted.seconds += slow.seconds - slow.usual
            if self._is_slow(slow.seconds, slow.usual) and not self._crowded(slow):
                yield from self._report(at, slow)
        if self._by_step is not None:
            self._by_step.note(slow.step, slow.excess)
        if self._by_time is not None and isfinite(slow.time):
            self._by_time.note(slow.time, slow.excess)

    def _report(self, at: int, slow: Slow) -> Iterator[Detection]:
        if self._index - self._last_slow > APART:
            if not self._episode.fires:
                self._usual = slow.usual
            worth = slow.seconds - slow.usual >= WORTH and not self._is_used_to(slow.excess)
            yield self._episode.report("warning" if worth else "info", at, slow.text(), slow.evidence())
            self._reported.append((self._index, slow.excess))
        self._last_slow = self._index

    def _is_used_to(self, excess: float) -> bool:
        """Return whether slow steps of this length were reported often enough."""
        since = self._index - LATELY
        return sum(at > since and ALIKE * was >= excess for at, was in self._reported) >= USED_TO

    def _is_slow(self, seconds: float, usual: float) -> bool:
        floor = self._lost * min(WORTH, max(1.0, self._ran / SPAN))
        return seconds > self._ratio * usual and seconds - usual >= floor

    def _crowded(self, slow: Slow) -> bool:
        return self._by_step is not None and self._by_step.crowded(slow.step, self._unit)

    def _due(self, slow: Slow) -> bool:
        """Return whether this is a scheduled pause, or one of the slow steps right after it."""
        paused_at, paused = self._pause
        if self._index - paused_at <= APART and slow.excess <= paused:
            return True
        due = self._by_step is not None and self._by_step.expects(slow.step, slow.excess, self._unit)
        if not due and self._by_time is not None and isfinite(slow.time):
            due = self._by_time.expects(slow.time, slow.excess, slow.usual * self._unit)
        if due:
            self._pause = (self._index, slow.excess)
        return due

    def _watch(self, at: int, step: int, seconds: float) -> Iterator[Detection]:
        if self._episode.follow(calm=not self._is_slow(seconds, self._usual)):
            yield self._episode.end(at, f"steps take {duration(self._window.median())} again at step {step:,}")
        elif self._episode.seen > USUAL:
            text = f"steps have taken {duration(self._window.median())} for {USUAL:,} samples: this is the new normal"
            yield self._episode.end(at, text)
