"""Queries of GPUs that know which rank trains on which GPU.

A GPU's own series have no run. They are joined with `trackside_gpu_rank_info` so that a GPU without a rank is there too while no
run is chosen, and that one with two ranks is there for each of them, and counts once in sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grafana.panels import HIGHEST, LOWEST, MEDIAN, MOST_LINES, Query, band, lines, link
from grafana_foundation_sdk.models import dashboard as models

from trackside_daemon.alerts.rules.query import listed

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import timeseries

GPU = listed(("gpu", "uuid"))
"""What tells GPUs apart, as alerts do."""

ALL = '{GPU, uuid=~`${run:regex}`, uuid=~"$rank"}'
"""GPUs while no run is chosen: what stands for all runs matches a UUID too, and no run's name does."""

RANKS = f"max by ({GPU}, run, rank) (trackside_gpu_rank_info{{RANK}})"
CHOSEN = f"and on ({GPU}) (trackside_gpu_rank_info{{RANK}} or trackside_gpu_up{ALL})"
"""Behind series of GPUs: those of the runs and ranks that are chosen."""

ON_RANKS = "{{instance}} GPU {{gpu}} ({{run}} rank {{rank}})"
UNUSED = "{{instance}} GPU {{gpu}}"

THIS_GPU = link(
    "This GPU",
    "trackside-gpus",
    instance="${__field.labels.instance:percentencode}",
    gpu="${__field.labels.gpu:percentencode}",
)
ITS_RUN = link(
    "Its run",
    "trackside-training",
    run="${__field.labels.run:percentencode}",
    rank="${__field.labels.rank:percentencode}",
)


def each(series: str) -> str:
    """One value a GPU: the greatest."""
    return f"max by ({GPU}) ({series})"


def rate(family: str, matchers: str = "", window: str = "$__rate_interval") -> str:
    """What a counter of GPUs grows by in a second; *matchers* as they follow a token."""
    return f"rate({family}{{GPU{matchers}}}[{window}])"


def growth(family: str, matchers: str = "", window: str = "$__rate_interval") -> str:
    """What a counter of GPUs grows by in the window."""
    return f"increase({family}{{GPU{matchers}}}[{window}])"


def total(series: str) -> str:
    """The sum over the GPUs that are chosen; *series* have one value a GPU."""
    return f"sum ({series} {CHOSEN})"


def ranked(series: str) -> str:
    """*series*, which have one value a GPU, by the ranks that train on it."""
    return f"{RANKS} * on ({GPU}) group_left () ({series})"


def unused(series: str) -> str:
    """Those of *series* whose GPU has no rank, while no run is chosen."""
    return f"({series.replace('{GPU', ALL[:-1])}) unless on ({GPU}) trackside_gpu_rank_info{{HERE}}"


def by_gpu(title: str, description: str, unit: str, series: str, *more: Query, **how: Any) -> timeseries.Panel:
    """A line a GPU while few are chosen, called by its rank, a band from the lowest to the highest, and the median.

    Args:
        title: Of the panel.
        description: Of the panel.
        unit: Of the value.
        series: One value a GPU.
        more: Further queries.
        how: As of `lines`.
    """
    seen = f"{series} {CHOSEN}"
    few = f"and on () (count({seen}) <= {MOST_LINES})"
    panel = lines(
        title,
        description,
        unit,
        Query(f"({ranked(series)}) {few}", ON_RANKS),
        Query(f"({unused(series)}) {few}", UNUSED),
        Query(f"min({seen})", LOWEST),
        Query(f"max({seen})", HIGHEST),
        Query(f"quantile(0.5, {seen})", MEDIAN),
        *more,
        **{"width": 8} | how,
    )
    unfilled = models.DynamicConfigValue("custom.fillOpacity", 0)
    for letter, links in (("A", (THIS_GPU, ITS_RUN)), ("B", (THIS_GPU,))):
        panel.override_by_query(letter, [unfilled, models.DynamicConfigValue("links", [one.build() for one in links])])
    return band(panel)
