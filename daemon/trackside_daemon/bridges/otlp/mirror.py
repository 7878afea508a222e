"""Mirror runs, GPUs and host over OTLP: each sample with the name, the labels and the time that it has here."""

import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trackside_daemon.bridges.mirrors.target import MirroredRun, Row, State, Target
from trackside_daemon.history.series_name import series_labels
from trackside_daemon.http_client import http_request
from trackside_daemon.http_client.errors import SettingError
from trackside_daemon.model.families.training import AMOUNTS, KNOWN, SAMPLES, STEP, TOKENS, VALUE

SETTING = "bridges.otlp"
POINTS = 5000  # data points in one request

_COUNTERS = {"samples": SAMPLES, "tokens": TOKENS}

Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels."""

Points = dict[Series, dict[int, float]]
"""The last value of each millisecond, by series: servers keep one value for each."""


class OtlpServer(Target):
    """See `trackside_daemon.bridges.mirrors.target.Target`.

    A point that is sent again has the same series and time, and servers keep it once.

    Args:
        url: Address of the server.
        headers: Returns headers with secrets, which may change.
        context: Trusted certificates.
    """

    machine = True
    histograms = False

    def __init__(self, url: str, headers: Callable[[], Mapping[str, str]], context: ssl.SSLContext) -> None:
        self._url = url
        self._headers = headers
        self._context = context
        self._host = socket.gethostname()

    def begin(self, run: MirroredRun, state: State) -> State:
        """See `Target`."""
        del run
        return {"sums": {}, **state}

    def send(self, run: MirroredRun, rows: Sequence[Row], state: State) -> State:
        """See `Target`."""
        sums = dict(state["sums"])
        points: Points = {}
        count = 0
        for row in rows:
            for series, value in _machine(row) if not run.id else _training(run, row, sums):
                points.setdefault(series, {})[row.time // 1000] = value
                count += 1
            if count >= POINTS:
                self._post(points)
                points, count = {}, 0
        if points:
            self._post(points)
        return {**state, "sums": sums}

    def _post(self, points: Points) -> None:
        headers = {**self._headers(), "Content-Type": "application/x-protobuf"}
        http_request.post(self._url, _encoded(points, self._host), headers, self._context)


def make_target(settings: dict[str, Any]) -> OtlpServer:
    """Return the target for some settings.

    Raises:
        SettingError: One of them cannot be used, or a library is not installed.
    """
    try:
        import opentelemetry.proto.collector.metrics.v1.metrics_service_pb2  # noqa: F401
    except ImportError:
        raise SettingError(f"{SETTING}: opentelemetry-proto is not installed; pip install 'trackside[otlp]'") from None
    try:
        http_request.without_secrets(settings["url"])
    except ValueError as error:
        raise SettingError(f"{SETTING}.url: {error}") from None
    path = settings["headers_file"]

    def headers() -> Mapping[str, str]:
        return http_request.read_headers(path, f"{SETTING}.headers-file")

    headers()
    return OtlpServer(settings["url"], headers, http_request.tls_context(settings["ca_file"], f"{SETTING}.ca-file"))


def _training(run: MirroredRun, row: Row, sums: dict[str, float]) -> list[tuple[Series, float]]:
    """Return the series of a rank, as /metrics has them."""
    labels = (("run", run.name), ("rank", str(row.rank)))
    found: list[tuple[Series, float]] = [((STEP.name, labels), float(row.step))]
    for key, value in row.values.items():
        if key in AMOUNTS:
            place = f"{row.attempt} {row.rank} {key}"
            if value >= 0:
                sums[place] = sums.get(place, 0.0) + value
            found.append(((_COUNTERS[key].name, labels), sums.get(place, 0.0)))
        elif key in KNOWN:
            found.append(((KNOWN[key].name, labels), value))
        else:
            found.append(((VALUE.name, (*labels, ("key", key))), value))
    return found


def _machine(row: Row) -> list[tuple[Series, float]]:
    """Return the series of the machine, whose keys are the names and labels of /metrics."""
    found = []
    for key, value in row.values.items():
        found.append(((key.partition("{")[0], tuple(series_labels(key).items())), value))
    return found


def _encoded(points: Points, host: str) -> bytes:
    """Return a request: a counter is a cumulative sum, everything else a gauge."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    for name, text in (("service.name", "trackside"), ("service.instance.id", host)):
        resource.resource.attributes.add(key=name).value.string_value = text
    scope = resource.scope_metrics.add()
    scope.scope.name = "trackside"
    metrics: dict[str, Any] = {}
    for (name, labels), samples in points.items():
        metric = metrics.get(name)
        if metric is None:
            metric = metrics[name] = scope.metrics.add(name=name)
        if name.endswith("_total"):
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
        series = metric.sum if name.endswith("_total") else metric.gauge
        for moment, value in samples.items():
            point = series.data_points.add(time_unix_nano=moment * 1_000_000, as_double=value)
            for label, content in labels:
                point.attributes.add(key=label).value.string_value = content
    return bytes(request.SerializeToString())
