"""Likely causes from real collectors over a simulated machine, through pipeline, history and evidence, to the alert's text."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from alerts.slow_machine import SlowMachine
from histories import BEGIN, History, finished, history, opened

from trackside.wire import ProcessInfo
from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.alerts.evidence import slow_downs
from trackside_daemon.alerts.evidence.gathering import RecentPhases
from trackside_daemon.alerts.evidence.slow_downs import (
    KERNEL_THREAD,
    changes,
    heaviest,
    neighbours,
    read_processes,
    slow_down,
)
from trackside_daemon.alerts.evidence.sources import AlertCase, Sources
from trackside_daemon.causes.readings import Neighbour, SlowDown
from trackside_daemon.collectors.process.process import TrainingProcess
from trackside_daemon.history.read import alert_reader
from trackside_daemon.model.families import gpu
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.records import Alert
from trackside_daemon.model.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

USUAL = 300.0  # seconds before the fault
FAULT = 70.0
NOTHING = (
    "No cause was found; these have not moved more than usual: GPU clocks, PCIe links, memory pressure, I/O pressure, CPU "
    "pressure, the phases of the step. "
)

PLANTED: dict[str, dict[str, Any]] = {
    "gpu_clock": {},
    "io_pressure": {"io": 0.55},
    "cpu_neighbour": {"cpu": 0.8, "cpus": 3.5},
    "gpu_neighbour": {
        "values": {
            "trackside_gpu_process_memory_bytes{gpu=7,uuid=GPU-7,pid=99}": 2e9,
            "trackside_gpu_process_sm_utilization_ratio{gpu=7,uuid=GPU-7,pid=99}": 0.45,
        }
    },
    "slow_storage": {
        "io": 0.5,
        "data": 0.5,
        "cpu": 0.05,
        "values": {"trackside_dataloader_blocked_workers{run=net,rank=0}": 3.0},
    },
}
"""What the machine shows while the steps take twice as long, by the planted cause; a throttled GPU throttles itself."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SlowMachine]:
    made = SlowMachine(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("cause", PLANTED)
def test_the_first_cause_in_the_alert_is_the_planted_one(machine: SlowMachine, cause: str) -> None:
    machine.train(USUAL)
    if cause == "gpu_clock":
        machine.throttle()
    machine.train(FAULT, slower=2.0, **PLANTED[cause])
    alert = machine.explained()
    first = machine.evidence_of(alert)["causes"][0]
    assert first["cause"] == cause
    assert alert.description.startswith(f"Likely cause: {first['text']}")


def test_none_is_named_in_healthy_runs(tmp_path: Path, count: Callable[[int, int], int]) -> None:
    """The steps take longer because they do more, on machines whose waits vary as always."""
    for seed in range(count(2, 10)):
        (tmp_path / str(seed)).mkdir()
        machine = SlowMachine(tmp_path / str(seed), seed)
        machine.train(USUAL)
        machine.train(FAULT, slower=1.5)
        alert = machine.explained()
        machine.close()
        assert alert.description.startswith(NOTHING), seed
        assert machine.evidence_of(alert)["causes"] == []


def test_one_slow_step_has_its_cause(machine: SlowMachine) -> None:
    machine.train(USUAL)
    machine.train(10, slower=14, io=0.8)
    machine.train(20)
    assert machine.explained("SlowStep").description.startswith(
        "Likely cause: the share of time in which tasks of this machine wait for storage rose from"
    )


def test_the_conclusion_is_stored_and_restored_once(machine: SlowMachine) -> None:
    machine.train(USUAL)
    machine.throttle()
    machine.train(FAULT, slower=2.0)
    alert = machine.explained()
    assert alert.description.startswith("Likely cause: the clock of GPU 7 fell from 1.95 GHz to 885 MHz: power brake, ")
    machine.whole.history.writer.flush(60)
    with machine.whole.history.database.reading() as connection:
        (stored,) = (one for one in alert_reader.alerts(connection) if one["alert"] == alert.alert)
    assert stored["description"] == alert.description
    evidence = stored["evidence"]
    assert evidence["causes"][0]["cause"] == "gpu_clock"
    (data,) = (one for one in evidence["phases"] if one["phase"] == "data")
    assert (data["rank"], data["usual_ratio"]) == (0, pytest.approx(0.02, rel=0.1))
    assert evidence["gpus"]["7"]["readings"]["pcie_link_width_lanes"] == 16
    assert "hw_power_brake" in evidence["gpus"]["7"]["clocks_kept_down_by"]
    restored = ActiveAlerts()
    restored.restore([alert], BEGIN + machine.whole.after)
    records = [record for batch in restored.tick(BEGIN + machine.whole.after + 400) for record in batch.records]
    assert [record.description for record in records if isinstance(record, Alert)] == [alert.description]


@pytest.fixture
def stored_history(tmp_path: Path) -> Iterator[History]:
    with history(tmp_path / "history") as made:
        yield made


def changed(stored_history: History, run: str, *, began: float, lasting: bool = False, **more: Any) -> list[str]:
    """Return what changed before a slow-down of a run."""
    state = State()
    state.update(Batch("runs", [Sample(f.STARTED, ("other", "0"), began - 20)]))
    sources = Sources(state, stored_history.database, lambda *_: (frozenset(), []), list, lambda: None)
    case = AlertCase(Alert("SlowStep", "info", began, run, {"run": "net"}), sources, 0.0, began + 50, began + 50, [])
    return changes(case, SlowDown(began, began + 50, 0.5, lasting=lasting), "net", **more)


def test_an_alert_about_a_gpu_is_about_the_ranks_on_it() -> None:
    state = State()
    of_ranks = [Sample(f.RANK_STATE, ("net", rank, "running"), 1.0) for rank in "01"]
    on_gpus = [Sample(gpu.RANK_INFO, (rank, f"GPU-{rank}", "net", rank), 1.0) for rank in "01"]
    state.update(Batch("training", of_ranks))
    state.update(Batch("gpu", on_gpus))
    sources = Sources(state, None, None, list, lambda: None)  # type: ignore[arg-type]  # neither history nor ranks
    case = AlertCase(Alert("GpuUnderutilized", "warning", BEGIN, labels={"gpu": "1"}), sources, 0.0, BEGIN, BEGIN, [])
    assert [place.rank for place in slow_downs._places(case)] == ["1"]


def test_what_changed_with_the_attempt_and_on_the_machine(stored_history: History) -> None:
    old = ProcessInfo(packages={"torch": "2.12.0", "numpy": "2.1"}, environ={"OMP_NUM_THREADS": "8"})
    new = ProcessInfo(packages={"torch": "2.13.0", "numpy": "2.1"}, environ={"OMP_NUM_THREADS": "1"})
    stored_history.put(
        [opened("net-1", name="net", about=old), opened("net-1", name="net", attempt=1, config={"lr": 0.1}, about=new)]
    )
    busy = [
        Neighbour(7, "stress", 2.0, age=45.0),
        Neighbour(8, "sshd", 0.5, age=9000.0),
        Neighbour(9, "late", 1.0, age=5.0),
    ]
    began = BEGIN + 1100
    lines = changed(stored_history, "net-1", began=began, neighbours=busy)
    assert lines == [
        "run other began on this machine 20 s before",
        "process 7 (stress) began on this machine 5 s after",
        "packages.torch: 2.12.0 before attempt 1, now 2.13.0",
        "environ.OMP_NUM_THREADS: 8 before attempt 1, now 1",
        "config.lr: none before attempt 1, now 0.1",
    ]
    # Hours later the differences of the attempt explain nothing, unless the slowness may be as old as the run.
    assert changed(stored_history, "net-1", began=began + 7200) == lines[:1]
    assert changed(stored_history, "net-1", began=began + 7200, lasting=True) == [lines[0], *lines[2:]]


def test_what_changed_since_the_run_before_of_the_name(stored_history: History) -> None:
    stored_history.put(
        [opened("a", name="net", config={"lr": 1}), finished("a"), opened("x", name="network", started=BEGIN + 5)]
    )
    stored_history.put([opened("b", name="net", config={"lr": 2}, started=BEGIN + 100)])
    lines = changed(stored_history, "b", began=BEGIN + 200)
    assert lines == ["run other began on this machine 20 s before", "config.lr: 1 in run a, now 2"]
    assert changed(stored_history, "a", began=BEGIN + 200) == lines[:1]
    assert changed(stored_history, "unknown", began=BEGIN + 200) == lines[:1]


def test_the_window_and_the_loss_of_each_alert() -> None:
    now = BEGIN + 1000
    slower = {"value": 4.0, "usual": 1.0, "since": now - 4}
    step = slow_down(Alert("SlowStep", "info", now, evidence=slower), now)
    assert step is not None
    assert (step.began, step.lost) == (now - 4, 0.75)
    rank = slow_down(Alert("StragglerRank", "warning", now, evidence={"value": 1.5, "usual": 1.0}), now)
    assert rank is not None
    assert now - rank.began == 300
    gpu = slow_down(Alert("GpuUnderutilized", "warning", now, evidence={"value": 0.1, "since": now}), now)
    assert gpu is not None
    assert (gpu.lost, gpu.lasting) == (0.9, True)
    assert slow_down(Alert("SlowStep", "info", now), now) is None
    assert slow_down(Alert("SlowStep", "info", now, evidence={"value": "nan", "usual": 1.0}), now) is None


def write_process(
    proc: Path, pid: int, name: str, ticks: int, io: int | None = 0, *, resident: float = 0.0, flags: int = 0
) -> None:
    """Write the files of a process that began 100 s after the boot."""
    begun, pages = 100 * os.sysconf("SC_CLK_TCK"), round(resident / os.sysconf("SC_PAGE_SIZE"))
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = [1, 1, 1, 0, 0, flags, 0, 0, 0, 0, ticks, 0, 0, 0, 20, 0, 1, 0, begun, 0, pages]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) R {' '.join(map(str, fields))}" + " 0" * 28)
    if io is not None:
        (proc / str(pid) / "io").write_text(f"rchar: 9\nread_bytes: {io}\nwrite_bytes: 0\n")


