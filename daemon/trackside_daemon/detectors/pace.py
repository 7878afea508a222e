"""The pace of a run: the usual gaps between its pushes, and the silence after which it is stalled."""

from collections.abc import Sequence
from math import ceil

from trackside_daemon.model.robust import SortedWindow
from trackside_daemon.model.stall import ENOUGH_STEPS

GAPS = 512  # the number of recent gaps whose 99th percentile counts

# A silence is a stall if it exceeds the usual gap by the first factor and the longest gap by the second.
OVER_USUAL, OVER_LONGEST = 5.0, 3.0

# Least gaps of a pace, and least steps in any gaps.
ENOUGH = 3
MANY_STEPS = 100

# Seconds of silence that are a stall before there is a pace, and in a pause of a kind that is new.
BEGINNING = 1800.0

# A repeated pause may last so many seconds, and so many times the longest gap, since evaluations differ in size.
PAUSE, OVER_PAUSE = 600.0, 5.0

# The longest gap is remembered for so many gaps and seconds, and for twice that at most, since pauses recur.
REMEMBERED = 2000
REMEMBERED_SECONDS = 12 * 3600.0

# Least seconds of silence that are a stall for a pace seeded from totals, which do not show the run's pauses.
SEEDED = 240.0

OVER_MEAN = 10.0  # a silence of so many mean gaps is a stall for such a pace
# The share of the deadline after which a silence is a warning, and the least share of a floor from which on it is one after so
# many seconds, so that steps of milliseconds have one within 30 s.
WARNING, WARNING_FLOOR, SOON = 0.6, 0.45, 27.0


class Longest:
    """The longest recent gap."""

    __slots__ = ("_before", "_count", "_current", "_since")

    def __init__(self) -> None:
        self._current = self._before = self._since = 0.0
        self._count = 0

    def add(self, gap: float, at: float) -> None:
        """Add a gap, in seconds, that ended *at* this time, in watched seconds."""
        self._count += 1
        if self._count > REMEMBERED and at - self._since > REMEMBERED_SECONDS:
            self._before, self._current = self._current, 0.0
            self._count, self._since = 0, at
        self._current = max(self._current, gap)

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return max(self._current, self._before)


class PushPace:
    """The gaps between pushes, in seconds: a training that pushes each 100 steps is silent for 99 of them.

    Attributes:
        floor: Seconds of silence that are never a stall.
        longest: The longest recent one.
    """

    def __init__(self, floor: float) -> None:
        self.floor = floor
        self._gaps = SortedWindow(GAPS)
        self.longest = Longest()
        self.steps, self.seconds = 0, 0.0  # from the first step on, so that the start of the run does not count
        self._seeded, self.beginning = 0.0, BEGINNING

    def begin_like(self, start_up: float) -> None:
        """Allow the first steps what an earlier attempt needed, in seconds, as for a pause that is repeated; 0 if unknown."""
        if start_up:
            self.beginning = min(BEGINNING, max(PAUSE, OVER_PAUSE * start_up))

    def seed(self, count: float, usual: float, longest: float, gap: float) -> None:
        """Seed the pace from the totals of a run, which include the time before this daemon.

        Args:
            count: Steps that were timed.
            usual: The 99th percentile of the step durations, in seconds.
            longest: The longest step duration.
            gap: The mean gap between two pushes, in seconds.
        """
        if count >= ENOUGH_STEPS:
            self._seeded = max(SEEDED, OVER_USUAL * usual, OVER_LONGEST * longest, OVER_MEAN * gap)

    def add(self, gap: float, steps: int, at: float) -> None:
        """Add a gap of *gap* seconds, after which the run was *steps* further; *at* is in watched seconds."""
        self.steps, self.seconds = self.steps + steps, self.seconds + gap
        self._gaps.add(gap)
        self.longest.add(gap, at)

    @property
    def known(self) -> bool:
        """True once there are enough gaps for a pace."""
        return self.steps >= ENOUGH_STEPS and (len(self._gaps) >= ENOUGH or self.steps >= MANY_STEPS)

    @property
    def usual(self) -> float:
        """The 99th percentile of the recent gaps, in seconds."""
        ordered = self._gaps.ordered
        return ordered[ceil(0.99 * len(ordered)) - 1] if ordered else 0.0

    @property
    def deadline(self) -> float:
        """Seconds of silence after which the run is stalled."""
        return max(self.floor, self._own)

    @property
    def warning(self) -> float:
        """Seconds of silence after which there is a warning."""
        soon = max(WARNING_FLOOR * self.floor, min(SOON, WARNING * self.floor))
        return max(soon, WARNING * self._own)

    @property
    def _own(self) -> float:
        """Seconds that the steps and pauses of the run itself ask for."""
        if not self.known:
            return self._seeded or self.beginning
        return max(OVER_USUAL * self.usual, OVER_LONGEST * self.longest.seconds)


def restored_pace(floor: float, pushes: Sequence[tuple[float, int]]) -> PushPace:
    """Return the pace of a run that made these *pushes*: time, in Unix seconds, and step of each."""
    pace, (at, high) = PushPace(floor), pushes[0]
    for time, step in pushes:
        if step > high:
            pace.add(time - at, step - high, 0.0)
        if step != high:
            at, high = time, step
    return pace
