"""Summarise the series of runs with many ranks, so that a thousand ranks fit on the metrics page.

Of such a run the page has statistics over all ranks, the ranks that are extreme, the sums of histograms, and the series of
the lowest rank. It also names the ranks in a state that few ranks have.
"""

from __future__ import annotations

from collections import Counter
from math import isnan, nan
from typing import TYPE_CHECKING, cast

from trackside_daemon.model.metric import Distribution, Metric
from trackside_daemon.model.state import Rows, Series
from trackside_daemon.model.training_families import RANK_STATE

if TYPE_CHECKING:
    from collections.abc import Iterable

# Not among the families that a rule can name: the daemon's own rules see each rank.
RANK_STATISTIC = Metric(
    "trackside_training_rank_statistic",
    "gauge",
    "Minimum, median, maximum and sum of a family over the ranks of a run with more ranks than limits.ranks, in the family's "
    "unit and without NaN; key has the value of the family's third label.",
    ("run", "family", "key", "statistic"),
)
EXTREME_RANK = Metric(
    "trackside_training_extreme_rank",
    "gauge",
    "Number of the rank that has the minimum or the maximum of trackside_training_rank_statistic; absent if all are equal.",
    ("run", "family", "key", "statistic"),
)

NAMED = 16  # the most ranks in one state that are named

_Found = list[tuple[Series, "float | Distribution"]]


class RankStatistics:
    """Replaces groups of series by their statistics. Its series are kept, since the exposition caches their text."""

    def __init__(self) -> None:
        self._series: dict[tuple[Metric, tuple[str, ...]], Series] = {}
        """Those of the last page."""
        self._used: dict[tuple[Metric, tuple[str, ...]], Series] = {}

    def apply(self, page: list[Rows]) -> list[Rows]:
        """Return the page with statistics in place of groups, sorted by name."""
        self._series, self._used = self._used, {}
        if not any(rows.groups for rows in page):
            return page
        statistics: dict[Metric, _Found] = {RANK_STATISTIC: [], EXTREME_RANK: []}
        rest = []
        for rows in page:
            kept = [pair for group in rows.groups for pair in self._summarised(rows.metric, group, statistics)]
            series = [*rows.series, *(one for one, _ in kept)]
            values = [*rows.values, *(value for _, value in kept)]
            if series:
                rest.append(Rows(rows.metric, series, values))
        added = [Rows(metric, *map(list, zip(*found, strict=True))) for metric, found in statistics.items() if found]
        return sorted([*rest, *added], key=lambda rows: rows.metric.name)

    def _summarised(self, metric: Metric, group: list[Series], statistics: dict[Metric, _Found]) -> _Found:
        """Add the statistics of a group; return what stays on the page under the family's own name."""
        run, _, *more = group[0].labels
        if metric.kind == "histogram":
            total = summed(cast("Distribution", one.value) for one in group)
            return [(self._of(metric, (run, "", *more)), total)]
        labels = run, metric.name, *(more or ("",))
        numbers = [cast("float", one.value) for one in group]
        lowest = min(group, key=_rank)
        if metric is RANK_STATE:
            amount = sum(numbers)
            statistics[RANK_STATISTIC].append((self._of(RANK_STATISTIC, (*labels, "sum")), amount))
            named = [one for one in group if one is lowest or (one.value and amount <= NAMED)]
            return [(one, one.value) for one in named]
        self._add(labels, numbers, group, statistics)
        return [(lowest, lowest.value)]

    def _add(
        self, labels: tuple[str, ...], numbers: list[float], group: list[Series], statistics: dict[Metric, _Found]
    ) -> None:
        ordered = sorted(numbers)
        if isnan(sum(ordered)):
            ordered = sorted(number for number in numbers if not isnan(number)) or [nan]
        least, most = ordered[0], ordered[-1]
        found = {"min": least, "median": ordered[len(ordered) // 2], "max": most, "sum": sum(ordered)}
        for name, value in found.items():
            statistics[RANK_STATISTIC].append((self._of(RANK_STATISTIC, (*labels, name)), value))
        if least < most:
            for name, value in (("min", least), ("max", most)):
                rank = float(group[numbers.index(value)].labels[1])
                statistics[EXTREME_RANK].append((self._of(EXTREME_RANK, (*labels, name)), rank))

    def _of(self, metric: Metric, labels: tuple[str, ...]) -> Series:
        """Return the series with these labels, the same each time."""
        key = metric, labels
        series = self._used[key] = self._series.get(key) or Series(metric, labels, "training")
        return series


def summed(distributions: Iterable[Distribution]) -> Distribution:
    """Return the sum of histograms with the same buckets."""
    counts, sums, fine = zip(*distributions, strict=True)
    total: Counter[int] = Counter()
    for one in fine:
        total.update(one)
    return Distribution(tuple(map(sum, zip(*counts, strict=True))), sum(sums), total)


def _rank(series: Series) -> int:
    return int(series.labels[1])
