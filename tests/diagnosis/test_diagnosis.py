"""Diagnoses of runs in a history: the planted cause comes first, and a healthy run has none."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from histories import BEGIN, History, finished, history, ingested, opened

from trackside.wire import ProcessInfo
from trackside_daemon.diagnosis.accounts import read_run
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.documents.diagnosis import lines
from trackside_daemon.documents.run import trend_lines
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.model.capture import Capture
from trackside_daemon.model.records import Account, AccountUpdated, Alert, Event, MachineSample, SessionOpened
from trackside_daemon.model.troubles import TROUBLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trackside_daemon.model.records import Record

LENGTH = 600
"""Seconds of a run's attempt, which pushes from its second 5 on."""

GPU = 'gpu="{}",uuid="GPU-{}"'


@pytest.fixture
def stored_history(tmp_path: Path) -> Iterator[History]:
    """A history."""
    with history(tmp_path / "history") as opened_history:
        yield opened_history


def records(
    phases: Mapping[str, float] = {},
    *,
    rank: int = 0,
    world: int = 1,
    attempt: int = 0,
    until: int = LENGTH,
    state: str = "finished",
    ended: float = LENGTH,
) -> list[Record]:
    """Return the records of one rank of an attempt."""
    began = BEGIN + 1000 * attempt
    pushes = [(step, round((began + 5 + step) * 1e6), {"loss": 1 / (1 + step)}) for step in range(until - 5)]
    batch = ingested("run", pushes, rank=rank, attempt=attempt)
    return [
        opened("run", rank=rank, world=world, attempt=attempt),
        batch.__class__(batch.session, batch.number, batch.columns, batch.shift, phases),
        finished("run", attempt=attempt, state=state, after=ended),
    ]


def machine(series: Callable[[int], Mapping[str, float]]) -> list[Record]:
    """Return a sample of the machine for each 10 seconds."""
    return [MachineSample(BEGIN + second, series(second)) for second in range(0, LENGTH, 10)]


def alert(name: str, began: float, severity: str = "critical", ended: float | None = None) -> Alert:
    """Return an alert of the run."""
    return Alert(name, severity, BEGIN + began, "run", {}, f"{name} of the test", ended=ended and BEGIN + ended)


def gpu_values(second: int, *, held_from: int = LENGTH, second_gpu: float = 0.9) -> dict[str, float]:
    """Return readings of two GPUs; the first one's clock is halved from a second on."""
    held = second >= held_from
    values = {
        f"trackside_gpu_utilization_ratio{{{GPU.format(gpu, gpu)}}}": use for gpu, use in ((0, 0.9), (1, second_gpu))
    }
    for gpu in (0, 1):
        clock = 1e9 if held and not gpu else 2e9
        values[f'trackside_gpu_clock_hertz{{domain="sm",{GPU.format(gpu, gpu)}}}'] = clock
        values[f'trackside_gpu_clock_limit_active{{{GPU.format(gpu, gpu)},reason="hw_thermal"}}'] = float(
            held and not gpu
        )
    return values


STORAGE = "trackside_host_pressure_io_stalled_seconds_total"
MEMORY = "trackside_host_pressure_memory_stalled_seconds_total"

PROCESS = 'pid="7",rank="0",role="rank",run="run",run_id="run"'


def counters(*per_second: tuple[str, float], **values: float) -> list[Record]:
    """Return counters of the machine that grow by so much per second."""
    return machine(lambda second: {name: rate * second for name, rate in per_second} | values)


def of_rank(family: str, per_second: float) -> list[Record]:
    """Return a counter of the rank's process."""
    return machine(
        lambda second: {f"trackside_process_info{{{PROCESS}}}": 1.0, f'{family}{{pid="7"}}': per_second * second}
    )


def on_host(host: str, forward: float, rank: int) -> list[Record]:
    """Return a rank of an attempt of four on a host."""
    session, *rest = records({"forward": forward, "all_reduce": 400 - forward}, rank=rank, world=4)
    assert isinstance(session, SessionOpened)
    identity = msgspec.structs.replace(session.hello.identity, host=host)
    return [replace(session, hello=msgspec.structs.replace(session.hello, identity=identity)), *rest]


def profiled(kind: str, device: str = "gpu") -> Capture:
    """Return a profile whose steps wait for a class of work in 40 % of the time."""
    found = {"class": kind, "share": 0.4, "shares": {kind: 0.4}, "text": f"{kind}: 40 of 100 ms a step"}
    return Capture(
        "0123456789ab",
        "run",
        0,
        "profile",
        "person",
        BEGIN + 9,
        state="summarised",
        summary={"ranks": {"0": {"device": device}}, "bottleneck": found},
    )


