"""The level of a noisy series now and before, and an alert that follows from the two."""

from __future__ import annotations

from collections import deque
from math import isfinite, sqrt
from typing import TYPE_CHECKING

from trackside_daemon.detectors.base import Detection
from trackside_daemon.model.robust import SortedWindow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Column, Context
    from trackside_daemon.model.finding import Severity

_MEDIAN = 1.2533  # standard error of a median, in those of a mean


class Levels:
    """The last *now* samples, and the *usual* samples before them.

    Args:
        now: Samples of the present level.
        usual: Samples of the level before.

    Attributes:
        recent: The last samples.
        before: The samples before those.
    """

    __slots__ = ("_now", "before", "recent")

    def __init__(self, now: int, usual: int) -> None:
        self._now = now
        self.recent = SortedWindow(now)
        self.before = SortedWindow(usual)

    def add(self, value: float, *, learns: bool = True) -> None:
        """Add a finite sample; the one that is no longer recent joins those before, if the level *learns*."""
        if len(self.recent) == self._now and learns:
            self.before.add(self.recent.arrived[0])
        self.recent.add(value)

    @property
    def is_full(self) -> bool:
        """There are enough samples of the present level."""
        return len(self.recent) == self._now

    @property
    def now(self) -> float:
        """The median of the last samples."""
        return self.recent.median()

    @property
    def usual(self) -> float:
        """The median of the samples before; there must be one."""
        return self.before.median()

    def error(self) -> float:
        """Return the standard error of `now`, by the scatter of the samples before."""
        return _MEDIAN * self.before.spread() / sqrt(self._now)


class SampleAlert:
    """A detector that evaluates each finite sample, and fires from one of them to a later one. Subclasses define `judge`.

    Attributes:
        alerts: The alert's name.
        severity: Its severity, a warning unless the class has another.
        firing: It fires.
        firing_for: The samples for which it has fired.
    """

    alerts: tuple[str, ...]
    severity: Severity = "warning"

    def __init__(self) -> None:
        self.firing = False
        self.firing_for = 0

    def judge(self, step: int, value: float) -> str | None:
        """Return why the alert fires at this sample, or while it fires, why it ends; None if nothing changes."""
        raise NotImplementedError

    def evaluate(self, column: Column, context: Context) -> Iterator[Detection]:  # noqa: ARG002  needs no other key
        """Yield what the next samples show."""
        for at, (step, value) in enumerate(zip(column.steps, column.values, strict=True)):
            if not isfinite(value):
                continue
            self.firing_for += self.firing
            text = self.judge(step, value)
            if text is not None:
                yield Detection(self.alerts[0], self.severity, at, text, over=self.firing)
                self.firing = not self.firing
                self.firing_for = 0


class LevelAlert(SampleAlert):
    """A detector that compares the level of the last samples with that before. Subclasses define `judge_levels`.

    Attributes:
        spans: Samples of the present level, and of the level before, which does not follow while the alert fires.
        least: Samples of the level before that are needed.
        signed: The sign of a sample counts.
        levels: The two levels.
    """

    spans: tuple[int, int]
    least = 0
    signed = False

    def __init__(self) -> None:
        super().__init__()
        self.levels = Levels(*self.spans)

    def judge(self, step: int, value: float) -> str | None:
        """Add the sample, and judge when there are enough."""
        self.levels.add(value if self.signed else abs(value), learns=not self.firing)
        return self.judge_levels(step) if self.levels.is_full and len(self.levels.before) >= self.least else None

    def judge_levels(self, step: int) -> str | None:
        """Return what changes at the sample of this step; None if nothing does."""
        raise NotImplementedError


class Shares:
    """The mean of the last samples."""

    __slots__ = ("_samples", "_size", "_sum")

    def __init__(self, size: int) -> None:
        self._size = size
        self._sum = 0.0
        self._samples: deque[float] = deque()

    def add(self, value: float) -> float | None:
        """Add a sample, and return the mean; None as long as there are too few."""
        self._samples.append(value)
        self._sum += value
        if len(self._samples) > self._size:
            self._sum -= self._samples.popleft()
        return self._sum / self._size if len(self._samples) == self._size else None
