"""Summarise the series of runs with many ranks, so that a thousand ranks fit on the metrics page.

Of such a run the page has statistics over all ranks, the ranks that are extreme, the sums of histograms, and the series of
the lowest rank. It also names the ranks in a state that few ranks have.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from math import isnan, nan
from typing import TYPE_CHECKING, cast

from trackside_daemon.model.families import derived
from trackside_daemon.model.families.training import RANK_STATE
from trackside_daemon.model.metric import Distribution, Metric
from trackside_daemon.model.state import PageFamily, PageSeries, RankGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.model.state import Column

NAMED = 16  # the most ranks in one state that are named

_Found = list[tuple[PageSeries, "float | Distribution"]]


class RankStatistics:
    """Replaces groups of series by their statistics."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Metric, tuple[str, ...]], _GroupStatistics] = {}
        """Those of the last page."""

    def apply(self, page: list[PageFamily]) -> list[PageFamily]:
        """Return the page with statistics in place of groups, sorted by name."""
        before, self._groups = self._groups, {}
        if not any(rows.groups for rows in page):
            return page
        statistics: _Found = []
        extremes: _Found = []
        rest = []
        for rows in page:
            kept: _Found = []
            for group in rows.groups:
                run, _, *more = group.series[0].labels
                key = rows.metric, (run, *more)
                found = self._groups[key] = before.get(key) or _GroupStatistics(*key)
                found.update(group)
                kept += found.kept
                statistics += found.statistics
                extremes += found.extremes
            series = [*rows.series, *(one for one, _ in kept)]
            values = [*rows.values, *(value for _, value in kept)]
            if series:
                rest.append(PageFamily(rows.metric, series, values))
        added = [
            PageFamily(metric, *map(list, zip(*found, strict=True)))
            for metric, found in (
                (derived.RANK_STATISTIC, statistics),
                (derived.EXTREME_RANK, extremes),
            )
            if found
        ]
        return sorted([*rest, *added], key=lambda rows: rows.metric.name)


class _GroupStatistics:
    """The statistics of one group, computed again only if one of its values has changed since the last page.

    Its series are kept, since the exposition caches their text.

    Args:
        metric: The family.
        labels: The labels of its series, without the rank.

    Attributes:
        kept: What stays on the page under the family's own name.
        statistics: Series of `RANK_STATISTIC`.
        extremes: Series of `EXTREME_RANK`.
    """

    def __init__(self, metric: Metric, labels: tuple[str, ...]) -> None:
        self.kept: _Found = []
        self.statistics: _Found = []
        self.extremes: _Found = []
        self._metric = metric
        self._run, *self._more = labels
        self._group = RankGroup([], [])
        self._series: dict[tuple[Metric, str], PageSeries] = {}

    def update(self, group: RankGroup) -> None:
        """Apply the series and values of the group."""
        # The state returns the same list of series until one comes or goes.
        if group.series is self._group.series and _same(group.values, self._group.values):
            return
        self._group = group
        if self._metric.kind == "histogram":
            self.kept = [(self._of(self._metric, ""), summed(cast("list[Distribution]", group.values)))]
            return
        # A list, whose elements are not made anew for each comparison.
        lowest, numbers = group.series[0], cast("list[float]", list(group.values))
        if self._metric is RANK_STATE:
            amount = sum(numbers)
            self.statistics = [(self._of(derived.RANK_STATISTIC, "sum"), amount)]
            named = zip(group.series, numbers, strict=True)
            self.kept = [(one, value) for one, value in named if one is lowest or (value and amount <= NAMED)]
        else:
            self.kept = [(lowest, numbers[0])]
            self._describe(numbers)

    def _describe(self, numbers: list[float]) -> None:
        ordered = sorted(numbers)
        if isnan(sum(ordered)):
            ordered = sorted(number for number in numbers if not isnan(number)) or [nan]
        least, most = ordered[0], ordered[-1]
        found = {"min": least, "median": ordered[len(ordered) // 2], "max": most, "sum": sum(ordered)}
        self.statistics = [(self._of(derived.RANK_STATISTIC, name), value) for name, value in found.items()]
        self.extremes = []
        if least < most:
            self.extremes = [
                (
                    self._of(derived.EXTREME_RANK, name),
                    float(self._group.series[numbers.index(found[name])].labels[1]),
                )
                for name in ("min", "max")
            ]

    def _of(self, metric: Metric, statistic: str) -> PageSeries:
        """Return a series of a statistic, or of the family over all ranks, the same each time."""
        found = self._series.get((metric, statistic))
        if found is None:
            own = (self._run, self._metric.name, *(self._more or ("",)), statistic)
            labels = (self._run, "", *self._more) if metric is self._metric else own
            found = self._series[metric, statistic] = PageSeries(metric, labels, "training")
        return found


def _same(values: Column, before: Column) -> bool:
    """Return whether no value has changed; it may miss that of lists."""
    if isinstance(values, array) and isinstance(before, array):
        return values.tobytes() == before.tobytes()
    return values == before


def summed(distributions: Sequence[Distribution]) -> Distribution:
    """Return the sum of histograms with the same buckets."""
    counts, sums, fine = zip(*distributions, strict=True)
    total: defaultdict[int, int] = defaultdict(int)
    for one in fine:
        for index, count in one.items():
            total[index] += count
    return Distribution(tuple(map(sum, zip(*counts, strict=True))), sum(sums), total)