def test_the_heaviest_processes_of_each_kind_are_found(tmp_path: Path) -> None:
    second, write = os.sysconf("SC_CLK_TCK"), partial(write_process, tmp_path)
    (tmp_path / "self").mkdir()
    processes = {5: "own", 6: "idle", 7: "a ) b", 8: "stress", 10: "kworker", 11: "fio", 12: "java"}
    for pid, name in processes.items():
        write(pid, name, 100, flags=KERNEL_THREAD if pid == 10 else 0)
    before = read_processes(str(tmp_path))
    for pid, ticks, io, resident in (
        (5, 9, 0, 0.0),
        (7, 1, None, 0.0),
        (8, 4, 0, 0.0),
        (11, 0, 10**8, 0.0),
        (12, 0, 0, 4e9),
    ):
        write(pid, processes[pid], 100 + ticks * second, io, resident=resident)
    write(9, "new", 500)
    write(10, "kworker", 100 + 9 * second, 10**9, flags=KERNEL_THREAD)
    found = heaviest(before, read_processes(str(tmp_path))._replace(at=before.at + 2), {5})
    assert [(one.pid, one.command, round(one.cpus, 3)) for one in found[:2]] == [(8, "stress", 2.0), (7, "a ) b", 0.5)]
    assert [(one.command, round(one.io / 1e6), round(one.resident / 1e9)) for one in found[2:]] == [
        ("fio", 50, 0),
        ("java", 0, 4),
    ]
    assert found[0].age == pytest.approx(before.at + 2 - 100)


