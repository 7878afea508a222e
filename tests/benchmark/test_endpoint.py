"""Requests to an endpoint: times are those of the schedule, and what fails is counted and never averaged in."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import pytest
from benchmark.streaming_server import StreamingServer

from trackside.benchmark.in_process import EACH, FAILED_ROUNDS, ModelEndpoint, findings
from trackside.benchmark.messages import LATENCY, Load, ProcessRequest, Requests, Spec
from trackside.benchmark.results import Measurements, results
from trackside.benchmark.rounds import Sampling, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD, BAD = "count", ("fail", "refuse", "cut", "unfinished")


def test_ttft_and_tpot_are_those_of_the_schedule(count: Callable[[int, int], int]) -> None:
    longer = count(1, 5)
    first = 0.2 * longer  # seconds
    gap, tolerance = first / 5, 0.02 if longer > 1 else 0.6  # other tests on a busy machine delay short ones
    with StreamingServer(first, gap) as server:
        for concurrency in (1, 8, 32):
            endpoint = ModelEndpoint(server.url, Requests())
            endpoint.begin(Load(concurrency=concurrency))
            found = endpoint.measure(Sampling())
            assert found["completed"] == [float(concurrency * EACH)]
            assert median(found["ttft_seconds"]) == pytest.approx(first, rel=tolerance)
            assert median(found["tpot_seconds"]) == pytest.approx(gap, rel=tolerance)
            assert len(found["tpot_seconds"]) == concurrency * EACH


def test_what_fails_is_counted_and_not_averaged_in() -> None:
    with StreamingServer(0.002, 0.002) as server:
        endpoint = ModelEndpoint(server.url, Requests(prompts=(GOOD, "hang", *BAD), timeout=0.5))
        endpoint.begin(Load(concurrency=6))
        found = endpoint.measure(Sampling())
    total = 6 * EACH
    outcomes = {name: int(found[name][0]) for name in ("completed", "error", "timeout", "cut")}
    assert sum(outcomes.values()) == total
    assert outcomes == {"completed": total / 6, "error": total / 3, "timeout": total / 6, "cut": total / 3}
    assert len(found[LATENCY]) == len(found["ttft_seconds"]) == outcomes["completed"]


def test_requests_have_prompt_model_and_headers() -> None:
    with StreamingServer(0.001, 0.001) as server:
        requests = Requests(model="m", prompts=("one", "two"), tokens=9, headers={"Authorization": "Bearer x"})
        endpoint = ModelEndpoint(server.url, requests)
        for _ in range(2):
            endpoint.begin(Load(concurrency=1))
    one, two = server.requests
    assert (one["path"], one["model"], one["max_tokens"], one["stream"]) == ("/v1/chat/completions", "m", 9, True)
    assert [request["messages"][0]["content"] for request in (one, two)] == ["one", "two"]
    assert one["headers"]["Authorization"] == "Bearer x"


def test_answers_in_one_part_have_no_time_per_token() -> None:
    with StreamingServer(0.002, 0.002) as server:
        specs = [Spec(name, server.url) for name in ("one", "other")]
        request = ProcessRequest("measure", specs, [Load(concurrency=2)], 0.1, requests=Requests(prompts=("whole",)))
        measured = Measurements(["one", "other"])
        measured.begin()
        for finding in findings(request):
            measured.add(finding)
    contents = results(measured)
    assert contents["variants"][0]["latency_seconds"]["p50"]["value"] > 0
    assert contents["variants"][0]["tpot_seconds"]["p50"]["value"] is None
    assert {one["measure"] for one in contents["comparisons"]} == {LATENCY, "ttft_seconds"}


def test_an_endpoint_that_never_works_is_named_with_its_reason() -> None:
    with StreamingServer(0.001, 0.001) as server:
        with pytest.raises(TargetError, match=r"/v1: HTTP 500: .*the model is on fire"):
            ModelEndpoint(server.url, Requests(prompts=("fail",))).begin(Load(concurrency=1))
        endpoint = ModelEndpoint(server.url, Requests(prompts=(GOOD, *["refuse"] * 99)))
        endpoint.begin(Load(concurrency=1))
        for _ in range(FAILED_ROUNDS - 1):
            assert endpoint.measure(Sampling())["completed"] == [0.0]
        with pytest.raises(TargetError, match="too long"):
            endpoint.measure(Sampling())
    with pytest.raises(TargetError, match="/v1: ConnectionRefusedError"):
        ModelEndpoint(server.url, Requests()).begin(Load(concurrency=1))