LIMIT = 'trackside_cgroup_cpu_limit_cores{cgroup="/job"}'


def slow_collective(kind: str) -> list[Record]:
    """Return two ranks that exchange for half of their time, at a tenth of the usual bandwidth from the 100th second on."""
    ranks = [one for rank in range(2) for one in records({"forward": 200, "all_reduce": 300}, rank=rank, world=2)]
    evidence = {"value": 4.0, "usual": 40.0, "kind": kind}
    return [*ranks, replace(alert("CollectiveSlow", 100, "warning", LENGTH), evidence=evidence)]


PLANTED: dict[str, tuple[Sequence[Record], str | None]] = {
    "healthy with an evaluation": (records({"eval": 5, "checkpoint": 4, "data": 3}), None),
    "a little data wait": (records({"data": 31}), "data_wait"),
    "first batches": (
        [*records({"data": 200}), AccountUpdated("run", 0, 0, Account(first_wait=180))],
        "first_batches",
    ),
    "evaluation": (records({"eval": 250}), "eval"),
    "idle end": (records(until=400), "idle_end"),
    "a long start": (
        [
            opened("run"),
            ingested(
                "run", [(1, round((BEGIN + 200) * 1e6), {"loss": 1}), (2, round((BEGIN + 590) * 1e6), {"loss": 1})]
            ),
            finished("run", after=600),
        ],
        "start_up",
    ),
    "restart": ([*records(state="failed"), *records(attempt=1)], "restart"),
    "repeated steps": (
        [
            *records(state="failed", until=990, ended=990),
            *records(attempt=1),
            AccountUpdated("run", 1, 0, Account(restart=415, caught=True)),
        ],
        "repeated",
    ),
    "divergence": ([*records(), alert("LossDiverging", 300, ended=500)], "wasted"),
    "ranks that differ": ([*records(), alert("ReplicasDiffer", 300, "warning")], "replicas_differ"),
    "a loss that went up": ([*records(), alert("LossDiverging", 300, "warning")], "loss_diverging"),
    "throttled": ([*records(), *machine(lambda second: gpu_values(second, held_from=300))], "throttled"),
    "slow storage": ([*records(), *counters((STORAGE, 0.2))], "slow_storage"),
    "slow storage under the loader": ([*records({"data": 150}), *counters((STORAGE, 0.2))], "slow_storage"),
    "data wait beside a little storage": ([*records({"data": 150}), *counters((STORAGE, 0.05))], "data_wait"),
    "memory pressure": ([*records(), *counters((MEMORY, 0.125))], "memory_pressure"),
    "CPU limit": (
        [*records(), *counters(('trackside_cgroup_cpu_throttled_seconds_total{cgroup="/job"}', 2), **{LIMIT: 2.0})],
        "cpu_limit",
    ),
    "other programs": ([*records(), *of_rank("trackside_process_cpu_wait_seconds_total", 0.3)], "cpu_contention"),
    "page faults": ([*records(), *of_rank("trackside_process_major_page_faults_total", 500)], "page_faults"),
    "a slow node": (
        [one for rank in range(4) for one in on_host(f"node-{rank // 2}", 390 if rank > 1 else 200, rank)],
        "slow_node",
    ),
    "communication": (
        [one for rank in range(2) for one in records({"forward": 200, "all_reduce": 300}, rank=rank, world=2)],
        "communication",
    ),
    "a slow link": (slow_collective("link"), "slow_collective"),
    "host-bound steps": ([*records(), profiled("host")], "host_bound"),
    "steps with copies": ([*records(), profiled("copy")], "copies"),
    "steps without work": (
        [
            *records(),
            *machine(
                lambda _: {
                    f"trackside_gpu_utilization_ratio{{{GPU.format(0, 0)}}}": 0.5,
                    f'trackside_gpu_rank_info{{{GPU.format(0, 0)},rank="0",run="run"}}': 1.0,
                }
            ),
        ],
        "idle_in_steps",
    ),
    "slower and slower": (
        [
            *records(),
            replace(
                alert("ThroughputRegression", 320, "info"), evidence={"value": 2.0, "usual": 1.0, "since": BEGIN + 300}
            ),
        ],
        "slowdown",
    ),
    "an evaluation that was best long ago": (
        [
            opened("run"),
            ingested(
                "run",
                [(step, round((BEGIN + 6 * step) * 1e6), {"val/loss": 1 + abs(step - 20) / 9}) for step in range(100)],
            ),
            finished("run", after=600),
        ],
        "since_best_evaluation",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_planted_cause_comes_first(stored_history: History, name: str) -> None:
    planted, cause = PLANTED[name]
    stored_history.put(planted)
    found = diagnosis(stored_history)
    assert abs(sum(found["ledger"].values()) - found["wall_seconds"]) < 1e-6 * found["wall_seconds"]
    assert next((one["cause"] for one in found["causes"]), None) == cause
    assert sum(one["lost_seconds"] or 0.0 for one in found["causes"]) <= 1.001 * found["wall_seconds"]
    for one in found["causes"]:
        assert one["evidence"]
        assert all(path.startswith(("/api/v1/", "")) for _, path in (item.values() for item in one["evidence"]))
        if one["lost_seconds"] is not None:
            assert 0 <= one["low"] <= one["high"] == one["lost_seconds"] <= found["wall_seconds"]
            assert one["low"] >= 0.9 * one["high"] or one["cause"] not in {"eval", "checkpoint"}, (
                "measured, not estimated"
            )
            assert one["gpu_hours"] == one["lost_seconds"] * found["ranks"] / 3600
    text = list(lines(found))
    assert len(text) <= 25
    assert text[0].startswith("run: ")
    assert text[1].startswith("health: ")
    assert text[3].startswith(f"1. {cause}: " if cause else "nothing cost more than 5 %")


@pytest.mark.parametrize("kind", ["link", "rank"])
def test_a_slow_link_costs_its_share_of_the_exchange_and_a_late_rank_nothing_more(
    stored_history: History, kind: str
) -> None:
    stored_history.put(slow_collective(kind))
    causes = {cause["cause"]: cause for cause in diagnosis(stored_history)["causes"]}
    lost = (LENGTH - 100) * 0.9 * 300 / LENGTH if kind == "link" else 0.0
    assert (causes["slow_collective"]["lost_seconds"] or 0.0) == pytest.approx(lost, rel=0.01)
    assert causes["communication"]["lost_seconds"] == pytest.approx(300 - lost, rel=0.01)
    assert ("InfiniBand" in causes["slow_collective"]["advice"]) == (kind == "link")


def paused(phases: Mapping[str, float] = {}) -> list[Record]:
    """Return a run of 300 steps of 40 ms, of which each 25th takes 0.94 s."""
    times = [0.04 * step + 0.9 * (step // 25) for step in range(300)]
    rows = [(step, round((BEGIN + time) * 1e6), {"loss": 1.0}) for step, time in enumerate(times)]
    batch = ingested("run", rows)
    return [opened("run"), replace(batch, phases=phases), finished("run", after=times[-1])]


def test_pauses_within_steps_are_an_account_with_their_period(stored_history: History) -> None:
    stored_history.put(paused())
    found = diagnosis(stored_history)
    (cause,) = found["causes"]
    assert found["ledger"] == {"compute": pytest.approx(11.96), "long_steps": pytest.approx(9.9)}
    assert (cause["cause"], cause["lost_seconds"]) == ("pauses", pytest.approx(9.9))
    assert cause["summary"] == "the training paused within steps every 25 steps: 45.3 % of the time, 9.9 s at most"
    assert (
        cause["evidence"][0]["text"]
        == "11 steps of 299 took 940 ms on average, 40 ms the median one, one every 25 steps"
    )
    assert "find what runs every 25 steps then" in cause["advice"]


def test_pauses_that_a_phase_explains_are_not_counted_again(stored_history: History) -> None:
    stored_history.put(paused({"eval": 9.9}))
    found = diagnosis(stored_history)
    assert found["ledger"] == {"compute": pytest.approx(11.96), "eval": pytest.approx(9.9)}
    assert [cause["cause"] for cause in found["causes"]] == ["eval"]


@pytest.mark.parametrize("places", [[7, 30, 44, 90, 93, 150], [3, 9]])
def test_pauses_without_a_period_have_none(stored_history: History, places: list[int]) -> None:
    times = [0.04 * step + sum(0.9 for place in places if place <= step) for step in range(200)]
    rows = [(step, round((BEGIN + time) * 1e6), {"loss": 1.0}) for step, time in enumerate(times)]
    stored_history.put([opened("run"), ingested("run", rows), finished("run", after=times[-1])])
    (cause,) = diagnosis(stored_history)["causes"]
    assert cause["summary"].startswith("the training paused within steps: ")


def test_the_wait_for_a_cpu_is_no_useful_compute(stored_history: History) -> None:
    stored_history.put([*records(), *of_rank("trackside_process_cpu_wait_seconds_total", 0.73)])
    found = diagnosis(stored_history)
    assert found["ledger"]["cpu"] == pytest.approx(0.73 * 580, rel=0.01), "of the samples between first and last push"
    assert found["ledger"]["compute"] < 0.3 * LENGTH
    assert found["causes"][0]["cause"] == "cpu_contention"


@pytest.mark.parametrize(("waits", "lost"), [(0.1, 92.0), (0.9, None)])
def test_a_slow_down_does_not_vanish_behind_another_cause(
    stored_history: History, waits: float, lost: float | None
) -> None:
    """The last 300 of 600 seconds were twice as slow."""
    slower = {"value": 2.0, "usual": 1.0, "since": BEGIN + 300}
    fired = replace(alert("ThroughputRegression", 320, "info"), evidence=slower)
    stored_history.put([*records(), fired, *of_rank("trackside_process_cpu_wait_seconds_total", waits)])
    causes = {cause["cause"]: cause for cause in diagnosis(stored_history)["causes"]}
    assert list(causes) == (["slowdown", "cpu_contention"] if lost else ["cpu_contention", "slowdown"])
    assert causes["slowdown"]["lost_seconds"] == (lost and pytest.approx(lost, rel=0.03))
    assert "nothing that was measured" not in causes["slowdown"]["summary"] or lost


def test_what_the_process_did_before_its_session_is_start_up_of_the_run(stored_history: History) -> None:
    session, *rest = records()
    assert isinstance(session, SessionOpened)
    hello = msgspec.structs.replace(session.hello, about=ProcessInfo(startup=167_000_000_000))
    stored_history.put([replace(session, hello=hello), *rest])
    with stored_history.database.reading() as connection:
        found, run = diagnose(connection, "run", CostSection()), read_run(connection, "run")
    assert (run["started"], found["wall_seconds"]) == (BEGIN - 167, LENGTH + 167)
    assert found["ledger"]["start"] == pytest.approx(172), "with the 5 s until the first push"
    assert run["lost"]["start"] == pytest.approx(172 / 767)
    assert [(one["cause"], one["lost_seconds"]) for one in found["causes"]] == [("start_up", pytest.approx(172))]


@pytest.mark.parametrize(("held", "told"), [(2.0, True), (0.3, False)], ids=["the run's own", "one with others"])
def test_less_memory_is_suggested_by_the_cgroup_that_is_the_run_s_own(
    stored_history: History, held: float, *, told: bool
) -> None:
    """The cgroup of a session, or of a container with other programs, says nothing about the run."""
    job = {
        "trackside_cgroup_memory_working_set_bytes": 2.7,
        "trackside_cgroup_memory_limit_bytes": 23.5,
    }
    values = {f'{family}{{cgroup="/job"}}': size * 2**30 for family, size in job.items()}
    values |= {
        f'trackside_process_info{{{PROCESS},cgroup="/job"}}': 1.0,
        'trackside_process_resident_memory_bytes{pid="7"}': held * 2**30,
    }
    stored_history.put([*records(), *machine(lambda _: values)])
    found = [one["summary"] for one in diagnosis(stored_history)["suggestions"] if one["cause"] == "less_memory"]
    assert found == ["the training used at most 2.7 GiB of 23.5 GiB of memory"] * told


def test_a_best_evaluation_that_is_the_last_one_is_no_reason_to_stop_earlier(stored_history: History) -> None:
    rows = [(step, round((BEGIN + 6 + step) * 1e6), {"val/loss": 1 / step}) for step in (1, 2, 3)]
    stored_history.put([opened("run"), ingested("run", rows), finished("run", after=600)])
    assert "since_best_evaluation" not in {one["cause"] for one in diagnosis(stored_history)["causes"]}


@pytest.mark.parametrize(
    ("cpu", "cores", "advice"),
    [
        (0.15, 8, "transforms take 150 ms of CPU a batch in 2 workers: 4 would do; "),
        (0.15, 3, "transforms take 150 ms of CPU a batch in 2 workers: 4 would do, on more CPUs than there are; "),
        (0.01, 8, "transforms take 160 ms, of which 10 ms are of CPU, a batch in 2 workers, and wait the rest of it: "),
    ],
)
def test_a_wait_for_data_has_the_workers_of_its_loader(
    stored_history: History, cpu: float, cores: int, advice: str
) -> None:
    """Half of the time waits for data, so that twice the workers would do."""
    (session, batch, end) = records({"data": 297.5})
    rows = [
        (
            step,
            round((BEGIN + 5 + step) * 1e6),
            {
                "data/workers": 2.0,
                "data/batches_ready": 0.0,
                "data/transform_seconds": 0.16,
                "data/transform_cpu_seconds": cpu,
            },
        )
        for step in range(3)
    ]
    workers = replace(ingested("run", rows, number=2), phases={"data": 297.5})
    stored_history.put([session, batch, workers, *counters(trackside_host_cpus=float(cores)), end])
    (cause, *_) = diagnosis(stored_history)["causes"]
    assert cause["cause"] == "data_wait"
    assert cause["advice"].startswith(advice)
    assert cause["evidence"][-1]["text"].endswith("in 2 workers; 0 batches were ready on average")


@pytest.mark.parametrize("pushed", [math.nan, math.inf, 1e308])
def test_workers_without_finite_numbers_give_no_advice(stored_history: History, pushed: float) -> None:
    (session, batch, end) = records({"data": 297.5})
    keys = ("workers", "batches_ready", "transform_seconds", "transform_cpu_seconds")
    rows = [(step, round((BEGIN + 5 + step) * 1e6), {f"data/{key}": pushed for key in keys}) for step in range(3)]
    workers = replace(ingested("run", rows, number=2), phases={"data": 297.5})
    stored_history.put([session, batch, workers, end])
    (cause, *_) = diagnosis(stored_history)["causes"]
    assert (cause["cause"], "transforms" in cause["advice"]) == ("data_wait", False)


def test_a_profile_without_a_gpu_blames_none(stored_history: History) -> None:
    stored_history.put([*records(), profiled("host", device="cpu")])
    (cause, *_) = diagnosis(stored_history)["causes"]
    assert cause["cause"] == "host_bound"
    assert "GPU" not in cause["summary"]
    assert "CUDA" not in cause["advice"]


@pytest.mark.parametrize(("source", "lost"), [("nvml", 0.03 * 594), ("simulated", 400)])
def test_a_wait_that_the_gpu_hides_is_no_loss_and_a_simulated_one_hides_none(
    stored_history: History, source: str, lost: float
) -> None:
    busy = {
        f"trackside_gpu_utilization_ratio{{{GPU.format(0, 0)}}}": 0.97,
        f'trackside_gpu_info{{gpu="0",source="{source}",uuid="GPU-0"}}': 1.0,
        f'trackside_gpu_rank_info{{{GPU.format(0, 0)},rank="0",run="run"}}': 1.0,
    }
    stored_history.put([*records({"data": 400}), *machine(lambda _: busy)])
    assert diagnosis(stored_history)["ledger"]["data"] == pytest.approx(lost)


def test_a_cpu_limit_costs_the_share_that_tasks_would_use_above_it(stored_history: History) -> None:
    stored_history.put(PLANTED["CPU limit"][0])  # throttled 2 seconds a second at a limit of 2 CPUs: half of the time
    (cause, *_) = diagnosis(stored_history)["causes"]
    assert cause["lost_seconds"] == pytest.approx(LENGTH / 2, rel=0.02)


@pytest.mark.parametrize(("slowest", "named"), [(202, False), (300, True)])
def test_a_rank_with_less_to_do_makes_no_other_one_slow(stored_history: History, slowest: int, *, named: bool) -> None:
    for rank, own in enumerate((100, 201, 200, slowest)):
        stored_history.put(records({"forward": own, "all_reduce": 400 - own}, rank=rank, world=4))
    (found,) = [cause for cause in diagnosis(stored_history)["causes"] if cause["cause"] == "straggler"]
    assert ("for its own work" in found["evidence"][0]["text"]) is named


@pytest.mark.parametrize(("others", "named"), [(0.24, "data_wait"), (0.02, "straggler")])
def test_where_all_loaders_are_slow_no_rank_is_a_straggler(stored_history: History, others: float, named: str) -> None:
    """Each has its next batch ready while it waits for the rank whose batch comes last."""
    for rank in range(4):
        data, waited = (300.0, 10.0) if rank == 2 else (60.0, 250.0)
        phases = {"forward": 100.0, "data": data, "all_reduce": waited}
        loader = {"workers": 1.0, "batches_ready": 0.0, "transform_cpu_seconds": 0.01}
        loader["transform_seconds"] = 0.25 if rank == 2 else others
        rows = [
            (step, round((BEGIN + 5 + step) * 1e6), {f"data/{key}": loader[key] for key in loader}) for step in range(3)
        ]
        (session, batch, end) = records(phases, rank=rank, world=4)
        workers = replace(ingested("run", rows, number=2, rank=rank), phases=phases)
        stored_history.put([session, batch, workers, end])
    (first, *_) = diagnosis(stored_history)["causes"]
    assert first["cause"] == named


def test_a_gpu_that_waits_by_design_is_no_cause(stored_history: History) -> None:
    idle = {
        f"trackside_gpu_utilization_ratio{{{GPU.format(0, 0)}}}": 0.3,
        f'trackside_gpu_rank_info{{{GPU.format(0, 0)},rank="0",run="run"}}': 1.0,
    }
    stored_history.put([*records({"rollout": 400}), *machine(lambda _: idle)])
    assert diagnosis(stored_history)["causes"] == []


def test_checkpoints_state_the_interval_of_young(stored_history: History) -> None:
    stored_history.put([*records({"checkpoint": 100}, state="failed"), AccountUpdated("run", 0, 0, Account(saves=50))])
    cause = next(one for one in diagnosis(stored_history)["causes"] if one["cause"] == "checkpoint")
    texts = [one["text"] for one in cause["evidence"]]
    assert "50 checkpoints of 2 s, one per 12 s" in texts
    # The square root of 2 x 2 s x 600 s.
    assert "Young's formula: one per 49 s costs least, at 1 failure in 10 min of attempts in this history" in texts


def test_a_throttled_gpu_loses_the_share_of_its_clock(stored_history: History) -> None:
    stored_history.put(PLANTED["throttled"][0])
    # The clock is half of the usual one for the second half, of which the last sample ends at 590.
    assert diagnosis(stored_history)["ledger"]["throttled"] == pytest.approx((590 - 290) / 2, rel=0.02)


def test_alerts_are_evidence(stored_history: History) -> None:
    stored_history.put([*records(), alert("NonFinite", 200)])
    evidence = diagnosis(stored_history)["causes"][0]["evidence"][0]
    assert evidence == {"text": "alert 1 NonFinite: NonFinite of the test", "path": "/api/v1/alerts/1"}


@pytest.mark.parametrize("entry", ["2.5", "=2.5", "H100=", "H100=free", "*=-1", "*=nan", "*=inf"])
def test_a_price_that_is_none_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="each must be PATTERN=PRICE, such as"):
        CostSection(gpu_hour=(entry,))


def test_a_run_that_lives_is_diagnosed_until_now(stored_history: History) -> None:
    stored_history.put([opened("run"), ingested("run", [(1, round((BEGIN + 5) * 1e6), {"loss": 1})])])
    found = diagnosis(stored_history)
    assert found["wall_seconds"] > LENGTH
    assert sum(found["ledger"].values()) == pytest.approx(found["wall_seconds"])


def test_a_run_that_hangs_has_the_verdict_first(stored_history: History) -> None:
    stalled = alert("TrainingStalled", 200)
    verdict = {"kind": "never_arrived", "text": "Rank 1 never arrived.", "ranks": [1]}
    stored_history.put([*records()[:-1], stalled, alert("NonFinite", 200)])
    assert diagnosis(stored_history)["hang"] is None
    stored_history.put([replace(stalled, evidence={"hang": verdict, "conclusion": verdict["text"]})])
    found = diagnosis(stored_history)
    assert found["hang"] == verdict
    assert (found["health"], found["causes"][0]["cause"]) == ("broken", "stall"), "before the seconds after the NaN"
    assert list(lines(found))[1] == "health: broken: TrainingStalled of the test. Rank 1 never arrived."
    stored_history.put([records()[-1]])
    assert diagnosis(stored_history)["hang"] is None


@pytest.mark.parametrize(
    ("state", "ended", "recovered", "verdict"),
    [
        ("stopped", LENGTH, {}, "TrainingStalled of the test. Rank 1 never arrived."),
        (
            "failed",
            LENGTH,
            {},
            "run run, at step 594, failed. Before, TrainingStalled of the test. Rank 1 never arrived.",
        ),
        ("stopped", LENGTH + 90.0, {"recovered": BEGIN + 250.0}, ""),
        ("stopped", 250.0, {}, ""),
        ("finished", LENGTH, {}, ""),
    ],
)
def test_a_run_that_stood_still_until_its_end_has_that_verdict_after_it(
    stored_history: History, state: str, ended: float, recovered: dict[str, float], verdict: str
) -> None:
    evidence = {"hang": {"kind": "never_arrived", "text": "Rank 1 never arrived.", "ranks": [1]}, **recovered}
    stalled = replace(alert("TrainingStalled", 200, ended=ended), evidence=evidence)
    stored_history.put([*records(state=state), stalled])
    assert diagnosis(stored_history)["verdict"] == verdict
    assert diagnosis(stored_history)["hang"] is None


def test_a_nan_counts_until_it_recovered_and_is_named_after_the_failure(stored_history: History) -> None:
    nan = alert("NonFinite", 200)
    stored_history.put([*records({"data": 300}, state="failed"), nan])
    found = diagnosis(stored_history)
    assert [one["cause"] for one in found["causes"]][:2] == ["failed", "wasted"]
    assert found["ledger"]["wasted"] == pytest.approx(LENGTH - 200, abs=2)
    stored_history.put([replace(nan, evidence={"recovered": BEGIN + 206.0})])
    found = diagnosis(stored_history)
    assert found["ledger"]["wasted"] == pytest.approx(6, abs=1)
    assert [one["cause"] for one in found["causes"]][:2] == ["failed", "data_wait"]
    stored_history.put([replace(nan, evidence={"recovered": BEGIN + 506.0, "calm_seconds": 300.0})])
    assert diagnosis(stored_history)["ledger"]["wasted"] == pytest.approx(6, abs=1), "it was NaN for a moment twice"


def test_a_trouble_of_a_run_that_does_not_page_costs_as_much(stored_history: History) -> None:
    lowered = replace(alert("NonFinite", 200, "warning"), evidence={"critical": True})
    stored_history.put([*records(), lowered])
    found = diagnosis(stored_history)
    assert (found["health"], found["verdict"]) == ("broken", "NonFinite of the test")
    assert found["ledger"]["wasted"] == pytest.approx(LENGTH - 200, abs=2)


def test_the_advice_about_an_alert_is_its_own(stored_history: History) -> None:
    text = TROUBLES["ReplicasDiffer"].advice("start")
    stored_history.put([*records(), replace(alert("ReplicasDiffer", 200), description=f"Since then. {text}")])
    (cause, *_) = diagnosis(stored_history)["causes"]
    assert cause["advice"] == text


def test_the_death_of_a_rank_stops_a_run_in_which_others_wait_for_it(stored_history: History) -> None:
    hang = {"kind": "ended", "text": "Rank 1 was killed by SIGKILL; rank 0 only waits.", "ranks": [1]}
    died = alert("TrainingProcessDied", LENGTH - 1)
    stored_history.put([*records()[:-1], died])
    assert diagnosis(stored_history)["hang"] is None
    stored_history.put([replace(died, evidence={"hang": hang, "conclusion": hang["text"]})])
    assert diagnosis(stored_history)["verdict"] == f"TrainingProcessDied of the test. {hang['text']}"
    early = replace(alert("TrainingProcessDied", 100), evidence={"hang": hang})
    stored_history.put([replace(died, ended=BEGIN + LENGTH), early])
    assert "TrainingProcessDied" not in diagnosis(stored_history)["verdict"], "the others have gone on"


def test_a_run_without_a_push_and_an_unknown_one(stored_history: History) -> None:
    stored_history.put([opened("run"), finished("run")])
    assert diagnosis(stored_history)["ledger"] == {"start": 60.0}
    with (
        stored_history.database.reading() as connection,
        pytest.raises(UnknownRunError, match="run 'other': there is none"),
    ):
        diagnose(connection, "other", CostSection())


ENERGY = "trackside_gpu_energy_joules_total"
PACKAGE = 'trackside_host_cpu_energy_joules_total{package="0"}'


def counted(second: int) -> dict[str, float]:
    """Return readings of two GPUs at 300.5 and 100 watts, of which the second is idle, and of a CPU at 50 watts."""
    joules = {f"{ENERGY}{{{GPU.format(gpu, gpu)}}}": 1e9 + watts * second for gpu, watts in ((0, 300.5), (1, 100))}
    return {**gpu_values(second, second_gpu=0.0), **joules, PACKAGE: 50.0 * second}


def test_energy_is_the_difference_of_the_counters(stored_history: History) -> None:
    stored_history.put([*records(), *machine(counted)])
    found = diagnosis(stored_history)
    assert found["energy"] == {
        "gpus": {"0": 300.5 * 590, "1": 100 * 590},
        "gpu_joules": 400.5 * 590,
        "gpu_idle_joules": 100 * 590,
        "cpu_joules": 50 * 590,
    }
    assert "energy: GPUs 0.0656 kWh, of it idle 0.0164 kWh, CPUs 0.00819 kWh, per 1,000 steps 0.124 kWh" in list(
        lines(found)
    )
    assert found["costs"]["gpu_cost"] is found["costs"]["energy_cost"] is found["costs"]["carbon_kg"] is None


def test_of_checkpoints_without_a_phase_only_the_cost_is_unknown(stored_history: History) -> None:
    stored_history.put([*records(), Event("run", 0, BEGIN + 5, "checkpoint", 0, 5, {"path": "a"})])
    why = 'no phase `checkpoint`: save within run.phase("checkpoint")'
    assert {"what": "what checkpoints cost", "why": why} in diagnosis(stored_history)["unknown"]


def test_without_counters_the_energy_is_unknown(stored_history: History) -> None:
    stored_history.put(records())
    found = diagnosis(stored_history, CostSection(kwh=0.3, carbon_grams_per_kwh=400))
    assert found["energy"] == {"gpus": {}, "gpu_joules": None, "gpu_idle_joules": None, "cpu_joules": None}
    assert found["costs"]["energy_cost"] is None
    assert {"what": "energy", "why": "no counter of a GPU or a CPU"} in found["unknown"]
    assert not any(line.startswith(("energy", "cost")) for line in lines(found))


def test_costs_are_those_of_the_configured_prices(stored_history: History) -> None:
    session, *rest = records({"data": 300})
    assert isinstance(session, SessionOpened)
    stored_history.put(
        [replace(session, about={"hardware": {"gpus": ["NVIDIA A100-SXM4"] * 2}}), *rest, *machine(counted)]
    )
    prices = CostSection(
        gpu_hour=("*A100*=9", "*=3.0"), currency="EUR", kwh=0.25, carbon_grams_per_kwh=400, pue=2, source="contract"
    )
    found = diagnosis(stored_history, prices)
    kwh = 450.5 * 590 * 2 / 3.6e6
    by_name = {one["cause"]: one for one in found["causes"]}
    assert by_name["data_wait"]["cost"] == 300 / 3600 * 9
    assert by_name["idle_gpu"]["cost"] == pytest.approx(600 / 3600 * 9)
    assert by_name["data_wait"]["estimated_joules"] == pytest.approx(450.5 * 590 / 2)
    text = list(lines(found))
    each = "per 1,000 steps 2.58 EUR, per wasted hour 9.22 EUR"
    assert f"cost: GPUs 1.50 EUR, energy 0.037 EUR, {each}, GPU hours 0.167, prices contract" in text
    assert any(line.startswith("2. data_wait: ") and line.endswith(", 0.75 EUR") for line in text)
    per = {"1000_steps": 0.595, "wasted_hour": 600 / 3600}
    assert found["costs"] == {
        "wasted_hours": pytest.approx((600 - found["ledger"]["compute"]) / 3600),
        "per": {
            unit: {"cost": pytest.approx((1.5 + kwh * 0.25) / amount), "energy_kwh": pytest.approx(kwh / amount)}
            for unit, amount in per.items()
        },
        "currency": "EUR",
        "source": "contract",
        "gpu_hours": pytest.approx(600 / 3600),
        "gpu_hour": 9,
        "gpu_cost": pytest.approx(1.5),
        "energy_kwh": pytest.approx(kwh),
        "energy_cost": pytest.approx(kwh * 0.25),
        "cost": pytest.approx(1.5 + kwh * 0.25),
        "carbon_kg": pytest.approx(kwh * 0.4),
    }


def test_a_price_may_be_that_of_a_host_or_a_tag(stored_history: History) -> None:
    session, *rest = records()
    assert isinstance(session, SessionOpened)
    hello = msgspec.structs.replace(session.hello, tags=("spot",))
    stored_history.put(
        [replace(session, hello=hello, about={"host": "node-1", "hardware": {"gpus": ["NVIDIA A100"]}}), *rest]
    )
    for entries, price in ((("spot=1", "*A100*=2"), 1), (("*H100*=9", "node-?=3"), 3), (("*H100*=9",), None)):
        assert diagnosis(stored_history, CostSection(gpu_hour=entries))["costs"]["gpu_hour"] == price


def test_a_gpu_without_a_counter_makes_the_energy_unknown(stored_history: History) -> None:
    stored_history.put(
        [*records(), *machine(lambda second: {**gpu_values(second), f"{ENERGY}{{{GPU.format(0, 0)}}}": 9.0 * second})]
    )
    found = diagnosis(stored_history)
    assert found["energy"]["gpus"] == {"0": 9.0 * 590, "1": None}
    assert found["energy"]["gpu_joules"] is found["costs"]["energy_kwh"] is None
    assert {"what": "energy", "why": "no counter on GPU 1"} in found["unknown"]


def diagnosis(stored_history: History, prices: CostSection = CostSection()) -> dict[str, Any]:  # noqa: B008  it is frozen
    """Return the diagnosis of the run, as it is after it was JSON."""
    with stored_history.database.reading() as connection:
        found: dict[str, Any] = json.loads(json.dumps(diagnose(connection, "run", prices)))
    return found


def test_a_loss_that_no_longer_falls_has_a_flat_last_tenth(stored_history: History) -> None:
    noise = Random(1)
    rows = [
        (s, round((BEGIN + s) * 1e6), {"loss": 3 * 2.718 ** (-s / 200) + noise.gauss(0, 0.01)}) for s in range(3000)
    ]
    stored_history.put([opened("run"), ingested("run", rows), finished("run", after=3000)])
    with stored_history.database.reading() as connection:
        (loss,) = [one for one in diagnose(connection, "run", CostSection())["trends"] if one["key"] == "loss"]
    assert loss["slope"] < -0.2
    assert loss["late"]["low"] < 0 < loss["late"]["high"]
    (line,) = trend_lines([loss])
    assert "last tenth" in line
