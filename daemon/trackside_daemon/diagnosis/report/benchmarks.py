"""The results of `trackside benchmark` in a report: a table, and the values of its charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from trackside.benchmark.publishing import MEASURED
from trackside_daemon.model.text import counted, duration, number, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HEADER = ("Load", "Variant", "Latency: median, p5 to p95", "Throughput", "Against the first variant")
OUTER = (0.05, 0.95)

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e300)]  # a finite one: JSON has no others
Point = tuple[Amount, Amount, Amount | None, Amount | None]  # share of samples, value, and the ends of its interval

CHARTED = ("curve", "throughput", "throughput_unit", "throughput_interval", "batch", "length", "concurrency", "rate")


class Measured(msgspec.Struct):
    """The fields of an event; other events of this kind are those of the training code."""

    variant: str
    load: str
    latency_seconds: dict[str, dict[str, Any]]
    curve: list[Point]
    throughput: Amount | None = None
    throughput_unit: str = ""
    throughput_interval: tuple[Amount, Amount] | None = None
    batch: Amount = 0.0
    length: Amount = 0.0
    concurrency: Amount = 0.0
    rate: Amount = 0.0
    samples: int = 0
    times_faster: dict[str, dict[str, float | None]] = {}


def measured(report: Mapping[str, Any]) -> list[Measured]:
    """Return what benchmarks measured last of each variant under each load, by load."""
    found: dict[tuple[str, str], Measured] = {}
    for event in report["events"]:
        if event["kind"] == MEASURED:
            try:
                one = msgspec.convert(event["fields"], Measured)
            except msgspec.ValidationError:
                continue
            found[one.load, one.variant] = one
    loads = [load for load, _ in found]
    return sorted(found.values(), key=lambda one: loads.index(one.load))


def charted(reports: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the charts show, as ``benchmark_charts.js`` reads it; the variants of several runs have the run's name."""
    return [
        {
            "load": shown(one.load),
            "variant": f"{name}: {shown(one.variant)}" if len(reports) > 1 else shown(one.variant),
            **{field: getattr(one, field) for field in CHARTED},
        }
        for name, report in zip(names, reports, strict=True)
        for one in measured(report)
    ]


def rows(report: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield a row for each variant under each load."""
    for one in measured(report):
        speed = "-" if one.throughput is None else f"{number(one.throughput)} {one.throughput_unit}/s"
        yield one.load or "-", one.variant, _latency(one), speed, _effect(one)


def _at(one: Measured, share: float) -> float | None:
    return next((value for place, value, *_ in one.curve if place == share), None)


def _latency(one: Measured) -> str:
    median, low, high = _number(one.latency_seconds.get("p50", {}).get("value")), _at(one, OUTER[0]), _at(one, OUTER[1])
    ends = "" if low is None or high is None else f" ({duration(low)} to {duration(high)})"
    return f"{duration(median)}{ends}, {counted(one.samples, 'sample')}"


def _effect(one: Measured) -> str:
    faster = one.times_faster.get("latency_seconds", {})
    low, high = faster.get("low"), faster.get("high")
    if low is None or high is None:
        return "-"
    return f"{low:.3g} to {high:.3g} times as fast"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
