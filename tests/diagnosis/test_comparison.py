"""Comparisons of runs: intervals contain what is true, and effects that are there are found."""

from __future__ import annotations

import random
from itertools import accumulate
from math import isfinite
from typing import TYPE_CHECKING

import pytest
from histories import BEGIN, History, column, finished, history, ingested, opened, session
from session_records import batch_ingested

from trackside.distributions import p_value, t_quantile
from trackside.packing import pack
from trackside.wire import Block, ProcessInfo
from trackside_daemon.diagnosis.comparison import as_json, compare, find_baseline
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.estimates import Estimate, batched, pooled
from trackside_daemon.diagnosis.measures import read_measures
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.documents.diagnosis import lines
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.history.read.series import LogTails
from trackside_daemon.history.record.run_changes import describe, pin
from trackside_daemon.model.records import MachineSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trackside_daemon.diagnosis.comparison import Effect


@pytest.fixture
def stored_history(tmp_path: Path) -> Iterator[History]:
    """A history."""
    with history(tmp_path / "history") as opened_history:
        yield opened_history


def put(
    stored_history: History,
    run: str,
    seed: int,
    *,
    name: str = "",
    ends: bool = True,
    steps: int = 600,
    slower: float = 1.0,
    worse: float = 0.0,
    tokens: float | None = None,
    pause: Callable[[int], float] = lambda _: 0.0,
    begin: float = BEGIN,
) -> None:
    """Train a run of steps of about 0.1 s, whose speed drifts, with a noisy loss that falls."""
    rng = random.Random(seed)
    drift, spans, rows = 0.0, [], []
    for step in range(steps):
        drift = 0.9 * drift + rng.gauss(0, 0.003)
        spans.append(0.1 * slower * (1 + drift + abs(rng.gauss(0, 0.02))) + pause(step))
        rows.append([3 / (1 + step / 100) + 0.2 + worse + rng.gauss(0, 0.05)])
        rows[-1] += [tokens] if tokens else []
    times = [round((begin + 5 + after) * 1e9) for after in accumulate(spans)]
    keys = ["loss", "tokens"] if tokens else ["loss"]
    values = [value for row in rows for value in row]
    block = Block(keys, pack("q", range(steps)), pack("q", times), pack("d", values))
    ending = [finished(run, after=begin - BEGIN + 5 + sum(spans))] if ends else []
    stored_history.put([opened(run, name=name, started=begin), batch_ingested(session(run), 1, [block]), *ending])


def effects(stored_history: History, runs: list[str], baseline: list[str], *keys: str) -> dict[str, Effect]:
    with stored_history.database.reading() as connection:
        return {effect.quantity: effect for effect in compare(connection, runs, baseline, keys)}


def test_students_t_distribution() -> None:
    expected = {1: 12.7062, 2: 4.30265, 10: 2.22814, 30: 2.04227, 1e9: 1.95996}
    assert {freedom: t_quantile(0.975, freedom) for freedom in expected} == pytest.approx(expected, rel=1e-5)
    assert p_value(2.22814, 10) == pytest.approx(0.05, rel=1e-4)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_intervals_of_correlated_samples_contain_the_mean(correlation: float) -> None:
    rng = random.Random(1)
    inside = 0
    for _ in range(100):
        value, values = 0.0, []
        for _ in range(500):
            value = correlation * value + rng.gauss(0, 1)
            values.append(value)
        low, high = batched(values).interval()
        inside += low <= 0 <= high
    assert inside >= 90


def test_a_slower_run_is_found_and_the_same_code_is_not(stored_history: History) -> None:
    for seed in range(20):
        put(stored_history, f"base-{seed}", seed)
        put(stored_history, f"same-{seed}", 100 + seed)
        put(stored_history, f"slow-{seed}", 200 + seed, slower=1.05)
    same = [effects(stored_history, [f"same-{seed}"], [f"base-{seed}"])["step_time"] for seed in range(20)]
    slow = [effects(stored_history, [f"slow-{seed}"], [f"base-{seed}"])["step_time"] for seed in range(20)]
    assert sum(effect.is_worse for effect in same) <= 2
    assert sum(effect.is_worse for effect in slow) >= 19
    assert sum((effect.low or 0) <= 1.05 <= (effect.high or 0) for effect in slow) >= 17


