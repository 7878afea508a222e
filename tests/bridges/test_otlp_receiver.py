"""Gauges and sums over OTLP arrive as JSON and protobuf; hostile requests are bounded and refused."""

from __future__ import annotations

import gzip
import json
import os
import pwd
import socket
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from processes import DEADLINE
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from trackside_daemon.bridges.otlp import receiver
from trackside_daemon.bridges.otlp.receiver import KEPT_SECONDS, OtlpCollector, decode
from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.foreign import ForeignFamilies
from trackside_daemon.linux.socket_address import may_push, user_of
from trackside_daemon.web import otlp
from trackside_daemon.web.http.address import AddressError
from trackside_daemon.web.otlp import OtlpReceiver, otlp_server
from trackside_daemon.web.settings import OtlpInSection

MessageToJson: Any = pytest.importorskip("google.protobuf.json_format").MessageToJson
JSON, PROTOBUF = "application/json", "application/x-protobuf"


def request() -> ExportMetricsServiceRequest:
    found = ExportMetricsServiceRequest()
    resource = found.resource_metrics.add()
    resource.resource.attributes.add(key="host.name").value.string_value = "node7"
    scope = resource.scope_metrics.add()
    gauge = scope.metrics.add(name="nccl_bus_bandwidth_gbs", description="Bus bandwidth").gauge
    point = gauge.data_points.add(as_double=41.5, time_unix_nano=5)
    point.attributes.add(key="gpu").value.int_value = 3
    point.attributes.add(key="ok").value.bool_value = True
    sums = scope.metrics.add(name="http.requests").sum
    sums.is_monotonic, sums.aggregation_temporality = True, 2
    sums.data_points.add(as_int=-7, time_unix_nano=5)
    scope.metrics.add(name="latency").histogram.data_points.add(count=3)
    return found


class Receiver:
    """A receiver with a client, and the time that the collector sees."""

    def __init__(self, authorization: str = "") -> None:
        self.now = 0.0
        self.may_send = True
        self.collector = OtlpCollector(ForeignFamilies(), lambda: self.now)
        answer = OtlpReceiver(self.collector, authorization, lambda _: self.may_send)
        self.client = TestClient(Starlette(routes=[Route("/v1/metrics", answer.receive, methods=["POST"])]))

    def post(self, body: bytes | str, kind: str = JSON, **headers: str) -> Any:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post("/v1/metrics", content=body, headers={"Content-Type": kind, **names})

    def series(self) -> dict[str, tuple[dict[str, str], float]]:
        return {
            sample.metric.name: (dict(zip(sample.metric.labels, sample.labels, strict=True)), sample.value)
            for sample in self.collector.collect()
            if isinstance(sample.value, float)
        }


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_gauges_and_sums_become_families(kind: str) -> None:
    body = MessageToJson(request()) if kind == JSON else request().SerializeToString()
    at = Receiver()
    assert at.post(body, kind).status_code == 200
    assert at.series() == {
        "nccl_bus_bandwidth_gbs": ({"gpu": "3", "host_name": "node7", "ok": "true"}, 41.5),
        "http_requests_total": ({"host_name": "node7"}, -7.0),
    }
    assert at.post(
        gzip.compress(body if isinstance(body, bytes) else body.encode()), kind, Content_Encoding="gzip"
    ).is_success


def body(time: int, value: float | str, labels: str = "") -> str:
    point = f'{{"timeUnixNano": "{time}", "asDouble": {json.dumps(value)}, "attributes": [{labels}]}}'
    data = f'{{"dataPoints": [{point}], "aggregationTemporality": 1, "isMonotonic": true}}'
    return f'{{"resourceMetrics": [{{"scopeMetrics": [{{"metrics": [{{"name": "m", "sum": {data}}}]}}]}}]}}'


def test_differences_are_added_once_and_a_series_ends_five_minutes_after_its_last_point() -> None:
    at = Receiver()
    ahead = 10**19  # the clock of a sender
    for time, value in ((1, 2.0), (2, 3.0), (2, 3.0), (3, "NaN"), (ahead, 1.0), (ahead, 1.0), (4, 1.0)):
        at.post(body(time, value))
    assert at.series() == {"m_total": ({}, 7.0)}, "two are sent again, and NaN spoils no sum"
    at.now = KEPT_SECONDS + 1
    with pytest.raises(NothingToCollect):
        at.collector.collect()


