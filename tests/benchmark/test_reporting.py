"""Results in reports, on /metrics and in the terminal, from what a run has sent, which may be anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchmark_results import benchmark_results

from trackside.benchmark.results import publish
from trackside_daemon.cli.commands.benchmark_processes import disturbances
from trackside_daemon.documents import benchmark, markdown, text
from trackside_daemon.model.families import training


class Recorded:
    """A run that keeps what it receives."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.results: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []

    def push(self, values: dict[str, float], /, *, step: int) -> None:
        assert step == 0
        self.values |= values

    def event(self, kind: str, /, **fields: Any) -> None:
        self.events.append({"kind": kind, "fields": fields})

    def summary(self, values: dict[str, Any], /) -> None:
        self.results |= values


def test_a_run_gets_an_event_for_each_variant_under_each_load_and_results_in_words() -> None:
    run = Recorded()
    publish(run, benchmark_results(500, "cancelled"))
    found = [one["fields"] for one in run.events if one["kind"] == "benchmark"]
    assert [(one["variant"], one["load"]) for one in found] == [
        (name, f"batch={batch}") for name in ("fp32", "int8") for batch in (1, 8)
    ]
    assert all(len(json.dumps(one)) < 4000 for one in found)
    assert run.results["model/int8/batch8/latency_p50_seconds"] == pytest.approx(0.008, rel=0.1)
    assert run.results["model/int8/weights_bytes"] == 1e6
    assert run.results["int8 batch8 latency_seconds"].startswith("int8 is 1.9")
    assert run.results["unfit"] == "a GPU was shared"
    assert run.results["failures"] == "pruned failed: no such layer"


def test_every_pushed_value_has_a_family() -> None:
    run = Recorded()
    publish(run, benchmark_results(500, "cancelled"))
    found = {key: training.model_series(key, ("r", "0")) for key in run.values}
    assert None not in found.values()
    metric, labels = found["model/int8/batch8/latency_p99_seconds"] or (None, ())
    assert metric is not None
    assert dict(zip(metric.labels, labels, strict=True)) == {
        "run": "r",
        "rank": "0",
        "variant": "int8",
        "load": "batch8",
        "percentile": "99",
    }
    for key in ("model/", "model//top1", "model/a/strange", "loss", "model/a/b/c/d/strange"):
        assert training.model_series(key, ("r", "0")) is None


def test_the_terminal_and_markdown_have_the_same_tables_and_remarks() -> None:
    document = benchmark.document(benchmark_results(500, "cancelled"))
    page = markdown.write(document)
    for whole in ("\n".join(text.write(document)), page.replace("\\", "")):
        assert "(368" not in whole
        assert "unfit: a GPU was shared; ratios of variants hold" in whole
        assert "ended early: cancelled" in whole
        assert "pruned failed: no such layer" in whole
        assert "0.99 [0.98, 1]" in whole
    assert "| Load | Variant | P50 | P99 |" in page


class Series:
    """A daemon's answer about the machine."""

    def __init__(self, **values: tuple[float, float]) -> None:
        self._values = values

    def ask(self, _question: Any) -> dict[str, Any]:
        ends = self._values.items()
        points = {key: [[0, 0.0, low, low, low], [0, 10.0, low, high, high]] for key, (low, high) in ends}
        return {"series": [{"key": key, "points": found} for key, found in points.items()]}


def test_pressure_limited_clocks_and_shared_gpus_make_a_benchmark_unfit() -> None:
    waiting = "trackside_host_pressure_cpu_waiting_seconds_total"
    clocks = "trackside_gpu_clock_limited_seconds_total"
    quiet = {
        waiting: (5.0, 5.2),
        f'{clocks}{{gpu="0",reason="gpu_idle"}}': (0.0, 10.0),
        "trackside_gpu_processes": (0.0, 1.0),
    }
    assert disturbances(Series(**quiet), "r", 0.0, 10.0) == []  # type: ignore[arg-type]
    loud = {
        waiting: (5.0, 9.0),
        f'{clocks}{{gpu="0",reason="hw_thermal"}}': (0.0, 2.0),
        "trackside_gpu_processes": (1.0, 2.0),
    }
    on_cpu = disturbances(Series(**loud), "r", 0.0, 10.0, gpus=False)  # type: ignore[arg-type]
    assert on_cpu == ["tasks waited for a CPU in 40.0 % of the time"]
    assert disturbances(Series(**loud), "r", 0.0, 10.0) == [  # type: ignore[arg-type]
        "tasks waited for a CPU in 40.0 % of the time",
        "the clocks of a GPU were limited in 20.0 % of the time",
        "2 processes shared a GPU",
    ]