def test_pauses_count_in_the_throughput_and_not_in_the_step_time(stored_history: History) -> None:
    put(stored_history, "base", 1)
    put(stored_history, "saves", 2, pause=lambda step: 5.0 if step % 50 == 49 else 0.0)
    found = effects(stored_history, ["saves"], ["base"])
    assert found["step_time"].ratio == pytest.approx(1, rel=0.02)
    assert found["throughput"].unit == "steps per second"
    assert found["throughput"].ratio == pytest.approx(0.5, rel=0.05)
    assert found["throughput"].is_worse


def test_other_load_for_half_of_the_time_leaves_the_quicker_quarter_of_the_steps_as_it_is(
    stored_history: History,
) -> None:
    put(stored_history, "usual", 1)
    put(stored_history, "disturbed", 2, pause=lambda step: 0.05 if step % 300 < 170 else 0.0)
    put(stored_history, "slower", 3, slower=1.05)
    disturbed, slower = (effects(stored_history, [run], ["usual"]) for run in ("disturbed", "slower"))
    assert (disturbed["step_time"].ratio or 0) > 1.2
    assert disturbed["step_time_p25"].ratio == pytest.approx(1.0, abs=0.015)
    assert slower["step_time_p25"].ratio == pytest.approx(1.05, abs=0.01)
    assert slower["step_time_p25"].is_worse


def test_losses_are_compared_at_equal_steps_and_at_equal_tokens(stored_history: History) -> None:
    put(stored_history, "base", 1, tokens=1000)
    put(stored_history, "worse", 2, steps=500, worse=0.1, tokens=1000)
    put(stored_history, "wider", 3, tokens=2000)
    worse = effects(stored_history, ["worse"], ["base"])
    assert worse["loss"].at == 499
    assert (worse["loss"].difference_low or 0) < 0.1 < (worse["loss"].difference_high or 0)
    assert worse["loss"].is_worse
    assert "loss_at_tokens" not in worse
    wider = effects(stored_history, ["wider"], ["base"])
    assert wider["throughput"].unit == "tokens per second"
    assert wider["throughput"].ratio == pytest.approx(2, rel=0.02)
    assert not wider["loss"].is_worse
    # At equally many tokens, the wider run has made half the steps.
    assert wider["loss_at_tokens"].value == pytest.approx(0.2 + 3 / (1 + 0.95 * 299.5 / 100), abs=0.05)
    assert wider["loss_at_tokens"].is_worse


def test_of_several_runs_the_differences_between_them_decide(stored_history: History) -> None:
    for seed, slower in enumerate((0.9, 1.0, 1.1, 1.05, 0.95)):
        put(stored_history, f"seed-{seed}", seed, slower=slower)
    runs = [f"seed-{seed}" for seed in range(5)]
    put(stored_history, "new", 9, slower=1.1)
    assert not effects(stored_history, ["new"], runs)["step_time"].is_worse
    assert effects(stored_history, ["new"], runs[1:2])["step_time"].is_worse
    put(stored_history, "slow", 10, slower=1.5)
    assert effects(stored_history, ["slow"], runs)["step_time"].is_worse
    assert effects(stored_history, ["slow"], runs)["loss"].low is not None


def test_values_near_the_limits_of_floats_are_left_out(stored_history: History) -> None:
    rows = [(step, round((BEGIN + step) * 1e6), {"loss": 1e308, "tokens": 1e308}) for step in range(64)]
    for run in ("huge", "other"):
        stored_history.put([opened(run), ingested(run, rows), finished(run, state="finished", after=100)])
    with stored_history.database.reading() as connection:
        found = diagnose(connection, "huge", CostSection(), baseline=["other"])
    assert "loss" not in {trend["key"] for trend in found["trends"]}


