"""Evaluation of a query by the daemon, once per tick, over the newest values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import isfinite
from typing import NamedTuple

from trackside_daemon.alerts.rules.query import Function, Query
from trackside_daemon.model.families.training import RUN_INFO, STEP
from trackside_daemon.model.metric import Distribution, Metric

Baseline = Callable[[str, str, float], float | None]


POINTS = 12  # points per window: results are accurate to a twelfth of the window

# Share of the window that must be known before a rate, a mean or a prediction exists, because sampling has jitter.
FULL = 0.9
Labels = tuple[str, ...]
Values = dict[Labels, float]

START_SECONDS = 60.0  # a single value would be noise

SPARE = 64  # remembered series beyond the present ones before absent series are dropped


class SeriesWindow:
    """One series over a window of *seconds*.

    Args:
        function: Function over the window, see `trackside_daemon.alerts.rules.query.Query`.
        seconds: Length of the window.
        counter: The series is a counter: only its growth counts, and a fall is a reset to 0.
        ahead: Seconds from now to the predicted value.
        fresh: The first value counts as growth.
    """

    __slots__ = (
        "_ahead",
        "_count",
        "_counter",
        "_function",
        "_last",
        "_level",
        "_points",
        "_seconds",
        "_slope",
        "seen",
    )

    def __init__(
        self, function: Function, seconds: float, *, counter: bool, ahead: float = 0.0, fresh: bool = False
    ) -> None:
        self._function = function
        self._seconds = seconds
        self._counter = counter
        self._ahead = ahead
        self._last = 0.0 if fresh else None
        self._level = 0.0  # for a mean, the sum of the values; of a counter, its growth; else the last value
        self._count = 0
        self._points: deque[tuple[float, float, int]] = deque()
        self._slope = 0.0
        self.seen = 0.0

    def add(self, now: float, value: float) -> float | None:
        """Add the value at *now*, in seconds of the monotonic clock.

        Returns:
            The result of the function; None while the window has too few values.
        """
        self.seen = now
        grew_from_zero = not self._points and self._last is not None
        before = self._level
        self._accumulate(value)
        points, window = self._points, self._seconds
        if grew_from_zero:
            # The level before the first value, so that the value counts as growth.
            points.append((now, before, 0))
        # The tolerance is for ticks that come slightly early.
        elif not points or now - points[-1][0] >= window / POINTS - 1e-3:
            points.append((now, self._level, self._count))
            # One point at or before the begin of the window stays.
            while len(points) > 1 and points[1][0] <= now - window:
                points.popleft()
            # The slope changes little between two points, so it is computed only here.
            if self._function == "predict" or (self._function == "rate" and not self._counter):
                self._slope = _slope(points)
        return self._result(now, value)

    def _accumulate(self, value: float) -> None:
        self._count += 1
        if self._function == "mean":
            self._level += value
        elif not self._counter:
            self._level = value
        elif self._last is not None:
            # A counter that fell was reset to 0, so it has grown by its whole value.
            self._level += value - self._last if value >= self._last else value
        self._last = value

    def _result(self, now: float, value: float) -> float | None:
        since, level, count = self._points[0]
        if self._function == "change":
            return self._level - level
        covered = now - since
        if covered < FULL * self._seconds:
            return None
        if self._function == "mean":
            return (self._level - level) / (self._count - count)
        if self._function == "predict":
            return value + self._slope * self._ahead
        return (self._level - level) / covered if self._counter else self._slope


def _slope(points: deque[tuple[float, float, int]]) -> float:
    """Return the slope of the least-squares line, per second."""
    if len(points) < 2:
        return 0.0
    middle = sum(time for time, _, _ in points) / len(points)
    level = sum(value for _, value, _ in points) / len(points)
    spread = sum((time - middle) ** 2 for time, _, _ in points)
    return sum((time - middle) * (value - level) for time, value, _ in points) / spread


class FamilyValues(NamedTuple):
    """Newest values of a family."""

    metric: Metric
    values: Mapping[Labels, float | Distribution]


Families = dict[str, FamilyValues]


class OwnPast:
    """References of the values of each series: its best so far, the mean of its first minute, or its baseline.

    Args:
        query: The query, with its ``past``.
        baseline: Returns the value of a run's baseline, by the run's id, the key and the step.
    """

    def __init__(self, query: Query, baseline: Baseline) -> None:
        self._query, self._baseline = query, baseline
        self._better = min if query.above is not None else max
        self._starts: dict[tuple[str, Labels], tuple[float, float, int]] = {}
        self.references: dict[tuple[str, Labels], float] = {}

    def ratios(self, now: float, values: Values, places: Sequence[tuple[str, float]]) -> Values:
        """Return the values by those of the past that are greater than 0; *places* are the run's id and the step of each."""
        ratios, keys = {}, [(run, labels) for (run, _), labels in zip(places, values, strict=True)]
        for key, (_, step), (labels, value) in zip(keys, places, values.items(), strict=True):
            if isfinite(value) and key[0]:
                self._note(key, value, now, step)
                if (reference := self.references.get(key, 0.0)) > 0:
                    ratios[labels] = value / reference
        if len(self.references) + len(self._starts) > 2 * len(keys) + SPARE:
            present = {*keys}
            self.references = {key: value for key, value in self.references.items() if key in present}
            self._starts = {key: start for key, start in self._starts.items() if key in present}
        return ratios

    def _note(self, key: tuple[str, Labels], value: float, now: float, step: float) -> None:
        if self._query.past == "baseline":
            if (usual := self._baseline(key[0], self._query.key, step)) is not None:
                self.references[key] = usual
        elif self._query.past == "best":
            self.references[key] = self._better(self.references.get(key, value), value)
        elif key not in self.references:
            since, total, count = self._starts.get(key, (now, 0.0, 0))
            self._starts[key] = (since, total + value, count + 1)
            if now - since >= START_SECONDS:
                self.references[key] = (total + value) / (count + 1)


