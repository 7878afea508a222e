"""The real Prometheus reads native histograms of durations, if it asks for them, and classic ones otherwise."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from end_to_end.prometheus import Prometheus
from http_service import HttpService
from processes import DEADLINE, eventually
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from trackside.totals.session_totals import empty, observe
from trackside.wire import DURATION_BUCKETS, Histogram
from trackside_daemon.model.metric import Batch, Distribution, Metric, Sample
from trackside_daemon.model.state import State
from trackside_daemon.web.exposition import process_registry, render, render_protobuf
from trackside_daemon.web.http.negotiation import negotiate_format

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from starlette.requests import Request

FAMILY = "trackside_training_step_duration_seconds"
STEP = Metric(FAMILY, "histogram", "Steps.", ("run",), "seconds", DURATION_BUCKETS)


@pytest.fixture
def served() -> Iterator[HttpService]:
    """A page with the durations of a hundred steps of 31 ms."""
    state, observed = State(), empty(Histogram)
    for _ in range(100):
        observe(observed, 0.031)
    state.update(
        Batch(
            "training",
            [Sample(STEP, ("a",), Distribution(tuple(observed.counts), observed.sum, observed.fine))],
            complete=True,
        )
    )

    def page(request: Request) -> Response:
        chosen, snapshot = negotiate_format(request.headers.get("accept", "")), state.snapshot(0.0)
        body = (
            render_protobuf(snapshot, process_registry())
            if chosen.protobuf
            else render(snapshot, openmetrics=chosen.openmetrics)
        )
        return Response(body, headers={"Content-Type": chosen.content_type})

    service = HttpService(Starlette(routes=[Route("/metrics", page)]))
    yield service
    service.server.stop()


def test_prometheus_reads_them_and_computes_a_quantile(served: HttpService, tmp_path: Path) -> None:
    with Prometheus(tmp_path, served.url, features="native-histograms") as prometheus:
        (point,) = eventually(lambda: prometheus.query(f"histogram_quantile(0.5, {FAMILY})"))
        assert point.value == pytest.approx(0.031, rel=0.1)  # the width of a bucket; the classic one reaches to 0.05
        assert [one.value for one in prometheus.query(f"histogram_count({FAMILY})")] == [100]
        assert prometheus.query("process_cpu_seconds_total")
        printed = subprocess.run(
            ["promtool", "query", "instant", prometheus.url, f"histogram_count({FAMILY})"],
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE,
        ).stdout
        assert " => 100 @" in printed
