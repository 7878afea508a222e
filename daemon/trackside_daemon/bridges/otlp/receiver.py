"""Receive metrics over OTLP: gauges and sums become families as a text file would have them.

The messages are those of https://github.com/open-telemetry/opentelemetry-proto, collector/metrics/v1/metrics_service.proto, as
protobuf or JSON. Names get the characters that Prometheus allows, and sums that only grow end in ``_total``.
"""

import logging
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any, NamedTuple, TypeVar

import msgspec

from trackside.log_once import LogOnce
from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.foreign import LABELS, SERIES, ForeignFamilies, ForeignFamily, Labels
from trackside_daemon.http_client import protobuf
from trackside_daemon.model.metric import Kind, Sample

KEPT_SECONDS = 300.0  # for which a series is served after its last point, as Prometheus looks back
EXPIRE_SECONDS = 10.0  # between two searches for series that have none any more
LONGEST = 1024  # characters of a name, a label's value or a help text
LETTERS = 8 * 2**20  # characters of the labels of all series
# Most points, attributes and so on of a request, or braces: an empty one takes 3 bytes, and 100 of memory.
OBJECTS = 200_000

_TOO_MANY = f"a request has at most {OBJECTS:,} points and attributes; send it in parts"
_DELTA = 1  # AGGREGATION_TEMPORALITY_DELTA
_NO_NAME = re.compile(r"[^a-zA-Z0-9_:]")
_NO_LABEL = re.compile(r"[^a-zA-Z0-9_]")

T = TypeVar("T")

log = logging.getLogger("trackside")


class OtlpPoint(NamedTuple):
    """A point of a gauge or of a sum; *time* is in nanoseconds."""

    name: str
    help: str
    kind: Kind
    is_delta: bool
    labels: Labels
    time: int
    value: float


class _Value(msgspec.Struct, rename="camel"):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None

    @property
    def text(self) -> str:
        if self.bool_value is not None:
            return str(self.bool_value).lower()
        values = (self.string_value, self.int_value, self.double_value)
        return next((str(value) for value in values if value is not None), "")


class _Attribute(msgspec.Struct):
    key: str = ""
    value: _Value = msgspec.field(default_factory=_Value)


class _Number(msgspec.Struct, rename="camel"):
    attributes: list[_Attribute] = []
    time_unix_nano: int | str = 0
    as_double: float | str | None = None
    as_int: int | str | None = None
    flags: int = 0


class _Data(msgspec.Struct, rename="camel"):
    data_points: list[_Number] = []
    aggregation_temporality: int | str = 0
    is_monotonic: bool = False


class _Metric(msgspec.Struct):
    name: str = ""
    description: str = ""
    gauge: _Data | None = None
    sum: _Data | None = None


class _Scope(msgspec.Struct):
    metrics: list[_Metric] = []


class _Resource(msgspec.Struct):
    attributes: list[_Attribute] = []


class _OfResource(msgspec.Struct, rename="camel"):
    resource: _Resource = msgspec.field(default_factory=_Resource)
    scope_metrics: list[_Scope] = []


class _Request(msgspec.Struct, rename="camel"):
    resource_metrics: list[_OfResource] = []


def decode(body: bytes, *, is_json: bool) -> list[OtlpPoint]:
    """Return the points of a request; histograms and summaries are left out.

    Raises:
        OverflowError: It has too many parts.
        ValueError: It is no such request.
    """
    if is_json and body.count(b"{") > OBJECTS:
        raise OverflowError(_TOO_MANY)
    request = (
        msgspec.json.decode(body, type=_Request) if is_json else _from_protobuf(_Request, body, iter(range(OBJECTS)))
    )
    return [
        point
        for of_resource in request.resource_metrics
        for scope in of_resource.scope_metrics
        for metric in scope.metrics
        for point in _points(metric, of_resource.resource.attributes)
    ]


def _points(metric: _Metric, about: list[_Attribute]) -> Iterator[OtlpPoint]:
    name = _NO_NAME.sub("_", metric.name[:LONGEST])
    name = f"_{name}" if name[:1].isdecimal() else name
    data = metric.gauge or metric.sum
    if data is None or not name:
        return
    grows = metric.gauge is None and data.is_monotonic
    delta = metric.gauge is None and data.aggregation_temporality in {_DELTA, "AGGREGATION_TEMPORALITY_DELTA"}
    kind: Kind = "counter" if grows else "gauge"
    name = f"{name.removesuffix('_total')}_total" if grows else name
    for one in data.data_points:
        given = one.as_double if one.as_double is not None else one.as_int
        if given is None or one.flags & 1 or len(about) + len(one.attributes) > LABELS:  # it says that it has no value
            continue
        pairs = {_label(attribute.key): attribute.value.text[:LONGEST] for attribute in (*about, *one.attributes)}
        labels = tuple(sorted((label, value) for label, value in pairs.items() if value))
        yield OtlpPoint(name, metric.description[:LONGEST], kind, delta, labels, int(one.time_unix_nano), float(given))


def _label(key: str) -> str:
    name = _NO_LABEL.sub("_", key[:LONGEST]) or "_"
    return f"key_{name}" if name[0].isdecimal() or name.startswith("__") else name


