"""The statistics of a run's GPUs, host and processes over its time, per rank and in all."""

from __future__ import annotations

from math import sqrt
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any

from trackside_daemon.causes.quantities import QUANTITIES, curves

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside_daemon.causes.facts import Facts
    from trackside_daemon.causes.quantities import Quantity
    from trackside_daemon.history.read.resources import Resource


def resources(facts: Facts) -> list[dict[str, Any]]:
    """Return a row for each quantity of each resource, and one for all resources of a kind together.

    Returns:
        ``quantity``, ``unit``; ``of``: the GPU, the pid or the cgroup, empty for the host and for all together; ``ranks``
        that use it; ``mean``, ``std``, ``min``, ``max``, ``p50``, ``p95``. Values between the samples of the history are
        in the extremes of a long run alone.
    """
    return [row for quantity in QUANTITIES for row in _rows(facts, quantity)]


def _rows(facts: Facts, quantity: Quantity) -> Iterator[dict[str, Any]]:
    each = list(curves(facts, quantity))
    for _, name, series, values in each:
        one = series if len(series) == 1 and not quantity.is_rate else []
        yield _row(quantity, name, _ranks(facts, quantity, series[0], name), list(values.values()), one)
    if len(each) > 1:
        every = [value for curve in each for value in curve.values.values()]
        gauges = [] if quantity.is_rate else [series for curve in each for series in curve.series]
        yield _row(quantity, "", sorted({rank for span in facts.spans for rank in [span.rank]}), every, gauges)


def _ranks(facts: Facts, quantity: Quantity, series: Resource, name: str) -> list[int]:
    if quantity.of == "gpu":
        return sorted(facts.gpu_ranks().get(series.labels.get("uuid", ""), ()))
    if quantity.of == "pid":
        return [facts.processes()[name]]
    return [int(name)] if quantity.of == "rank" else []


def _row(
    quantity: Quantity, of: str, ranks: Sequence[int], values: Sequence[float], series: Sequence[Resource]
) -> dict[str, Any]:
    lows = [one.low for one in series if one.low is not None]
    highs = [one.high for one in series if one.high is not None]
    mean = fmean(values)
    parts = quantiles(values, n=20, method="inclusive") if len(values) > 1 else [values[0]] * 19
    return {
        "quantity": quantity.name,
        "unit": quantity.unit,
        "of": of,
        "ranks": list(ranks),
        "mean": mean,
        "std": sqrt(max(0.0, fmean(value * value for value in values) - mean * mean)),
        "min": min(*values, *lows, values[0]),
        "max": max(*values, *highs, values[0]),
        "p50": parts[9],
        "p95": parts[18],
    }
