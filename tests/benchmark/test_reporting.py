"""Results in reports, on /metrics and in the terminal, from what a run has sent, which may be anything."""

from __future__ import annotations

import math
from typing import Any

from benchmark_results import benchmark_results

from trackside.benchmark.results import publish
from trackside_daemon.cli.benchmark.measuring import disturbances
from trackside_daemon.documents import benchmark, markdown, text
from trackside_daemon.model.families import models as model_families


class Recorded:
    """A run that keeps what it receives."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.results: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []

    def push(self, values: dict[str, float], /, *, step: int) -> None:
        assert step == 7
        self.values |= values

    def event(self, kind: str, /, **fields: Any) -> None:
        self.events.append({"kind": kind, "fields": fields})

    def summary(self, values: dict[str, Any], /) -> None:
        self.results |= values


def test_a_report_has_a_row_for_each_variant_and_load_and_ignores_what_others_call_a_benchmark() -> None:
    run = Recorded()
    publish(run, benchmark_results(400, "cancelled"), 7)  # type: ignore[arg-type]
    strange = [{"kind": "benchmark", "fields": fields} for fields in ({}, {"variant": 1, "load": []}, {"curve": "x"})]
    table = benchmark.latencies("", ["run"], [benchmark.measurements({"events": [*strange, *run.events]})])
    assert [row[:2] for row in table.rows] == [
        (f"batch={batch}", name) for batch in (1, 8) for name in ("fp32", "int8")
    ]
    median, _, speed, samples, effect = map(str, table.rows[3][2:])
    assert 8 - 0.4 < float(median.split()[0]) < 8 + 0.4
    assert median.endswith("] ms")
    assert samples == "397"
    assert speed.endswith(" items/s")
    assert effect.endswith(" times as fast")
    assert run.results["unfit"] == "a GPU was shared"
    assert run.results["failures"] == "pruned: no such layer"
    assert "int8 is 1.9" in " ".join(map(str, run.results.values()))


def test_charts_have_finite_curves_with_intervals_of_what_was_measured_last() -> None:
    run = Recorded()
    for _ in range(2):
        publish(run, benchmark_results(400, "cancelled"), 7)  # type: ignore[arg-type]
    [fields, *_] = [one["fields"] for one in run.events if one["kind"] == "benchmark"]
    for strange in (math.nan, math.inf, -1.0):
        run.events.append({"kind": "benchmark", "fields": {**fields, "variant": "odd", "throughput": strange}})
    found = benchmark.charted([{"events": run.events}], ["run"])
    assert [(one["load"], one["variant"], one["batch"]) for one in found] == [
        ("batch=1", "fp32", 1.0),
        ("batch=1", "int8", 1.0),
        ("batch=8", "fp32", 8.0),
        ("batch=8", "int8", 8.0),
    ]
    shares, values, lows, highs = zip(*found[0]["curve"], strict=True)
    assert shares[0] == 0.01
    assert shares[-1] == 0.99
    assert all(low <= value <= high for low, value, high in zip(lows, values, highs, strict=True))
    two = benchmark.charted([{"events": run.events}] * 2, ["a", "b"])
    assert [one["variant"] for one in two[:2]] == ["a: fp32", "a: int8"]


def test_every_pushed_value_has_a_family() -> None:
    run = Recorded()
    publish(run, benchmark_results(400, "cancelled"), 7)  # type: ignore[arg-type]
    found = {key: model_families.series(key, ("r", "0")) for key in run.values}
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
        assert model_families.series(key, ("r", "0")) is None


def test_the_terminal_and_markdown_have_the_same_tables_and_remarks() -> None:
    document = benchmark.document(benchmark_results(400, "cancelled"))
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