# The fields of messages by their numbers: a text, a message, a list of messages, an integer, or the format of eight bytes.
_FIELDS: dict[type, dict[int, tuple[str, Any]]] = {
    _Request: {1: ("resource_metrics", [_OfResource])},
    _OfResource: {1: ("resource", _Resource), 2: ("scope_metrics", [_Scope])},
    _Resource: {1: ("attributes", [_Attribute])},
    _Scope: {2: ("metrics", [_Metric])},
    _Metric: {1: ("name", str), 2: ("description", str), 5: ("gauge", _Data), 7: ("sum", _Data)},
    _Data: {1: ("data_points", [_Number]), 2: ("aggregation_temporality", int), 3: ("is_monotonic", bool)},
    _Number: {
        3: ("time_unix_nano", "<Q"),
        4: ("as_double", "<d"),
        6: ("as_int", "<q"),
        7: ("attributes", [_Attribute]),
        8: ("flags", int),
    },
    _Attribute: {1: ("key", str), 2: ("value", _Value)},
    _Value: {1: ("string_value", str), 2: ("bool_value", bool), 3: ("int_value", int), 4: ("double_value", "<d")},
}


def _from_protobuf(kind: type[T], data: bytes, room: Iterator[int]) -> T:
    """Return a message; *room* ends after the most messages of a request."""
    if next(room, None) is None:
        raise OverflowError(_TOO_MANY)
    found: dict[str, Any] = {}
    for number, wire, begin, end in protobuf.fields(data):
        name, what = _FIELDS[kind].get(number, ("", None))
        if wire == protobuf.BYTES and what is str:
            found[name] = data[begin:end].decode("utf-8", "replace")
        elif wire == protobuf.BYTES and isinstance(what, list):
            found.setdefault(name, []).append(_from_protobuf(what[0], data[begin:end], room))
        elif wire == protobuf.BYTES and what in _FIELDS:
            found[name] = _from_protobuf(what, data[begin:end], room)
        elif wire == protobuf.FIXED64 and isinstance(what, str):
            (found[name],) = struct.unpack_from(what, data, begin)
        elif wire == protobuf.VARINT and what in (int, bool):
            found[name] = what(protobuf.signed(protobuf.varint(data, begin)[0]))
    return kind(**found)


class _Series:
    __slots__ = ("seen", "time", "value")

    def __init__(self) -> None:
        self.value, self.time, self.seen = 0.0, -1, 0.0


class OtlpCollector:
    """The newest point of each series that was received; any thread may bring points.

    Args:
        families: The names of others' families.
        clock: Seconds of the monotonic clock.
    """

    name = "otlp"

    def __init__(self, families: ForeignFamilies, clock: Callable[[], float] = time.monotonic) -> None:
        self._families = families
        self._clock = clock
        self._lock = threading.Lock()
        self._series: dict[tuple[str, Labels], _Series] = {}
        self._about: dict[str, tuple[Kind, str]] = {}
        self._once = LogOnce(most=100)
        self._samples: list[Sample] = []
        self._letters = 0
        self._due = 0.0
        self.left_out = ""

    def accept(self, points: list[OtlpPoint]) -> int:
        """Keep the points of a request, and return how many had no room or another type than before."""
        refused = 0
        with self._lock:
            self._due = 0.0
            for point in points:
                key = point.name, point.labels
                one = self._series.get(key)
                is_other = self._about.get(point.name, (point.kind,))[0] != point.kind
                size = 0 if one else sum(len(text) for pair in point.labels for text in pair)
                is_full = one is None and (len(self._series) >= SERIES or self._letters + size > LETTERS)
                if is_other or is_full:
                    refused += 1
                    continue
                self._letters += size
                self._about.setdefault(point.name, (point.kind, point.help))
                if one is None:
                    one = self._series[key] = _Series()
                one.seen = self._clock()
                # What a clock that was ahead has sent does not hold back what comes later.
                is_later = point.time > one.time or one.time > time.time_ns()
                if (is_later and point.time != one.time) or not point.time:  # else it was sent again
                    grown = point.value if isfinite(point.value) else 0.0
                    one.value = one.value + grown if point.is_delta else point.value
                    one.time = point.time
        return refused

    def collect(self) -> list[Sample]:
        """Return the newest value of each series.

        Raises:
            NothingToCollect: Nothing was received lately.
        """
        now = self._clock()
        with self._lock:
            if now >= self._due:
                self._due = now + EXPIRE_SECONDS
                self._merge(now - KEPT_SECONDS)
        if not self._samples:
            raise NothingToCollect("nothing was received at otlp.endpoint in the last 5 minutes")
        return self._samples

    def _merge(self, oldest: float) -> None:
        """Forget series without a point since *oldest*, and make the samples of the others."""
        self._series = {key: one for key, one in self._series.items() if one.seen >= oldest}
        self._letters = sum(len(text) for _, labels in self._series for pair in labels for text in pair)
        names = {name for name, _ in self._series}
        self._about = {name: about for name, about in self._about.items() if name in names}
        parts: dict[str, dict[str, ForeignFamily]] = {}
        for (name, labels), one in self._series.items():
            kind, text = self._about[name]
            part = parts.setdefault(name, {name: ForeignFamily(kind, text or "Received over OTLP.", {}, kind)})
            part[name].series[labels] = one.value
        self._samples, wrong = self._families.merge(self.name, parts.items())
        for name, why in wrong.items():
            if self._once.first(name, why):
                log.warning("collector otlp: left out: %s", why)
        self.left_out = "; ".join([*wrong.values()][:3])
