"""Rendering of the state as protobuf, in which Prometheus gets native histograms.

Messages of https://github.com/prometheus/client_model, io/prometheus/client/metrics.proto, each with its length before it.
"""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from math import inf
from typing import TYPE_CHECKING, cast

from trackside.buckets import DURATION_INDEXES, DURATION_SCHEMA
from trackside.packing import encoded_varint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client import CollectorRegistry

    from trackside_daemon.model.metric import Distribution
    from trackside_daemon.model.state import PageFamily

_COUNTER, _GAUGE, _HISTOGRAM = 0, 1, 4  # MetricType
_ZERO = 2.0 ** (DURATION_INDEXES.start // 2**DURATION_SCHEMA)  # durations up to this are in no bucket


def render_protobuf(snapshot: list[PageFamily], process_metrics: CollectorRegistry | None = None) -> bytes:
    """Return the metrics page; see `exposition.render`."""
    parts = []
    for metric, all_series, values, _ in snapshot:
        kind = {"counter": _COUNTER, "histogram": _HISTOGRAM}.get(metric.kind, _GAUGE)
        rows = []
        for series, value in zip(all_series, values, strict=True):
            labels = zip(metric.labels, series.labels, strict=True)
            if kind == _HISTOGRAM:
                rows.append(_metric(labels, 7, _histogram(metric.buckets, cast("Distribution", value))))
            else:
                rows.append(_metric(labels, 3 if kind == _COUNTER else 2, _double(1, cast("float", value))))
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


def _histogram(bounds: tuple[float, ...], value: Distribution) -> bytes:
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
