"""The newest value of every series, and when each expires."""

from __future__ import annotations

import threading
from array import array
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, cast

from trackside_daemon.model.families.training import RANK
from trackside_daemon.model.metric import ForeignMetric

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from trackside_daemon.model.metric import Batch, Distribution, Metric

    Column = list[float | Distribution] | array[float]


# Series of a family on the page for a run with many ranks: the minimum, median, maximum, sum, two extreme ranks and the lowest
# rank. A group of as few series stays as it is.
OF_STATISTICS = 7


class PageSeries:
    """One series on the page.

    Attributes:
        metric: The family.
        labels: One value for each label name of the family.
        source: The source of its samples.
        value: The newest value.
        text: The constant part of its lines, which the exposition renders once and caches here.
        column: The values of its group, which has its own at *place*; None outside a group.
    """

    __slots__ = ("column", "labels", "metric", "place", "source", "text", "value")

    def __init__(self, metric: Metric, labels: tuple[str, ...], source: str) -> None:
        self.metric = metric
        self.labels = labels
        self.source = source
        self.value: float | Distribution = 0.0
        self.text: str | tuple[str, ...] | None = None
        self.column: Column | None = None
        self.place = 0

    def update(self, value: float | Distribution) -> None:
        """Apply a newer value."""
        self.value = value = float(value) if value.__class__ is int else value
        if self.column is not None:
            self.column[self.place] = value  # type: ignore[assignment]


class RankGroup(NamedTuple):
    """The series of all ranks of a run, the lowest rank first, and their values side by side.

    A scrape reads tens of thousands of values of a thousand ranks. As objects all over the memory they would take milliseconds.
    """

    series: list[PageSeries]
    values: Column


class PageFamily(NamedTuple):
    """A family on the page: its series in the order of their first samples, and their values at one moment."""

    metric: Metric
    series: list[PageSeries]
    values: list[float | Distribution]
    groups: Sequence[RankGroup] = ()  # further series, of runs with many ranks


class _Groups(NamedTuple):
    """The series of a family by runs: *groups* of more ranks than a limit, and the *others*."""

    others: list[PageSeries]
    groups: list[RankGroup]