@pytest.mark.parametrize(
    ("body", "kind", "headers", "status"),
    [
        (b"{}", "text/plain", {}, 415),
        (b"{}", JSON, {"Origin": "http://evil.example"}, 403),
        (b"[" * 100_000, JSON, {}, 400),
        (b'{"resourceMetrics": 3}', JSON, {}, 400),
        (b"\xff" * 100, PROTOBUF, {}, 400),
        (b"x" * 5000, JSON, {}, 413),
        (gzip.compress(b" " * 5000), JSON, {"Content-Encoding": "gzip"}, 413),
        (gzip.compress(b"{}") + b"x", JSON, {"Content-Encoding": "gzip"}, 400),
        (b"no gzip", JSON, {"Content-Encoding": "gzip"}, 400),
        (b"{}", JSON, {"Content-Encoding": "br"}, 400),
    ],
)
def test_a_hostile_request_is_refused(
    body: bytes, kind: str, headers: dict[str, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "BODY_BYTES", 200_000 if body.startswith(b"[") else 4000)
    answer = Receiver().client.post("/v1/metrics", content=body, headers={"Content-Type": kind, **headers})
    assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_series_beyond_the_limit_are_refused_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "SERIES", 1)
    at = Receiver()
    assert at.post(request().SerializeToString(), PROTOBUF).content == b"\n\x02\x08\x01"
    assert at.post(MessageToJson(request())).json() == {"partialSuccess": {"rejectedDataPoints": "1"}}
    assert len(at.series()) == 1


def test_labels_beyond_the_room_of_all_series_are_refused_until_some_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "LETTERS", 10)
    at = Receiver()

    def refused(text: str) -> bool:
        return bool(at.post(body(1, 1.0, f'{{"key": "k", "value": {{"stringValue": "{text}"}}}}')).json())

    assert [refused(text) for text in ("aaaaaa", "aaaaaa", "bbbbbb")] == [False, False, True]
    at.now = KEPT_SECONDS + 1
    with pytest.raises(NothingToCollect):
        at.collector.collect()
    assert not refused("bbbbbb")


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_a_request_of_very_many_parts_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    many = request()
    for number in range(30):
        many.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points.add(as_int=number)
    body = many.SerializeToString() if kind == PROTOBUF else MessageToJson(many)
    assert Receiver().post(body, kind).status_code == 200
    monkeypatch.setattr(receiver, "OBJECTS", 30)
    assert Receiver().post(body, kind).status_code == 413


def test_a_token_is_needed_where_one_is_set_and_on_every_address_but_loopback() -> None:
    at = Receiver("Bearer secret")
    assert at.post("{}").status_code == 401
    assert at.post("{}", Authorization="Bearer secret").status_code == 200
    with pytest.raises(AddressError, match=r"otlp\.token-file"):
        otlp_server(OtlpInSection(endpoint="0.0.0.0:0"), at.collector, None)


def test_without_a_token_only_users_of_the_push_socket_may_send() -> None:
    at = Receiver()
    at.may_send = False
    assert at.post("{}").json()["error"]["reason"] == "user"
    group = pwd.getpwuid(os.getuid()).pw_gid
    other = next(user for user in pwd.getpwall() if user.pw_uid not in {0, os.getuid()} and user.pw_gid != group)
    users = (None, 0, os.getuid(), other.pw_uid, 4_000_000_000)
    assert [may_push(uid, None) for uid in users] == [False, True, True, False, False]
    assert [may_push(uid, other.pw_gid) for uid in users] == [False, True, True, True, False]


@pytest.mark.parametrize(("host", "prefix"), [("127.0.0.1", ""), ("::1", ""), ("127.0.0.1", "::ffff:")])
def test_the_user_of_a_connection_is_known_until_it_is_closed(host: str, prefix: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        server = listener.getsockname()[:2]
        with socket.create_connection((prefix + host, server[1])) as sender, listener.accept()[0] as receiver:
            client = receiver.getpeername()[:2]
            assert user_of(client, server) == os.getuid()
            assert user_of((client[0], client[1]), (host, 1)) is None
            sender.shutdown(socket.SHUT_RDWR)
            assert receiver.recv(1) == b""
            assert user_of(client, server) is None


def test_a_body_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "BODY_SECONDS", 0.1)
    server, address = otlp_server(OtlpInSection(endpoint="127.0.0.1:0"), Receiver().collector, None)
    server.start()
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as sender:
        head = f"POST /v1/metrics HTTP/1.1\r\nHost: {host}\r\nContent-Type: {JSON}\r\nContent-Length: 9\r\n\r\n"
        sender.sendall(head.encode() + b"{")
        assert sender.recv(100).startswith(b"HTTP/1.1 408 ")
    server.stop()


@given(st.binary(max_size=80), st.booleans())
def test_no_bytes_break_the_decoder(body: bytes, is_json: bool) -> None:
    with suppress(ValueError):
        decode(body, is_json=is_json)