def test_a_push_of_each_tenth_step_has_the_time_of_one_step(stored_history: History) -> None:
    for run, each in (("all", 1), ("tenths", 10)):
        rows = [(step, round((BEGIN + 0.1 * step) * 1e6), {"loss": 1.0}) for step in range(0, 600, each)]
        stored_history.put([opened(run), ingested(run, rows), finished(run, after=60)])
    found = effects(stored_history, ["tenths"], ["all"])
    assert [found[one].ratio for one in ("step_time", "step_time_p25")] == pytest.approx([1.0, 1.0], rel=0.01)


def test_what_is_not_there_is_unknown(stored_history: History) -> None:
    put(stored_history, "base", 1)
    put(stored_history, "short", 2, steps=1)
    found = effects(stored_history, ["short"], ["base"], "accuracy")
    assert found["step_time"].unknown == "fewer than two steps"
    assert found["throughput"].unknown == "fewer than two pushes"
    assert found["accuracy"].unknown.endswith("has no values of it")
    assert as_json(found["accuracy"])["value"] is None


@pytest.mark.parametrize(("is_seen", "expected"), [(True, None), (False, 5e9)])
def test_gpus_on_which_a_run_has_no_process_count_only_if_its_processes_are_unknown(
    stored_history: History, is_seen: bool, expected: float | None
) -> None:
    put(stored_history, "base", 1)
    process = {'trackside_process_info{pid="70",rank="0",role="rank",run="base",run_id="base"}': 1.0}
    for tick in range(3):
        used = {'trackside_gpu_memory_used_bytes{gpu="0",uuid="GPU-0"}': 5e9}
        used['trackside_gpu_energy_joules_total{gpu="0",uuid="GPU-0"}'] = 300.0 * tick
        stored_history.put([MachineSample(BEGIN + 5 * tick, {**used, **process} if is_seen else used)])
    found = effects(stored_history, ["base"], ["base"])
    memory, energy = found["gpu_memory"], found["energy"]
    assert (memory.value, energy.value is None) == (expected, is_seen)


def test_a_run_that_got_another_name_keeps_its_gpus(stored_history: History) -> None:
    put(stored_history, "base", 1)
    known = {'trackside_process_info{pid="70",rank="0",role="rank",run="base",run_id="base"}': 1.0}
    known['trackside_gpu_rank_info{gpu="0",uuid="GPU-0",run="base",rank="0"}'] = 1.0
    known['trackside_gpu_memory_used_bytes{gpu="0",uuid="GPU-0"}'] = 5e9
    for tick in range(3):
        stored_history.put([MachineSample(BEGIN + 5 * tick, known)])
    stored_history.writer.call(lambda store: describe(store, "base", name="best", notes=None, tags=None)).result(60)
    assert effects(stored_history, ["base"], ["base"])["gpu_memory"].value == 5e9


@pytest.mark.parametrize(
    ("command", "directory", "agrees"),
    [
        (("python3", "-u", "/a/train.py", "--lr=2"), "/a", True),
        (("python", "train.py"), "/b", False),
        (("python", "other/main.py"), "/a", False),
        ((), "", True),
    ],
)
def test_a_baseline_by_name_is_of_the_same_script_in_the_same_directory(
    stored_history: History, command: tuple[str, ...], directory: str, *, agrees: bool
) -> None:
    before = opened("before", name="train", started=BEGIN, about=ProcessInfo(command=command, directory=directory))
    mine = ProcessInfo(command=("python", "train.py", "--lr=1"), directory="/a")
    stored_history.put([before, finished("before"), opened("mine", name="train", started=BEGIN + 9, about=mine)])
    with stored_history.database.reading() as connection:
        found = find_baseline(connection, "mine")
    assert (found is not None and found.runs == ("before",)) == agrees


