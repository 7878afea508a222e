"""A query as the daemon evaluates it, once a tick, over the newest values."""

from __future__ import annotations

from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.alerts.rules.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.alerts.rules.query import Query
    from trackside_daemon.model.metric import Distribution, Metric

Labels = tuple[str, ...]
Values = dict[Labels, float]

SPARE = 64
"""So many series more than there are may be remembered before those that are gone are forgotten."""


class Family(NamedTuple):
    """A family's newest values."""

    metric: Metric
    values: Mapping[Labels, float | Distribution]


Families = dict[str, Family]


class Vector:
    """The series of a query.

    Attributes:
        labels: The label names of what `at` returned last, in the order of its labels.
    """

    def __init__(self, query: Query) -> None:
        self.query = query
        self.labels: Labels = query.by or ()
        self._metric: Metric | None = None
        self._places: tuple[int, ...] = ()
        self._windows: dict[Labels, Window | None] = {}
        self._others: set[Labels] = set()
        self._over = Vector(query.over) if query.over is not None else None
        self._minus = Vector(query.minus) if query.minus is not None else None
        self._only = [Vector(one) for one in query.only]
        self._unless = [Vector(one) for one in query.unless]

    def names(self) -> Iterator[str]:
        """The families that it reads."""
        yield self.query.metric
        parts = (self._over, self._minus, *self._only, *self._unless)
        yield from chain.from_iterable(part.names() for part in parts if part is not None)

    @property
    def known(self) -> bool:
        """Whether its family was ever there, so that its labels are known."""
        return self._metric is not None

    def at(self, now: float, families: Families) -> Values:
        """The series for which it is so, with their values.

        Args:
            now: Seconds of a clock that only goes forward.
            families: By name, those that are there.
        """
        query = self.query
        family = families.get(query.metric)
        found = self._chosen(now, family) if family is not None else {}
        if self._over is not None:
            right = self._right(self._over, now, families)
            found = {
                labels: value / divisor
                for labels, value in found.items()
                if (divisor := right.get(self._key(labels), 0.0)) > 0
            }
        if self._minus is not None:
            right = self._right(self._minus, now, families)
            found = {
                labels: value - right[key] for labels, value in found.items() if (key := self._key(labels)) in right
            }
        return self._partnered(self._bounded(self._reduced(found)), now, families)

    def _chosen(self, now: float, family: Family) -> Values:
        if family.metric is not self._metric:
            self._bind(family.metric)
        found: Values = {}
        windows, others, windowed = self._windows, self._others, self.query.how != "value"
        for labels, value in family.values.items():
            if labels in others or value.__class__ is not float:
                continue
            if labels not in windows and not self._meet(labels):
                continue
            if windowed:
                window = windows[labels]
                answer = window.add(now, value) if window is not None and isfinite(value) else None
                if answer is not None:
                    found[labels] = answer
            else:
                found[labels] = value
        if len(windows) + len(others) > len(family.values) + SPARE:
            self._forget(now, family)
        return found

    def _bind(self, metric: Metric) -> None:
        """The family is seen for the first time, and so its labels are."""
        self._metric = metric
        self.labels = metric.labels
        self._windows, self._others = {}, set()
        self._places = tuple(metric.labels.index(name) for name in self.query.on if name in metric.labels)

    def _meet(self, labels: Labels) -> bool:
        """A series is new: whether it is chosen."""
        assert self._metric is not None  # noqa: S101  it was bound
        query, of = self.query, dict(zip(self._metric.labels, labels, strict=True))
        if not all(matcher.matches(of.get(matcher.label, "")) for matcher in query.matchers):
            self._others.add(labels)
            return False
        window = None
        if query.how != "value":
            window = Window(query.how, query.window, growing=query.is_counter, ahead=query.ahead, fresh=query.fresh)
        self._windows[labels] = window
        return True

    def _forget(self, now: float, family: Family) -> None:
        """What is gone, and longer than for a window: what came back within it had no other beginning."""
        self._others &= family.values.keys()
        self._windows = {
            labels: window
            for labels, window in self._windows.items()
            if labels in family.values or (window is not None and now - window.seen <= self.query.window)
        }

    def _key(self, labels: Labels) -> Labels:
        return tuple([labels[place] for place in self._places])

    def _right(self, other: Vector, now: float, families: Families) -> Values:
        """Another's values by the labels on which it is joined."""
        found = other.at(now, families)
        places = [other.labels.index(name) for name in self.query.on if name in other.labels]
        return {tuple([labels[place] for place in places]): value for labels, value in found.items()}

    def _reduced(self, found: Values) -> Values:
        """By the labels that are left, the most extreme."""
        by = self.query.by
        if by is None or self._metric is None:
            return found
        places = [self._metric.labels.index(name) for name in by]
        least = self.query.above is None and self.query.below is not None
        reduced: Values = {}
        for labels, value in found.items():
            key = tuple([labels[place] for place in places])
            known = reduced.get(key)
            if known is None or (value < known if least else value > known):
                reduced[key] = value
        self.labels = by
        return reduced

    def _bounded(self, found: Values) -> Values:
        above, below = self.query.above, self.query.below
        if above is not None:
            found = {labels: value for labels, value in found.items() if value > above}
        if below is not None:
            found = {labels: value for labels, value in found.items() if value < below}
        return found

    def _partnered(self, found: Values, now: float, families: Families) -> Values:
        if not self._only and not self._unless:
            return found
        places = [self.labels.index(name) for name in self.query.on if name in self.labels]
        for others, wanted in ((self._only, True), (self._unless, False)):
            for other in others:
                right = self._right(other, now, families)
                found = {
                    labels: value
                    for labels, value in found.items()
                    if (tuple([labels[place] for place in places]) in right) is wanted
                }
        return found
