"""Rendering of the state as Prometheus text 0.0.4 and OpenMetrics 1.0.

The constant part of a series, ``name{labels} ``, is rendered once and stored with the series, so that a scrape mostly
formats numbers. Names are plain ASCII, so every escaping scheme gives the same bytes.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from math import inf, isnan
from typing import TYPE_CHECKING, cast

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_exposition

if TYPE_CHECKING:
    from trackside_daemon.model.metric import Distribution, Metric
    from trackside_daemon.model.state import PageFamily, PageSeries


_encode = msgspec.json.Encoder().encode


def render(snapshot: list[PageFamily], *, openmetrics: bool, process_metrics: CollectorRegistry | None = None) -> bytes:
    """Return the metrics page.

    Args:
        snapshot: The families, their series and the values.
        openmetrics: OpenMetrics 1.0 instead of text 0.0.4.
        process_metrics: A prometheus_client registry whose families come last.
    """
    parts: list[str] = []
    for metric, all_series, values, _ in snapshot:
        parts.append(_header(metric, openmetrics=openmetrics))
        if metric.kind == "histogram":
            for series, value in zip(all_series, values, strict=True):
                parts += _histogram(metric, series, cast("Distribution", value))
            continue
        starts = [series.text or _line_start(metric, series) for series in all_series]
        texts = _format_numbers(cast("list[float]", values))
        parts += [f"{start}{text}\n" for start, text in zip(starts, texts, strict=True)]
    page = "".join(parts).encode()
    if process_metrics is not None:
        page += _render_registry(process_metrics, openmetrics=openmetrics)
    return page + b"# EOF\n" if openmetrics else page


def process_registry() -> CollectorRegistry:
    """Return a registry of the daemon's ``process_*`` and ``python_*`` families (/proc/self, the interpreter)."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


def format_number(value: float) -> str:
    """Return a value as Go writes it: with an exponent from 1e6 on, and ``+Inf``, ``-Inf``, ``NaN``."""
    if isnan(value):
        return "NaN"
    if value in {inf, -inf}:
        return "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}"
    return text


def _format_numbers(values: list[float]) -> list[str]:
    """Return `format_number` of each value."""
    # msgspec writes the same digits six times faster, but uses other exponents and has no NaN.
    text = _encode(values)[1:-1].decode()
    texts = text.split(",")
    if max(values) < 1e6 and not any(sign in text for sign in ("e", "0.0000", "null")):
        return texts
    return [
        fast_text if 1e-4 <= abs(value) < 1e6 else format_number(value)
        for fast_text, value in zip(texts, values, strict=True)
    ]


def _render_registry(registry: CollectorRegistry, *, openmetrics: bool) -> bytes:
    if openmetrics:
        page: bytes = openmetrics_exposition.generate_latest(registry)  # type: ignore[no-untyped-call]
        # The end may be only once on a page, and `render` adds it.
        return page.removesuffix(b"# EOF\n")
    return bytes(generate_latest(registry))


@cache
def _header(metric: Metric, *, openmetrics: bool) -> str:
    help_text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    if not openmetrics:
        # The text format has no type "info".
        kind = "gauge" if metric.kind == "info" else metric.kind
        return f"# HELP {metric.name} {help_text}\n# TYPE {metric.name} {kind}\n"
    # Only OpenMetrics escapes quotes in help texts.
    help_text = help_text.replace('"', '\\"')
    unit = f"# UNIT {metric.family} {metric.unit}\n" if metric.unit else ""
    return f"# HELP {metric.family} {help_text}\n# TYPE {metric.family} {metric.kind}\n{unit}"


def _line_start(metric: Metric, series: PageSeries) -> str:
    series.text = f"{metric.name}{_labels(metric, series)} "
    return series.text


def _histogram(metric: Metric, series: PageSeries, value: Distribution) -> list[str]:
    if series.text is None:
        bounds = [*map(format_number, metric.buckets), "+Inf"]
        buckets = [f"{metric.name}_bucket{_labels(metric, series, ('le', bound))} " for bound in bounds]
        suffixes = [f"{metric.name}_{suffix}{_labels(metric, series)} " for suffix in ("count", "sum")]
        series.text = (*buckets, *suffixes)
    cumulative = [float(count) for count in accumulate(value.counts)]
    values = (*cumulative, cumulative[-1], float(value.sum))
    return [f"{start}{format_number(number)}\n" for start, number in zip(series.text, values, strict=True)]


def _labels(metric: Metric, series: PageSeries, *more: tuple[str, str]) -> str:
    pairs = sorted((*zip(metric.labels, series.labels, strict=True), *more))
    escaped = (value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for _, value in pairs)
    inside = ",".join(f'{name}="{value}"' for (name, _), value in zip(pairs, escaped, strict=True))
    return f"{{{inside}}}" if inside else ""