@pytest.mark.parametrize(
    ("labels", "said"),
    [({}, "Outside of the training, processes use the CPUs: stress\\n (pid 8, 3.0 CPUs)."), ({"cgroup": "/job"}, "")],
)
def test_an_alert_about_busy_cpus_names_the_processes_outside_of_the_training_that_use_them(
    tmp_path: Path, labels: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    clock = iter((100.0, 102.0))
    monkeypatch.setattr("trackside_daemon.alerts.evidence.slow_downs.time.clock_gettime", lambda _: next(clock))
    for pid, name in ((5, "python"), (8, "stress\n")):
        write_process(tmp_path, pid, name, 100)

    def work(_: float) -> None:
        write_process(tmp_path, 5, "python", 100 + 9 * ticks)
        write_process(tmp_path, 8, "stress\n", 100 + 6 * ticks)

    rank = TrainingProcess(5, 1, "rank", "python", "R", "net", "net-1", 0, 0, 0.0, 4, BEGIN)
    sources = Sources(
        State(), cast("Any", None), cast("Any", None), lambda: [rank], lambda: None, work, proc=str(tmp_path)
    )
    alert = Alert("CpuSaturated", "warning", BEGIN, labels=labels)
    found = neighbours(AlertCase(alert, sources, 0.0, BEGIN, BEGIN, []))
    assert found.get("addition", "") == said
    assert [one["pid"] for one in found.get("neighbours", ())] == ([8] if said else [])


def test_recent_phases_are_of_one_run_and_forgotten_with_it() -> None:
    state = State()
    phases = RecentPhases(state)
    for second in range(3):
        samples = [Sample(f.PHASE_SECONDS, (run, "0", "data"), second) for run in ("net", "other")]
        state.update(Batch("training:1:0", samples, complete=True))
        phases.record(0.0, BEGIN + second)
    (found,) = phases.of("net")
    assert found.labels == {"run": "net", "rank": "0", "phase": "data"}
    assert found.points == [(BEGIN, 0.0), (BEGIN + 1, 1.0), (BEGIN + 2, 2.0)]
    state.update(Batch("training:1:0", complete=True))
    phases.record(0.0, BEGIN + 3)
    assert phases.of("net") == []
