"""Likely causes from real collectors over a simulated machine, through pipeline, history and evidence, to the alert's text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import pytest
from alerts.test_simulated import Simulated
from alerts.ticking import Machine
from histories import BEGIN, opened
from processes import eventually

from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.alerts.evidence import slow_downs
from trackside_daemon.alerts.evidence.gathering import EvidenceGatherer
from trackside_daemon.alerts.evidence.neighbours import busiest, see
from trackside_daemon.alerts.evidence.recent_phases import RecentPhases
from trackside_daemon.alerts.evidence.slow_downs import slow_down
from trackside_daemon.alerts.evidence.sources import Sources
from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.collectors.host.cpu import CpuCollector
from trackside_daemon.collectors.host.pressure import PressureCollector
from trackside_daemon.collectors.process.ranks import RANK_INFO
from trackside_daemon.history.read import reader
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import Recorder
from trackside_daemon.model import training_families as f
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.records import Alert, AlertNote
from trackside_daemon.model.state import State
from trackside_daemon.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside_daemon.collectors.base import Collector
    from trackside_daemon.nvml.handle.handle import Nvml

CPUS = 4
NEXT = "Check the clocks."


class SlowMachine:
    """A machine with one GPU-bound rank, whose procfs the test writes, and the daemon's parts from collectors to alerts."""

    def __init__(self, directory: Path) -> None:
        self.proc = directory / "proc"
        (self.proc / "pressure").mkdir(parents=True)
        (directory / "history").mkdir()
        self.clock = Machine()
        self.gpu = Simulated(self.clock, "h100", ())
        self.wall = BEGIN
        self.waited = dict.fromkeys(("cpu", "io", "memory"), 0.0)
        self.used = 0.0
        self.collectors: list[Collector] = [
            PressureCollector(self.proc),
            CpuCollector(self.proc),
            GpuCollector(cast("Nvml", self.gpu), timeout=1.0),
        ]
        self.state = State()
        self.recorder = Recorder(directory / "history", Bounds(0), machine=[one.name for one in self.collectors])
        self.recorder.start()
        sources = Sources(
            self.state,
            self.recorder.database,
            lambda *_: (frozenset(), []),
            list,
            lambda: None,
            proc=str(self.proc),
        )
        self.found: list[Finding] = []
        self.told: list[Alert] = []
        self.notes: list[Batch] = []
        self.evidence = EvidenceGatherer(sources, self.notes.append, wall=lambda: self.wall)
        self.pipeline = Pipeline(
            self.state, self.recorder, [self], ActiveAlerts(), listeners=[self.evidence, _Listener(self.told)],
            wall=lambda: self.wall,
        )  # fmt: skip
        self.pipeline.accept(Batch("ingest", records=[opened("net-1", name="net")]))
        rank = [Sample(RANK_INFO, ("7", "GPU-7", "net", "0"), 1), Sample(f.RANK_STATE, ("net", "0", "running"), 1)]
        self.pipeline.accept(Batch("ranks", rank))

    def accept(self, _: Batch) -> list[Finding]:
        """Return the findings of the test, as a source of the pipeline."""
        found, self.found = self.found, []
        return found

    def run(self, seconds: int, **rates: float) -> None:
        """Sample the machine every 10 s, with waits and CPUs in use of this size; the usual ones are small."""
        for _ in range(seconds // 10):
            for resource in self.waited:
                self.waited[resource] += 10 * rates.get(resource, 0.01)
                self._write(resource)
            self.used += 10 * rates.get("cpus", 1.0)
            ticks, idle = os.sysconf("SC_CLK_TCK"), CPUS * (self.wall + 10 - BEGIN) - self.used
            (self.proc / "stat").write_text(
                f"cpu  {self.used * ticks:.0f} 0 0 {idle * ticks:.0f} 0 0 0 0 0 0\n"
                + "".join(f"cpu{n} 0 0 0 0 0 0 0 0 0 0\n" for n in range(CPUS))
                + "ctxt 5\nprocs_running 1\nprocs_blocked 0\n"
            )
            self.wall += 10
            self.clock.now += 10
            for one in self.collectors:
                self.pipeline.accept(Batch(one.name, one.collect(), complete=True, time=self.wall))

    def explained(self, seconds: float) -> Alert:
        """Report steps that are half as fast since some seconds, and return the alert once it has a conclusion."""
        evidence = {"value": 0.2, "usual": 0.1, "since": self.wall - seconds}
        labels = (("key", "step_duration_seconds"), ("rank", "0"), ("run", "net"))
        self.recorder.writer.flush(60)
        self.found = [
            Finding("ThroughputRegression", "warning", labels, self.wall, "slow", NEXT, run="net-1", evidence=evidence)
        ]
        self.pipeline.accept(Batch("test"))
        self.evidence.start()
        eventually(lambda: self.notes)
        for note in self.notes:
            self.pipeline.accept(note)
        return self.told[-1]

    def close(self) -> None:
        self.evidence.stop()
        self.recorder.stop()
        self.recorder.close()

    def _write(self, resource: str) -> None:
        total = round(self.waited[resource] * 1e6)
        lines = [f"{how} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n" for how in ("some", "full")]
        (self.proc / "pressure" / resource).write_text("".join(lines))


class _Listener:
    """Listener of alerts that keeps them."""

    def __init__(self, told: list[Alert]) -> None:
        self._told = told

    def accept(self, batch: Batch) -> None:
        self._told += [record for record in batch.records if isinstance(record, Alert)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowMachine]:
    monkeypatch.setattr(slow_downs, "APART", 0.0)
    made = SlowMachine(tmp_path)
    yield made
    made.close()


def test_a_throttled_gpu_is_the_first_thing_that_the_alert_says(machine: SlowMachine) -> None:
    machine.run(600)
    machine.gpu._troubles = ("throttled",)
    machine.run(60)
    alert = machine.explained(60)
    assert alert.description.startswith(
        "Likely cause: the clock of GPU 7 fell from 1,950 MHz to 885 MHz: power brake, "
    )
    assert alert.description.endswith(f" {NEXT}")
    assert alert.evidence["conclusion"] in alert.description
    machine.recorder.writer.flush(60)
    with machine.recorder.database.reading() as connection:
        (stored,) = reader.alerts(connection)
    assert stored["description"] == alert.description
    assert stored["evidence"]["causes"][0]["cause"] == "gpu_clock"


def test_cpus_that_others_use_and_storage_that_tasks_wait_for(machine: SlowMachine) -> None:
    machine.run(600)
    machine.run(60, cpu=0.8, cpus=3.5)
    text = machine.explained(60).description
    assert text.startswith(
        "Likely cause: other processes use 3.5 of 4 CPUs instead of 1.0; the share of time in which tasks"
    )


def test_a_machine_as_usual_has_no_cause(machine: SlowMachine) -> None:
    machine.run(660)
    alert = machine.explained(60)
    assert alert.description == (
        "No cause was found; these have not moved more than usual: GPU clocks, PCIe links, memory pressure, I/O pressure, "
        f"CPU pressure. {NEXT}"
    )


def test_a_restored_alert_has_its_conclusion_once(machine: SlowMachine) -> None:
    machine.run(660)
    alert = machine.explained(60)
    restored = ActiveAlerts()
    restored.restore([alert], machine.wall)
    records = [record for batch in restored.tick(machine.wall + 400) for record in batch.records]
    assert [record.description for record in records if isinstance(record, Alert)] == [alert.description]


def test_what_changed_with_the_attempt_and_on_the_machine(machine: SlowMachine) -> None:
    machine.run(600)
    machine.pipeline.accept(Batch("ingest", records=[opened("net-1", name="net", attempt=1, config={"lr": 0.1})]))
    machine.pipeline.accept(Batch("training:2", [Sample(f.STARTED, ("other", "0"), machine.wall - 20)]))
    machine.run(60)
    assert machine.explained(60).summary == "slow"
    (note,) = (record for batch in machine.notes for record in batch.records if isinstance(record, AlertNote))
    assert note.evidence["changed"] == [
        "run other began on this machine 20 s before",
        "config.lr: none before attempt 1, now 0.1",
    ]


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


def test_the_busiest_processes_come_first(tmp_path: Path) -> None:
    def write(pid: int, name: str, ticks: int) -> None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) R 1 1 1 0 0 0 0 0 0 0 {ticks} 0" + " 0" * 35)

    (tmp_path / "self").mkdir()
    for pid, name in ((5, "own"), (6, "idle"), (7, "a ) b"), (8, "stress")):
        write(pid, name, 100)
    before = see(str(tmp_path))
    second = os.sysconf("SC_CLK_TCK")
    for pid, name, seconds in ((5, "own", 9), (7, "a ) b", 1), (8, "stress", 4)):
        write(pid, name, 100 + seconds * second)
    write(9, "new", 500)
    found = busiest(before, see(str(tmp_path))._replace(at=before.at + 2), {5})
    assert [(one.pid, one.command, round(one.cpus, 3)) for one in found] == [(8, "stress", 2.0), (7, "a ) b", 0.5)]


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
