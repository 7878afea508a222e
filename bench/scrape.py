"""Measure how long a scrape takes, and how long rendering takes, compared with prometheus_client."""

from __future__ import annotations

import http.client
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, cast

import pytest
from processes import Daemon, eventually
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

import trackside
from bench.daemons import fresh_daemon
from trackside_daemon.model.metric import Batch, Metric, Sample
from trackside_daemon.model.state import State
from trackside_daemon.web.exposition import render

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

SIZES = (5_000, 10_000)
SERIES_A_FAMILY = 20
RIVAL = """
import random, sys, time
from prometheus_client import CollectorRegistry, Gauge, start_http_server
registry, chance = CollectorRegistry(), random.Random(0)
for family in range(int(sys.argv[1]) // 20):
    gauge = Gauge(f"bench_family_{family}", "A family.", ["run", "rank", "key"], registry=registry)
    for key in range(20):
        gauge.labels("bench", "0", f"layer.{key}/grad_norm").set(chance.random())
server, _ = start_http_server(0, "127.0.0.1", registry)
print(server.server_port, flush=True)
time.sleep(3600)
"""


class _Families(Collector):
    """The families of a `State`, for prometheus_client to render."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families: dict[str, GaugeMetricFamily] = {}
        for metric, labels, value in self._batch.samples:
            family = families.get(metric.name)
            if family is None:
                family = families[metric.name] = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            family.add_metric(labels, cast("float", value))
        return families.values()


def _batch(size: int) -> Batch:
    chance = random.Random(0)
    metrics = [
        Metric(f"bench_family_{number:04d}", "gauge", "A family.", ("run", "rank", "key"))
        for number in range(size // SERIES_A_FAMILY)
    ]
    keys = [f"layer.{key}/grad_norm" for key in range(SERIES_A_FAMILY)]
    return Batch("bench", [Sample(metric, ("bench", "0", key), chance.random()) for metric in metrics for key in keys])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "OpenMetrics"])
@pytest.mark.parametrize("what", ["trackside", "prometheus_client"])
def test_render(benchmark: BenchmarkFixture, what: str, openmetrics: bool, size: int) -> None:
    batch = _batch(size)
    state = State()
    state.update(batch)
    registry = CollectorRegistry()
    registry.register(_Families(batch))
    generate = generate_openmetrics if openmetrics else generate_latest

    def ours() -> bytes:
        return render(state.snapshot(time.monotonic()), openmetrics=openmetrics)

    def theirs() -> bytes:
        return bytes(generate(registry))

    assert ours() == theirs()
    benchmark.group = f"rendering {size:,} series, {'OpenMetrics' if openmetrics else 'text'}"
    benchmark.extra_info["what"] = what
    benchmark.pedantic(ours if what == "trackside" else theirs, rounds=50, warmup_rounds=3)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module", params=SIZES)
def filled(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """Start the real daemon with this many series on its page, pushed by the real client."""
    with fresh_daemon() as daemon:
        chance, runs = random.Random(0), []
        for number in range(request.param // 1000):
            runs.append(trackside.init(f"bench-{number}", endpoint=daemon.endpoint))
            runs[-1].push({f"layer.{key}/grad_norm": chance.random() for key in range(970)}, step=0)
        eventually(lambda: len(daemon.series()) >= 0.95 * request.param)
        yield daemon
        for run in runs:
            run.finish()


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_scrape(benchmark: BenchmarkFixture, filled: Daemon, encoding: str) -> None:
    series = len(filled.series())
    benchmark.group = f"HTTP scrape of {round(series, -3):,} series, {encoding}"
    benchmark.extra_info["what"] = f"trackside daemon ({series:,} series)"
    _measure(benchmark, int(filled.url.rpartition(":")[2]), encoding)


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize("size", SIZES)
def test_scrape_of_rival(benchmark: BenchmarkFixture, size: int, encoding: str) -> None:
    with subprocess.Popen([sys.executable, "-c", RIVAL, str(size)], stdout=subprocess.PIPE, text=True) as rival:
        assert rival.stdout is not None
        port = int(rival.stdout.readline())
        benchmark.group = f"HTTP scrape of {size:,} series, {encoding}"
        benchmark.extra_info["what"] = "prometheus_client's start_http_server"
        _measure(benchmark, port, encoding)
        rival.kill()


def _measure(benchmark: BenchmarkFixture, port: int, encoding: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": encoding}

    def scrape() -> Any:
        connection.request("GET", "/metrics", headers=headers)
        return connection.getresponse().read()

    assert scrape()
    benchmark.pedantic(scrape, rounds=100, warmup_rounds=5)  # type: ignore[no-untyped-call]
    connection.close()
