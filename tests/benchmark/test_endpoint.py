"""Requests to an endpoint: times are those of the schedule, and what fails is counted and never averaged in."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import pytest
from benchmark.streaming_server import TOKENS, StreamingServer

from trackside.benchmark.endpoint import EACH, FAILED_ROUNDS, Endpoint
from trackside.benchmark.messages import LATENCY, Load, Requests
from trackside.benchmark.rounds import Sampling, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD, BAD = "count", ("fail", "refuse", "cut", "unfinished")


def test_ttft_and_tpot_are_those_of_the_schedule(count: Callable[[int, int], int]) -> None:
    longer = count(1, 5)
    first = 0.2 * longer  # seconds
    gap, tolerance = first / 5, 0.02 if longer > 1 else 0.25  # other tests on a busy machine delay short ones
    with StreamingServer(first, gap) as server:
        for concurrency in (1, 8, 32):
            endpoint = Endpoint(server.url, Requests())
            endpoint.begin(Load(concurrency=concurrency))
            found = endpoint.measure(Sampling())
            assert found["completed"] == [float(concurrency * EACH)]
            assert median(found["ttft_seconds"]) == pytest.approx(first, rel=tolerance)
            assert median(found["tpot_seconds"]) == pytest.approx(gap, rel=tolerance)
            assert len(found["itl_seconds"]) == concurrency * EACH * (TOKENS - 1)


def test_what_fails_is_counted_and_not_averaged_in() -> None:
    with StreamingServer(0.002, 0.002) as server:
        endpoint = Endpoint(server.url, Requests(prompts=(GOOD, "hang", *BAD), timeout=0.5))
        endpoint.begin(Load(concurrency=6))
        found = endpoint.measure(Sampling())
    total = 6 * EACH
    outcomes = {name: int(found[name][0]) for name in ("completed", "error", "timeout", "cut")}
    assert sum(outcomes.values()) == total
    assert outcomes == {"completed": total / 6, "error": total / 3, "timeout": total / 6, "cut": total / 3}
    assert len(found[LATENCY]) == len(found["ttft_seconds"]) == outcomes["completed"]


def test_an_open_loop_sends_while_earlier_requests_wait_and_counts_from_when_they_were_due() -> None:
    with StreamingServer(0.1, 0.002) as server:
        endpoint = Endpoint(server.url, Requests(limits={"ttft_seconds": 10.0}))
        endpoint.begin(Load(rate=200.0))
        found = endpoint.measure(Sampling())
    assert found["completed"][0] >= 16
    assert found["requests_per_second"][0] > 2 / 0.1  # more than two connections could
    assert found["goodput_per_second"] == found["requests_per_second"]
    assert min(found["ttft_seconds"]) >= 0.1


def test_answers_over_a_limit_are_no_goodput() -> None:
    with StreamingServer(0.02, 0.001) as server:
        endpoint = Endpoint(server.url, Requests(limits={"ttft_seconds": 0.001}))
        endpoint.begin(Load(concurrency=2))
        found = endpoint.measure(Sampling())
    assert found["goodput_per_second"] == [0.0]
    assert found["requests_per_second"][0] > 0


def test_requests_have_prompt_model_and_headers() -> None:
    with StreamingServer(0.001, 0.001) as server:
        requests = Requests(model="m", prompts=("one", "two"), tokens=9, headers={"Authorization": "Bearer x"})
        for url in (server.url, f"{server.url}/completions"):
            Endpoint(url, requests).begin(Load(concurrency=1))
    chat, plain = server.requests
    assert (chat["path"], plain["path"]) == ("/v1/chat/completions", "/v1/completions")
    assert (chat["model"], chat["max_tokens"], chat["stream"], plain["prompt"]) == ("m", 9, True, "one")
    assert chat["headers"]["Authorization"] == "Bearer x"


def test_an_endpoint_that_never_works_is_named_with_its_reason() -> None:
    with StreamingServer(0.001, 0.001) as server:
        with pytest.raises(TargetError, match=r"/v1: HTTP 500: .*the model is on fire"):
            Endpoint(server.url, Requests(prompts=("fail",))).begin(Load(concurrency=1))
        endpoint = Endpoint(server.url, Requests(prompts=(GOOD, *["refuse"] * 99)))
        endpoint.begin(Load(concurrency=1))
        for _ in range(FAILED_ROUNDS - 1):
            assert endpoint.measure(Sampling())["completed"] == [0.0]
        with pytest.raises(TargetError, match="too long"):
            endpoint.measure(Sampling())
    with pytest.raises(TargetError, match="/v1: ConnectionRefusedError"):
        Endpoint(server.url, Requests()).begin(Load(concurrency=1))