class Vector:
    """Series of a query.

    Attributes:
        labels: Label names of the latest result of `evaluate`, in the order of its keys.
    """

    def __init__(self, query: Query, baseline: Baseline = lambda *_: None) -> None:
        self.query = query
        self.labels: Labels = query.by or ()
        self._metric: Metric | None = None
        self._places: tuple[int, ...] = ()
        self._windows: dict[Labels, SeriesWindow | None] = {}
        self._rejected: set[Labels] = set()
        self._over = Vector(query.over) if query.over is not None else None
        self._minus = Vector(query.minus) if query.minus is not None else None
        self.past = None if query.past is None else OwnPast(query, baseline)
        self._only = [Vector(part) for part in query.only]
        self._unless = [Vector(part) for part in query.unless]

    def names(self) -> Iterator[str]:
        """Yield the names of the families that the query reads."""
        yield self.query.metric.name
        parts = (self._over, self._minus, *self._only, *self._unless)
        yield from chain.from_iterable(part.names() for part in parts if part is not None)

    @property
    def is_bound(self) -> bool:
        """True once the family was present, so that its labels are known."""
        return self._metric is not None

    def evaluate(self, now: float, families: Families) -> Values:
        """Return the series that meet the condition, with their values.

        Args:
            now: Monotonic time, in seconds.
            families: Present families, by name.
        """
        query = self.query
        family = families.get(query.metric.name)
        values = self._selected(now, family) if family is not None else {}
        if self._over is not None:
            right = self._joined(self._over, now, families)
            values = {
                labels: value / divisor
                for labels, value in values.items()
                if (divisor := right.get(self._key(labels), 0.0)) > 0
            }
        if self._minus is not None:
            right = self._joined(self._minus, now, families)
            values = {
                labels: value - right[key] for labels, value in values.items() if (key := self._key(labels)) in right
            }
        if self.past is not None:
            values = self.past.ratios(now, values, self._places_of(values, families) if values else ())
        return self._filtered(self._within_bounds(self._aggregated(values)), now, families)

    def _places_of(self, values: Values, families: Families) -> list[tuple[str, float]]:
        """Return the id of the run of each series, empty if it is unknown, and its rank's step."""
        name, run_id, place = RUN_INFO.labels.index("run"), RUN_INFO.labels.index("run_id"), self.labels.index("run")
        infos = families[RUN_INFO.name].values if RUN_INFO.name in families else ()
        ids = {labels[name]: labels[run_id] for labels in infos}
        steps = families[STEP.name].values if STEP.name in families else {}
        of_rank = [self.labels.index(label) for label in STEP.labels]
        found = [steps.get(tuple([labels[one] for one in of_rank]), 0.0) for labels in values]
        ids_of = [ids.get(labels[place], "") for labels in values]
        return [(id_, step if isinstance(step, float) else 0.0) for id_, step in zip(ids_of, found, strict=True)]

    def _selected(self, now: float, family: FamilyValues) -> Values:
        """Return the results of the function for the series that the matchers select."""
        if family.metric is not self._metric:
            self._bind(family.metric)
        results: Values = {}
        windows, rejected, windowed = self._windows, self._rejected, self.query.function != "value"
        for labels, value in family.values.items():
            # The class check skips distributions, and is cheaper than isinstance() over many series.
            if labels in rejected or value.__class__ is not float:
                continue
            if labels not in windows and not self._add_series(labels):
                continue
            if windowed:
                window = windows[labels]
                # A single NaN would spoil the sums of the whole window.
                result = window.add(now, value) if window is not None and isfinite(value) else None
                if result is not None:
                    results[labels] = result
            else:
                results[labels] = value
        if len(windows) + len(rejected) > len(family.values) + SPARE:
            self._expire(now, family)
        return results

    def _bind(self, metric: Metric) -> None:
        """Set the labels from a family that is seen for the first time."""
        self._metric = metric
        self.labels = metric.labels
        self._windows, self._rejected = {}, set()
        self._places = tuple(metric.labels.index(name) for name in self.query.on if name in metric.labels)

    def _add_series(self, labels: Labels) -> bool:
        """Add a new series, and return True if the matchers select it."""
        assert self._metric is not None  # noqa: S101  it was bound
        query, by_name = self.query, dict(zip(self._metric.labels, labels, strict=True))
        if not all(matcher.matches(by_name.get(matcher.label, "")) for matcher in query.matchers):
            # Remembered, so that the matchers run only once per series.
            self._rejected.add(labels)
            return False
        window = None
        if query.function != "value":
            window = SeriesWindow(
                query.function, query.window, counter=query.is_counter, ahead=query.ahead, fresh=query.fresh
            )
        self._windows[labels] = window
        return True

    def _expire(self, now: float, family: FamilyValues) -> None:
        """Drop series that have been absent for longer than the window; one that returns sooner continues."""
        self._rejected &= family.values.keys()
        self._windows = {
            labels: window
            for labels, window in self._windows.items()
            if labels in family.values or (window is not None and now - window.seen <= self.query.window)
        }

    def _key(self, labels: Labels) -> Labels:
        # A list comprehension is faster than a generator, and this runs for every series and tick.
        return tuple([labels[place] for place in self._places])

    def _joined(self, other: Vector, now: float, families: Families) -> Values:
        """Return the values of another vector by the labels of the join."""
        values = other.evaluate(now, families)
        places = [other.labels.index(name) for name in self.query.on if name in other.labels]
        return {tuple([labels[place] for place in places]): value for labels, value in values.items()}

    def _aggregated(self, values: Values) -> Values:
        """Return the most extreme value for each combination of the labels in ``by``."""
        by = self.query.by
        if by is None or self._metric is None:
            return values
        places = [self._metric.labels.index(name) for name in by]
        lowest = self.query.above is None and self.query.below is not None
        aggregated: Values = {}
        for labels, value in values.items():
            key = tuple([labels[place] for place in places])
            extreme = aggregated.get(key)
            if extreme is None or (value < extreme if lowest else value > extreme):
                aggregated[key] = value
        self.labels = by
        return aggregated

    def _within_bounds(self, values: Values) -> Values:
        above, below = self.query.above, self.query.below
        if above is not None:
            values = {labels: value for labels, value in values.items() if value > above}
        if below is not None:
            values = {labels: value for labels, value in values.items() if value < below}
        return values

    def _filtered(self, values: Values, now: float, families: Families) -> Values:
        """Return the values that ``only`` and ``unless`` leave."""
        if not self._only and not self._unless:
            return values
        places = [self.labels.index(name) for name in self.query.on if name in self.labels]
        for others, required in ((self._only, True), (self._unless, False)):
            for other in others:
                right = self._joined(other, now, families)
                values = {
                    labels: value
                    for labels, value in values.items()
                    if (tuple([labels[place] for place in places]) in right) is required
                }
        return values
