"""Disturbances of a measurement, by the series of the machine that the daemon recorded meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trackside_daemon.cli.sources.errors import SourceError
from trackside_daemon.history.series_name import series_labels
from trackside_daemon.model.families import gpu, host
from trackside_daemon.model.text import percent
from trackside_daemon.questions.series import Series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.cli.sources.api_source import ApiSource
    from trackside_daemon.model.metric import Metric


class Disturbance(NamedTuple):
    """A family that shows one.

    Attributes:
        family: Counter of seconds, or gauge.
        share: Share of the time, or value of a gauge, above which it disturbs.
        text: What to report; ``{}`` is the percentage or the value.
    """

    family: Metric
    share: float
    text: str


HARMLESS = frozenset(("gpu_idle", "applications_clocks", "sw_power_cap", "sync_boost", "display"))
DISTURBANCES = (
    Disturbance(host.CPU_WAITING, 0.1, "tasks waited for a CPU in {} of the time"),
    Disturbance(host.MEMORY_STALLED, 0.01, "all tasks waited for memory in {} of the time"),
    Disturbance(host.IO_STALLED, 0.1, "all tasks waited for storage in {} of the time"),
    Disturbance(gpu.CLOCK_LIMITED, 0.01, "the clocks of a GPU were limited in {} of the time"),
    Disturbance(gpu.PROCESSES, 1, "{} processes shared a GPU"),
)


def disturbances(daemon: ApiSource, run: str, begun: float, ended: float) -> list[str] | None:
    """Return in a line each what disturbed a measurement between two Unix times; None if the daemon does not answer."""
    keys = tuple(one.family.name for one in DISTURBANCES)
    try:
        series = daemon.ask(Series(run=(run,), key=keys, by="time", first=begun, last=ended))["series"]
    except SourceError:
        return None
    return [text for one in DISTURBANCES if (text := _text(one, series, ended - begun))]


def _text(disturbance: Disturbance, series: Sequence[dict[str, Any]], seconds: float) -> str:
    values = [
        points
        for one in series
        if one["key"].partition("{")[0] == disturbance.family.name
        and series_labels(one["key"]).get("reason") not in HARMLESS
        and (points := one["points"])
    ]
    if disturbance.family.kind == "counter":
        highest = max((points[-1][4] - points[0][2] for points in values), default=0.0) / max(seconds, 1.0)
        return disturbance.text.format(percent(min(1.0, highest))) if highest > disturbance.share else ""
    highest = max((point[3] for points in values for point in points), default=0.0)
    return disturbance.text.format(f"{highest:g}") if highest > disturbance.share else ""
