"""Queries of GPUs with the ranks that use them.

A GPU's own series have no run. The join with `trackside_gpu_rank_info` also returns GPUs without a rank while no run is selected,
and returns a GPU with two ranks for each of them; sums count it once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grafana.panels import HIGHEST, LOWEST, MAX_LINES, MEDIAN, TARGETS, Query, band, lines, link
from grafana_foundation_sdk.models import dashboard as models

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import timeseries

GPU = TARGETS.of_machine("gpu", "uuid")
"""Labels that identify a GPU, as in alerts."""

ALL = '{GPU, uuid=~`${run:regex}`, uuid=~"$rank"}'
"""All GPUs while no run is selected: the pattern for all runs also matches a UUID, and no run's name does."""

RANKS = f"max by ({GPU}, run, rank) (trackside_gpu_rank_info{{RANK}})"
SELECTED = f"and on ({GPU}) (trackside_gpu_rank_info{{RANK}} or trackside_gpu_up{ALL})"
"""Follows a series of GPUs: restricts it to the selected runs and ranks."""

WITH_RANK = "{{instance}} GPU {{gpu}} ({{run}} rank {{rank}})"
UNUSED = "{{instance}} GPU {{gpu}}"

THIS_GPU = link(
    "This GPU",
    "trackside-gpus",
    instance="${__field.labels.instance:percentencode}",
    gpu="${__field.labels.gpu:percentencode}",
)
RUN_OF_GPU = link(
    "This run",
    "trackside-training",
    run="${__field.labels.run:percentencode}",
    rank="${__field.labels.rank:percentencode}",
)


def each(series: str) -> str:
    """Return one value per GPU, the greatest."""
    return f"max by ({GPU}) ({series})"


def rate(family: str, matchers: str = "", window: str = "$__rate_interval") -> str:
    """Return the growth per second of a GPU counter; *matchers* as they follow a token."""
    return f"rate({family}{{GPU{matchers}}}[{window}])"


def growth(family: str, matchers: str = "", window: str = "$__rate_interval") -> str:
    """Return the growth of a GPU counter in the window."""
    return f"increase({family}{{GPU{matchers}}}[{window}])"


def total(series: str) -> str:
    """Return the sum over the selected GPUs; *series* have one value per GPU."""
    return f"sum ({series} {SELECTED})"


def ranked(series: str) -> str:
    """Return *series*, which have one value per GPU, by the ranks that use the GPU."""
    return f"{RANKS} * on ({GPU}) group_left () ({series})"


def unused(series: str) -> str:
    """Return *series* of GPUs without a rank, while no run is selected."""
    return f"({series.replace('{GPU', ALL[:-1])}) unless on ({GPU}) trackside_gpu_rank_info{{HERE}}"


def by_gpu(title: str, description: str, unit: str, series: str, *more: Query, **how: Any) -> timeseries.Panel:
    """Return a panel with one line per GPU if few are selected, a band from lowest to highest, and the median.

    Args:
        title: Title of the panel.
        description: Description of the panel.
        unit: Unit of the value.
        series: One value per GPU.
        more: Further queries.
        how: Keywords of `lines`.
    """
    selected = f"{series} {SELECTED}"
    few = f"and on () (count({selected}) <= {MAX_LINES})"
    panel = lines(
        title,
        description,
        unit,
        Query(f"({ranked(series)}) {few}", WITH_RANK),
        Query(f"({unused(series)}) {few}", UNUSED),
        Query(f"min({selected})", LOWEST),
        Query(f"max({selected})", HIGHEST),
        Query(f"quantile(0.5, {selected})", MEDIAN),
        *more,
        **{"width": 8} | how,
    )
    unfilled = models.DynamicConfigValue("custom.fillOpacity", 0)
    for letter, links in (("A", (THIS_GPU, RUN_OF_GPU)), ("B", (THIS_GPU,))):
        data_links = models.DynamicConfigValue("links", [link.build() for link in links])
        panel.override_by_query(letter, [unfilled, data_links])
    return band(panel)