class State:
    """All series. The pipeline's thread writes, any thread reads.

    Args:
        most_ranks: The most ranks of a run whose series a snapshot has one by one.
    """

    def __init__(self, most_ranks: int = 64) -> None:
        self._most_ranks = most_ranks
        self._lock = threading.Lock()
        self._families: dict[Metric, dict[tuple[str, ...], PageSeries]] = {}
        self._sources: dict[str, dict[tuple[Metric, tuple[str, ...]], PageSeries]] = {}
        self._until: dict[str, float] = {}
        self._complete: dict[str, list[PageSeries]] = {}
        """By source, the series of its last batch, if that was complete. Most next batches have the same series in this order."""
        self._groups: dict[Metric, _Groups] = {}
        """Of the families of ranks, until one of their series comes or goes."""

    def update(self, batch: Batch) -> None:
        """Apply a batch. If it is complete, the other series of its source disappear.

        Raises:
            ValueError: A sample lacks a label value or has one too many; the samples before it are applied.
        """
        with self._lock:
            if not self._refresh(batch):
                self._replace(batch)
            self._expire(batch)

    def snapshot(self, now: float, wanted: Callable[[str], bool] | None = None) -> list[PageFamily]:
        """Return all families at one moment, sorted by name.

        Args:
            now: Seconds of the monotonic clock; series that expire by then disappear.
            wanted: Selects series by the name of their source; None for all.
        """
        page = []
        with self._lock:
            self._forget(now)
            for metric, family in self._families.items():
                series, groups = self._grouped(metric, family)
                if wanted is not None:
                    series = [one for one in series if wanted(one.source)]
                    groups = [group for group in groups if wanted(group.series[0].source)]
                if series or groups:
                    # Copied, so that the page is rendered without the lock, and a scrape does not delay the pipeline.
                    copied = [RankGroup(group.series, group.values[:]) for group in groups]
                    page.append(PageFamily(metric, series, [one.value for one in series], copied))
        return sorted(page, key=lambda rows: rows.metric.name)

    def values(self, now: float, *metrics: Metric) -> list[dict[tuple[str, ...], float | Distribution]]:
        """Return the values by labels of each of these families, all of one moment; *now* as in `snapshot`."""
        with self._lock:
            self._forget(now)
            families = [self._families.get(metric, {}) for metric in metrics]
            return [{labels: series.value for labels, series in family.items()} for family in families]

    def some(self, now: float, wanted: Iterable[tuple[Metric, tuple[str, ...]]]) -> list[float | Distribution | None]:
        """Return the value of each of these series, given by family and labels; None if absent. *now* as in `snapshot`."""
        with self._lock:
            self._forget(now)
            series = [self._families.get(metric, {}).get(labels) for metric, labels in wanted]
            return [None if one is None else one.value for one in series]

    def named(
        self, now: float, names: Collection[str]
    ) -> dict[str, tuple[Metric, dict[tuple[str, ...], float | Distribution]]]:
        """Return the families with these names, each with its values by labels; absent families are left out."""
        with self._lock:
            self._forget(now)
            return {
                metric.name: (metric, {labels: series.value for labels, series in family.items()})
                for metric, family in self._families.items()
                if metric.name in names
            }

    def foreign(self) -> list[Metric]:
        """Return the families of other programs."""
        with self._lock:
            return [metric for metric in self._families if isinstance(metric, ForeignMetric)]

    def _grouped(self, metric: Metric, family: dict[tuple[str, ...], PageSeries]) -> _Groups:
        # Statistics have one label for a third label of the family, and none for a fourth.
        if len(family) <= self._most_ranks or metric.labels[:2] != RANK or len(metric.labels) > len(RANK) + 1:
            return _Groups(list(family.values()), [])
        found = self._groups.get(metric)
        if found is None:
            groups: dict[tuple[str, ...], list[PageSeries]] = {}
            ranks: dict[str, set[str]] = {}
            for labels, series in family.items():
                groups.setdefault((labels[0], *labels[2:]), []).append(series)
                ranks.setdefault(labels[0], set()).add(labels[1])
            large = {run for run, those in ranks.items() if len(those) > self._most_ranks}
            few_enough = min(self._most_ranks, OF_STATISTICS)
            many: list[RankGroup] = []
            few: list[list[PageSeries]] = []
            for (run, *_), group in groups.items():
                if run in large and len(group) > few_enough:
                    many.append(_side_by_side(group))
                else:
                    few.append(group)
            # As they would be without groups, if there are none.
            others = list(chain.from_iterable(few)) if many else list(family.values())
            found = self._groups[metric] = _Groups(others, many)
        return found

    def _refresh(self, batch: Batch) -> bool:
        """Apply a batch with the same series as the last one of its source; return False if they differ."""
        before = self._complete.get(batch.source)
        if before is None or len(before) != len(batch.samples):
            return False
        # If a later series differs, `_replace` applies the values again that are set here.
        for series, (metric, labels, value) in zip(before, batch.samples, strict=True):
            if series.metric is not metric or series.labels != labels:
                return False
            series.update(value)
        return True

    def _replace(self, batch: Batch) -> None:
        self._complete.pop(batch.source, None)
        known = self._sources.setdefault(batch.source, {})
        kept = {}
        for metric, labels, value in batch.samples:
            key = (metric, labels)
            series = known.get(key)
            if series is None:
                series = known[key] = self._new(metric, labels, batch.source)
            series.update(value)
            kept[key] = series
        if not batch.complete:
            return
        for key in known.keys() - kept.keys():
            del known[key]
            self._remove(key, batch.source)
        if kept:
            self._complete[batch.source] = list(kept.values())

    def _new(self, metric: Metric, labels: tuple[str, ...], source: str) -> PageSeries:
        """Return the series, which belongs to *source* from now on."""
        if len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name} has the labels {metric.labels}, got {labels}")
        family = self._families.setdefault(metric, {})
        series = family.get(labels)
        if series is None:
            series = family[labels] = PageSeries(metric, labels, source)
            self._groups.pop(metric, None)
        elif series.source != source:
            self._sources.get(series.source, {}).pop((metric, labels), None)
            self._complete.pop(series.source, None)
            series.source = source
        return series

    def _remove(self, key: tuple[Metric, tuple[str, ...]], source: str) -> None:
        metric, labels = key
        family = self._families.get(metric, {})
        if labels in family and family[labels].source == source:
            del family[labels]
            self._groups.pop(metric, None)
            if not family:  # those of other programs come and go
                del self._families[metric]

    def _expire(self, batch: Batch) -> None:
        if batch.until is not None:
            self._until[batch.source] = batch.until
            return
        self._until.pop(batch.source, None)
        if not self._sources[batch.source]:
            del self._sources[batch.source]

    def _forget(self, now: float) -> None:
        for source in [source for source, until in self._until.items() if until < now]:
            del self._until[source]
            self._complete.pop(source, None)
            for key in self._sources.pop(source, {}):
                self._remove(key, source)


def _side_by_side(group: list[PageSeries]) -> RankGroup:
    """Return the group of some series, and link each with its place there."""
    ordered = sorted(group, key=lambda series: int(series.labels[1]))
    values: Column = [series.value for series in ordered]
    if ordered[0].metric.kind != "histogram":
        values = array("d", cast("list[float]", values))
    for place, series in enumerate(ordered):
        series.column, series.place = values, place
    return RankGroup(ordered, values)
