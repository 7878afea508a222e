"""The table of what `trackside benchmark` measured in a run, with bars for distributions and throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from trackside.benchmark.publishing import MEASURED
from trackside_daemon.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HEADER = ("Load", "Variant", "Latency: median, p5 to p95", "Throughput", "Against the first variant")
OUTER, INNER = (0.05, 0.95), (0.25, 0.75)  # shares of samples between the ends of the bars


Plot: TypeAlias = "tuple[str, Sequence[tuple[float, float, str]]]"
"""A text, and the begin, end and class of each part of the bar above it."""


class Measured(msgspec.Struct):
    """The fields of an event; other events of this kind are those of the training code."""

    variant: str
    load: str
    latency_seconds: dict[str, dict[str, Any]]
    curve: list[tuple[float, float]]
    throughput: float | None = None
    throughput_unit: str = ""
    samples: int = 0
    times_faster: dict[str, dict[str, float | None]] = {}


def measured(report: Mapping[str, Any]) -> list[Measured]:
    """Return what benchmarks measured in a run, by load."""
    found = []
    for event in report["events"]:
        if event["kind"] == MEASURED:
            try:
                found.append(msgspec.convert(event["fields"], Measured))
            except msgspec.ValidationError:
                continue
    loads = [one.load for one in found]
    return sorted(found, key=lambda one: loads.index(one.load))


def rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str, Plot, Plot, str]]:
    """Yield a row for each variant under each load."""
    found = measured(report)
    longest: dict[str, float] = {}
    for one in found:
        longest[one.load] = max(longest.get(one.load, 0.0), _at(one, OUTER[1]) or 0.0)
    most = max((one.throughput or 0.0 for one in found), default=0.0) or 1.0
    for one in found:
        low, high, near, far = (_at(one, share) for share in (*OUTER, *INNER))
        whole = longest[one.load] or 1.0
        outer = [] if low is None or high is None else [(low / whole, high / whole, "c0 faint")]
        inner = [] if near is None or far is None else [(near / whole, far / whole, "c0")]
        speed = "-" if one.throughput is None else f"{float(f'{one.throughput:.4g}'):,g} {shown(one.throughput_unit)}/s"
        yield (
            shown(one.load) or "-",
            shown(one.variant),
            (_latency(one), [*outer, *inner]),
            (speed, [(0.0, (one.throughput or 0.0) / most, "c2")]),
            _effect(one),
        )


def _at(one: Measured, share: float) -> float | None:
    return next((value for place, value in one.curve if place == share), None)


def _latency(one: Measured) -> str:
    median, low, high = _number(one.latency_seconds.get("p50", {}).get("value")), _at(one, OUTER[0]), _at(one, OUTER[1])
    ends = "" if low is None or high is None else f" ({low * 1e3:.3g} to {high * 1e3:.3g})"
    return f"{'-' if median is None else f'{median * 1e3:.3g}'}{ends} ms, {one.samples:,} samples"


def _effect(one: Measured) -> str:
    faster = one.times_faster.get("latency_seconds", {})
    low, high = faster.get("low"), faster.get("high")
    if low is None or high is None:
        return "-"
    return f"{low:.3g} to {high:.3g} times as fast"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
