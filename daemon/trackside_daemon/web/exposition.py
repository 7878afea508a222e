"""Rendering of the state as Prometheus text 0.0.4 and OpenMetrics 1.0, and as protobuf.

The constant part of a series, ``name{labels} ``, is rendered once and stored with the series, so that a scrape mostly
formats numbers. Names are plain ASCII, so every escaping scheme gives the same bytes.

Prometheus gets native histograms in protobuf: messages of https://github.com/prometheus/client_model,
io/prometheus/client/metrics.proto, each with its length before it.
"""

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate, pairwise
from math import inf, isnan
from typing import cast

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_exposition

from trackside.buckets import DURATION_INDEXES, DURATION_SCHEMA
from trackside.packing import encoded_varint
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
    page = "".join(parts).encode("utf-8", "replace")  # as in protobuf: one label must not cost the page
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


@lru_cache(maxsize=8192)
def _header(metric: Metric, *, openmetrics: bool) -> str:
    help_text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    if not openmetrics:
        # The text format has no type "info", and another word for an unknown one.
        kind = {"info": "gauge", "unknown": "untyped"}.get(metric.kind, metric.kind)
        return f"# HELP {metric.name} {help_text}\n# TYPE {metric.name} {kind}\n"
    # Only OpenMetrics escapes quotes in help texts.
    help_text = help_text.replace('"', '\\"')
    unit = f"# UNIT {metric.family} {metric.unit}\n" if metric.unit else ""
    # Another program's counter may lack the suffix that OpenMetrics asks for.
    kind = "unknown" if metric.kind == "counter" and metric.family == metric.name else metric.kind
    return f"# HELP {metric.family} {help_text}\n# TYPE {metric.family} {kind}\n{unit}"


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


_COUNTER, _GAUGE, _UNTYPED, _HISTOGRAM = 0, 1, 3, 4  # MetricType
_VALUES = {_COUNTER: 3, _GAUGE: 2, _UNTYPED: 5}  # field of a metric with its value
_ZERO = 2.0 ** (DURATION_INDEXES.start // 2**DURATION_SCHEMA)  # durations up to this are in no bucket


def render_protobuf(snapshot: list[PageFamily], process_metrics: CollectorRegistry | None = None) -> bytes:
    """Return the metrics page; see `exposition.render`."""
    parts = []
    for metric, all_series, values, _ in snapshot:
        kind = {"counter": _COUNTER, "histogram": _HISTOGRAM, "unknown": _UNTYPED}.get(metric.kind, _GAUGE)
        rows = []
        for series, value in zip(all_series, values, strict=True):
            labels = zip(metric.labels, series.labels, strict=True)
            if kind == _HISTOGRAM:
                rows.append(_metric(labels, 7, _protobuf_histogram(metric.buckets, cast("Distribution", value))))
            else:
                rows.append(_metric(labels, _VALUES[kind], _double(1, cast("float", value))))
        parts.append(_family(metric.name, metric.help, kind, rows))
    if process_metrics is not None:
        parts += _registry(process_metrics)
    return b"".join(encoded_varint(len(part)) + part for part in parts)


def _registry(registry: CollectorRegistry) -> Iterable[bytes]:
    for family in registry.collect():
        counts = family.type == "counter"
        rows = [
            _metric(sample.labels.items(), 3 if counts else 2, _double(1, sample.value))
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]
        name = f"{family.name}{'_total' if counts else '_info' if family.type == 'info' else ''}"
        yield _family(name, family.documentation, _COUNTER if counts else _GAUGE, rows)


def _family(name: str, text: str, kind: int, rows: Iterable[bytes]) -> bytes:
    head = _bytes(1, name.encode()) + _bytes(2, text.encode()) + _integer(3, kind)
    return head + b"".join(_bytes(4, row) for row in rows)


def _metric(labels: Iterable[tuple[str, str]], field: int, value: bytes) -> bytes:
    pairs = (_bytes(1, name.encode()) + _bytes(2, text.encode("utf-8", "replace")) for name, text in sorted(labels))
    return b"".join(_bytes(1, pair) for pair in pairs) + _bytes(field, value)


def _protobuf_histogram(bounds: tuple[float, ...], value: Distribution) -> bytes:
    cumulative = list(accumulate(value.counts))
    parts = [_integer(1, cumulative[-1]), _double(2, value.sum)]
    parts += [
        _bytes(3, _integer(1, count) + _double(2, bound))
        for bound, count in zip((*bounds, inf), cumulative, strict=True)
    ]
    if value.fine:
        rest = max(0, cumulative[-1] - sum(value.fine.values()))
        parts += [_integer(5, _zigzag(DURATION_SCHEMA)), _double(6, _ZERO), _integer(7, rest), *_spans(value.fine)]
    return b"".join(parts)


def _spans(counts: Mapping[int, int]) -> Iterable[bytes]:
    """Yield the spans of consecutive buckets, each with its distance from the one before, then the counts as differences."""
    runs: list[list[int]] = []
    for index in sorted(counts):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    end = 0
    for run in runs:
        yield _bytes(12, _integer(1, _zigzag(run[0] - end)) + _integer(2, len(run)))
        end = run[-1] + 1
    numbers = [0, *(counts[index] for run in runs for index in run)]
    yield _bytes(13, b"".join(encoded_varint(_zigzag(after - before)) for before, after in pairwise(numbers)))


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _integer(field: int, number: int) -> bytes:
    return bytes([field << 3]) + encoded_varint(number)


def _double(field: int, number: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", number)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + encoded_varint(len(value)) + value