def test_the_baseline_is_a_pinned_run_the_last_of_the_same_name_or_those_with_a_tag(stored_history: History) -> None:
    def run(uid: str, started: float, state: str = "finished", tags: tuple[str, ...] = ()) -> None:
        stored_history.put(
            [opened(uid, name="gpt", started=BEGIN + started, tags=tags), finished(uid, state=state, after=started)]
        )

    def found(text: str = "") -> tuple[tuple[str, ...], str] | None:
        with stored_history.database.reading() as connection:
            return find_baseline(connection, "new", text)

    run("new", 500, tags=("v2",))
    assert found() is None
    run("old", 100, tags=("v1",))
    run("failed", 300, "failed", ("v1",))
    run("middle", 200, tags=("v1",))
    run("later", 600)
    assert found() == (("middle",), "name")
    assert found("v1") == (("middle", "old"), "tag")
    assert found("failed") == (("failed",), "run")
    stored_history.writer.call(lambda store: pin(store, "old")).result(60)
    assert found() == (("old",), "pinned")
    with pytest.raises(UnknownRunError, match=r"run 'v2': there is none.*; no other finished run has this tag"):
        found("v2")


@pytest.mark.parametrize("values", [[float("nan"), 1.0], [float("inf"), float("-inf")], [float("inf"), 1.0]])
def test_the_mean_of_runs_that_are_not_all_finite_has_no_interval(values: list[float]) -> None:
    assert not isfinite(pooled([Estimate(value) for value in values]).variance)


def machine(begin: float, seconds: float, clock: float, gpu: int) -> Iterator[MachineSample]:
    """Yield the samples of a rank's process and GPU, each 5 s."""
    of_process = 'comm="python",pid="{}",rank="0",role="rank",run="train",run_id="{}"'
    for tick in range(int(seconds / 5) + 1):
        run, pid = ("usual", 70) if begin == BEGIN else ("slow", 71)
        values = {
            f"trackside_process_info{{{of_process.format(pid, run)}}}": 1.0,
            f'trackside_gpu_rank_info{{gpu="{gpu}",rank="0",run="train",uuid="GPU-{gpu}"}}': 1.0,
            f'trackside_gpu_clock_hertz{{domain="sm",gpu="{gpu}",uuid="GPU-{gpu}"}}': clock + tick % 2,
            f'trackside_process_cpu_wait_seconds_total{{pid="{pid}"}}': 5.0 * tick * 0.01,
        }
        yield MachineSample(begin + 5 * tick, values)


def test_the_causes_of_slower_steps_are_those_that_rose_against_the_baseline(stored_history: History) -> None:
    put(stored_history, "usual", 1, name="train")
    put(stored_history, "slow", 2, name="train", slower=1.6, begin=BEGIN + 3600)
    stored_history.put([*machine(BEGIN, 65, 1.98e9, 3), *machine(BEGIN + 3600, 100, 1.2e9, 0)])
    with stored_history.database.reading() as connection:
        found = diagnose(connection, "slow", CostSection())
        text = "\n".join(lines(found))
    comparison = found["comparison"]
    assert comparison["baseline"] == ["usual"]
    assert [cause["cause"] for cause in comparison["causes"]] == ["gpu_clock"]
    assert comparison["conclusion"].startswith("Likely cause: the clock of GPU 0 fell from 1.98 GHz to 1.2 GHz")
    assert f"slower steps: {comparison['conclusion']}" in text.replace("\n  ", " ")


def test_a_long_run_has_made_all_its_steps_though_only_parts_of_it_are_read(stored_history: History) -> None:
    stored_history.put([opened("a"), column("a", ["loss"], 10 * BLOCK), finished("a")])
    stored_history.wait_until_packed()
    with stored_history.database.reading() as connection:
        assert read_measures(connection, "a", LogTails(connection)).steps == 10 * BLOCK
