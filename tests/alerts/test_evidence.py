"""Evidence of alerts, from a real state and a real history; only clients and processes are simulated."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from alerts.test_simulated import Simulated
from alerts.ticking import Machine
from histories import BEGIN, column, history, ingested, opened
from processes import DEADLINE, eventually

from trackside.wire import ProcessInfo, Stacks
from trackside_daemon.alerts.evidence import gathering
from trackside_daemon.alerts.evidence.gathering import MAX_BYTES, MAX_QUEUED_ALERTS, EvidenceGatherer
from trackside_daemon.alerts.evidence.ranks import CHARACTERS_OF_ALL
from trackside_daemon.alerts.evidence.required import awaits, required_parts
from trackside_daemon.alerts.evidence.sources import Sources
from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.collectors.process.process import TrainingProcess
from trackside_daemon.history.sanitize import to_json
from trackside_daemon.model.capture import RankAnswer
from trackside_daemon.model.checkpoint import Checkpoint
from trackside_daemon.model.families import cgroup, daemon
from trackside_daemon.model.families import process as families
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Distribution, Sample
from trackside_daemon.model.records import STEP, Alert, AlertNote, Event
from trackside_daemon.model.state import State
from trackside_daemon.model.troubles import TROUBLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from histories import History

    from trackside_daemon.nvml.handle.handle import Nvml

NOW = BEGIN + 1000


class Scene:
    """All sources of evidence, and the records that the gatherer has published."""

    def __init__(self, kept: History) -> None:
        self.state = State()
        self.kept = kept
        self.asked: list[frozenset[int]] = []
        self.threads: dict[int, dict[str, list[str]]] = {}
        self.silent: frozenset[int] = frozenset()
        self.seen: list[TrainingProcess] = []
        self.records: list[Any] = []
        self.sources = Sources(
            self.state,
            kept.database,
            self._ask,
            lambda: self.seen,
            lambda: kept.writer.flush(30),
            diagnose=lambda run: [f"time of {run}: useful compute 90%", "1. data_wait: …", "   try: more workers"],
            ask_batches=lambda run, ranks, _: self._ask(run, ranks),
        )
        self.evidence = EvidenceGatherer(self.sources, self.deliver, wall=lambda: NOW, pause=lambda _: None)

    def gather(self, alert: Alert, until: float = NOW) -> dict[str, Any]:
        return self.evidence.gather(alert, until)

    def ranks(self, steps: list[int], state: str = "running") -> None:
        """Set the steps of the ranks of the run ``net``."""
        samples = []
        for rank, step in enumerate(steps):
            rank_labels = ("net", str(rank))
            samples += [Sample(f.RANK_STATE, (*rank_labels, state), 1.0), Sample(f.STEP, rank_labels, step)]
            samples += [Sample(f.LAST_STEP, rank_labels, NOW), Sample(f.KNOWN["loss"], rank_labels, float("nan"))]
            samples += [
                Sample(f.VALUE, (*rank_labels, "reward"), 0.5),
                Sample(f.PHASE_SECONDS, (*rank_labels, "data"), 7.0),
            ]
            samples += [Sample(f.STEP_DURATION, rank_labels, Distribution((0, 4), 2.0))]
        self.state.update(Batch("training", samples))

    def _ask(self, _: str, ranks: frozenset[int]) -> tuple[frozenset[int], list[RankAnswer]]:
        self.asked.append(ranks)
        answers = [RankAnswer(rank, 0.0, Stacks(self.threads[rank])) for rank in sorted(ranks & self.threads.keys())]
        return ranks & (self.threads.keys() | self.silent), answers

    def deliver(self, batch: Batch) -> None:
        self.records.extend(batch.records)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with history(tmp_path / "history") as kept:
        yield Scene(kept)


def about(name: str = "LossSpike", *, severity: str = "warning", started: float = NOW, **labels: str) -> Alert:
    return Alert(name, severity, started, "net-1", {"run": "net", **labels})


def test_the_last_values_of_the_rank_and_of_its_key(scene: Scene) -> None:
    scene.ranks([7, 9])
    found = scene.gather(about(rank="1", key="reward"))["ranks"]
    assert list(found) == ["1", "0"]
    assert found["1"] == {
        "state": "running",
        "step": 9.0,
        "loss": "nan",
        "last_push": NOW,
        "reward": 0.5,
        "step_seconds": 0.5,
        "phase_seconds": {"data": 7.0},
    }
    assert list(scene.gather(about())["ranks"]) == ["0", "1"]


@pytest.mark.parametrize("steps", [10, 300, 9000])
def test_the_samples_up_to_the_alert_and_none_that_came_later(scene: Scene, steps: int) -> None:
    scene.kept.put([opened("net-1", name="net"), column("net-1", ["loss"], steps)])
    scene.kept.wait_until_packed()
    scene.kept.put([ingested("net-1", [(steps, round((BEGIN + steps) * 1e6), {"loss": 99.0})], number=2)])
    found = scene.gather(about(key="loss", rank="0"), BEGIN + steps)["samples"]
    assert (found["key"], found["rank"]) == ("loss", 0)
    assert found["points"][-1] == [steps, BEGIN + steps, 99.0]
    assert len(found["points"]) == min(20, steps + 1)
    assert [step for step, _, _ in found["points"]] == list(range(steps + 1))[-20:]
    earlier = scene.gather(about(key="loss", rank="0"), BEGIN + steps - 3)["samples"]
    assert earlier["points"][-1][0] == steps - 3


def test_durations_that_are_not_stored_come_from_the_times_of_the_steps(scene: Scene) -> None:
    pushes = [(step, round((BEGIN + step * 2) * 1e6), {"loss": 1.0}) for step in range(5)]
    scene.kept.put([opened("net-1", name="net"), ingested("net-1", pushes)])
    found = scene.gather(about("SlowStep", key="step_duration_seconds", rank="0"))["samples"]
    assert [(step, value) for step, _, value in found["points"]] == [(step, 2.0) for step in range(4)]


def test_an_alert_about_speed_has_the_diagnosis_of_its_run(scene: Scene) -> None:
    found = scene.gather(about("DataLoaderBottleneck", rank="0"))
    assert found["diagnosis"] == ["time of net-1: useful compute 90%", "1. data_wait: …", "   try: more workers"]
    assert "diagnosis" not in scene.gather(about())


@pytest.mark.parametrize(
    "name", ["SlowStep", "DataLoaderBottleneck", "StragglerRank", "TrainingProcessDied", "NonFinite"]
)
def test_what_reads_the_history_waits_until_it_has_what_led_to_the_alert(scene: Scene, name: str) -> None:
    waits: list[bool] = []
    scene.sources = scene.sources._replace(wait_written=lambda: waits.append(True))
    EvidenceGatherer(scene.sources, scene.deliver, wall=lambda: NOW, pause=lambda _: None).gather(
        about(name, key="loss", rank="0"), NOW
    )
    assert waits == [True]


def test_an_alert_of_the_machine_has_no_diagnosis(scene: Scene) -> None:
    alert = Alert("GpuUnderutilized", "warning", NOW, "", {"gpu": "0"})
    assert "diagnosis" not in scene.gather(alert)


def test_a_key_without_samples_is_listed_as_missing(scene: Scene) -> None:
    found = scene.gather(about(key="loss", rank="0"))
    assert found == {
        "addition": "",
        "conclusion": "",
        "missing": ["ranks: /metrics no longer has values of them", "samples: the history has none of loss"],
    }


@pytest.mark.parametrize("name", ["NonFinite", "TrainingProcessDied", "LossDiscontinuity"])
def test_the_last_good_checkpoint_before_the_alert(scene: Scene, name: str) -> None:
    scene.kept.put([opened("net-1", name="net")])
    assert "checkpoint" not in scene.gather(about(name))
    scene.kept.put(
        [
            Checkpoint("net-1", f"/runs/step-{step}.pt", 0, NOW - 500 + step, "event", state, step, "torch", 7, checked)
            for step, state, checked in (
                (100, "complete", NOW),
                (200, "complete", NOW),
                (300, "complete", None),
                (400, "damaged", NOW),
                (900, "complete", NOW),
            )
        ]
    )
    assert scene.gather(about(name))["checkpoint"] == {
        "path": "/runs/step-200.pt",
        "step": 200,
        "age_seconds": 300.0,
        "bytes": 7,
    }


@pytest.mark.parametrize(
    ("equal", "named"),
    [
        (250, "The last intact checkpoint from before, of step 200 and 5 min earlier, is /runs/step-200.pt."),
        (199, "The last intact checkpoint from before, of step 100 and 6 min 40 s earlier, is /runs/step-100.pt."),
        (99, "No intact checkpoint from before is known."),
        (None, "No intact checkpoint from before is known."),
    ],
)
def test_the_checkpoint_from_before_ranks_differed_is_named(scene: Scene, equal: int | None, named: str) -> None:
    saved = [
        Checkpoint("net-1", f"/runs/step-{step}.pt", 0, NOW - 500 + step, "event", "complete", step, "torch", 7, NOW)
        for step in (100, 200, 300)
    ]
    scene.kept.put([opened("net-1", name="net"), *saved])
    alert = replace(about("ReplicasDiffer"), evidence={"equal_at_step": equal})
    assert scene.gather(alert)["addition"] == named


@pytest.mark.parametrize(
    ("name", "evidence", "step"),
    [
        ("NonFinite", {"doubtful_from_step": 200, STEP: 350}, 100),
        ("NonFinite", {"doubtful_from_step": 201, STEP: 350}, 200),
        ("GradientExplosion", {STEP: 150}, 100),
        ("LossDiverging", {"doubtful_from_step": 101}, 100),
        ("LossSpike", {STEP: 450, "occurrences": [{"number": 2, "time": NOW + 600}]}, 300),
        ("RewardCollapse", {}, 300),
        ("TrainingProcessDied", {}, 300),
    ],
)
def test_the_checkpoint_that_an_alert_names_is_older_than_its_trouble(
    scene: Scene, name: str, evidence: dict[str, Any], step: int
) -> None:
    saved = [
        Checkpoint("net-1", f"/runs/step-{step}.pt", 0, NOW - 500 + step, "event", "complete", step, "torch", 7, NOW)
        for step in (100, 200, 300)
    ]
    scene.kept.put([opened("net-1", name="net"), *saved])
    found = scene.gather(replace(about(name), evidence=evidence))
    assert found["checkpoint"]["step"] == step
    assert found["addition"].endswith(f"is /runs/step-{step}.pt.")


def test_a_run_without_checkpoints_has_no_sentence_about_them(scene: Scene) -> None:
    scene.kept.put([opened("net-1", name="net")])
    assert scene.gather(about("NonFinite"))["addition"] == ""


GOES_BACK = re.compile(r"\b(resume|restart|back) (from|to) (a|the)( last)? checkpoint", re.IGNORECASE)


def test_each_alert_that_advises_to_go_back_to_a_checkpoint_names_it_and_its_message_waits_for_that() -> None:
    back = {name for name, one in TROUBLES.items() if any(GOES_BACK.search(step) for step in one.steps.values())}
    assert {"NonFinite", "LossDiverging", "GradientExplosion", "KlBlowup", "ReplicasDiffer"} <= back
    assert {name for name in back if "checkpoint" not in required_parts(name, {"run": "net"})} == set()
    assert {
        name
        for name in back
        if not awaits(name, {"conclusion": ""}) or awaits(name, {"conclusion": "", "addition": ""})
    } == set()


def test_an_alert_that_comes_again_at_another_step_gets_its_batches_and_its_checkpoint(scene: Scene) -> None:
    scene.kept.put([opened("net-1", name="net")])
    found = scene.evidence.gather(replace(about("NonFinite", rank="0"), evidence={STEP: 7}), NOW, again=True)
    assert found.keys() == {"addition", "conclusion", "missing"}
    assert {line.partition(":")[0] for line in found["missing"]} == {"batches"}


def test_an_alert_that_comes_again_at_the_same_step_names_its_batches_again(scene: Scene) -> None:
    alert = replace(about("NonFinite", rank="0"), evidence={STEP: 7})
    known = {"batches": [{"step": 7, "rank": 0, "samples": [5]}]}
    note = AlertNote(alert.alert, alert.started, alert.run, alert.labels, known)
    scene.kept.put([opened("net-1", name="net"), alert, note])
    assert scene.evidence.gather(alert, NOW, again=True)["conclusion"] == "Step 7, rank 0: samples 5."


LAUNCH = "0123456789abcdef"
TRACEBACK = b"step 3\nTraceback (most recent call last):\n  x\nRuntimeError: \x1b[31mCUDA\x1b[0m error \x07at https://me:hunter2@host\n\n"


TORCHRUN = b"""    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============
train.py FAILED
  traceback : Signal 9 (SIGKILL) received by PID 5
============
"""
SIGNALLED = b"torch.distributed.elastic.multiprocessing.api.SignalException: Process 5 got signal: 15\n"


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (TRACEBACK, "RuntimeError: CUDA error at https://me:[redacted]@host"),
        (TRACEBACK + b"terminated\n", "RuntimeError: CUDA error at https://me:[redacted]@host"),
        (b"step 3\nstep 4\r\n", "step 4"),
        (b"[rank0]: ValueError: boom\n" + TORCHRUN, "[rank0]: ValueError: boom"),
        (b"ValueError: boom\n" + SIGNALLED, "ValueError: boom"),
        (b"AssertionError\n    raise RuntimeError(\nOSError: \n" + TORCHRUN, "AssertionError"),
        (TORCHRUN, "traceback : Signal 9 (SIGKILL) received by PID 5"),
        (b"x" * 5000, "x" * 150 + "\u2026" + "x" * 149),
        (b"Bus error (core dumped)\n" + b"step\n" * 100, "step"),
    ],
)
def test_a_death_has_the_line_that_its_command_printed_last_or_as_an_error(
    scene: Scene, printed: bytes, said: str
) -> None:
    scene.kept.put([opened("net-1", name="net", about=ProcessInfo(launch=LAUNCH))])
    kept: dict[str, bytes] = {}  # the process that keeps it is a little behind
    sources = scene.sources._replace(console=lambda launch: kept.get(launch, b""))
    behind = lambda _: kept.update({LAUNCH: printed})  # noqa: E731
    evidence = EvidenceGatherer(sources, scene.deliver, wall=lambda: NOW, pause=behind)
    found = evidence.gather(about("TrainingProcessDied", rank="0"), NOW)
    assert found["addition"] == f"Its command printed: {said}"
    assert len(found["console"]) <= 10
    again = evidence.gather(about("TrainingProcessDied", rank="0"), NOW, again=True)
    assert (again["addition"], again["console"]) == (found["addition"], found["console"])
    known = replace(about("TrainingProcessDied", rank="0"), summary=f"rank 0 died: {said}")
    assert "redacted" in said or evidence.gather(known, NOW)["addition"] == "", "its summary has it"


def test_a_death_of_a_command_without_kept_output_has_no_line_of_it(scene: Scene) -> None:
    scene.kept.put([opened("net-1", name="net")])
    found = scene.gather(about("TrainingProcessDied", rank="0"))
    assert (found["addition"], "console" in found) == ("", False)


def test_a_stalled_run_gets_the_stacks_of_the_ranks_furthest_behind_and_ahead(scene: Scene) -> None:
    scene.ranks([100 - rank for rank in range(20)])
    scene.threads = {rank: {"MainThread 1": ["train.py:3 main"], "trackside-sender 2": ["x:1 run"]} for rank in (0, 19)}
    scene.silent = frozenset((18,))
    found = scene.gather(about("TrainingStalled"))
    assert scene.asked == [frozenset((0, *range(13, 20)))]
    assert found["stacks"] == [
        {"rank": rank, "threads": [{"name": "MainThread", "frames": ["train.py:3 main"]}]} for rank in (19, 0)
    ]
    assert "stacks: rank 18 did not answer within 3 s: it is stopped, or a call holds the GIL" in found["missing"]
    assert "stacks: rank 17 is not connected to this daemon now" in found["missing"]


def test_a_slow_rank_gets_its_stacks_and_those_of_a_healthy_one(scene: Scene) -> None:
    scene.ranks([5, 9, 5])
    scene.gather(about("StragglerRank", rank="2"))
    assert scene.asked == [frozenset((2, 1))]


def test_stacks_are_bounded_and_have_no_secrets(scene: Scene) -> None:
    scene.ranks([5])
    url = "https://me:hunter2@host/x"
    scene.threads = {
        0: {f"thread {n} {n}": [f"{'x' * 400}.py:{line} f" for line in range(64)] for n in range(100)}
        | {f"MainThread {url} 7": [f"{url}:{line} f" for line in range(64)]}
    }
    found = scene.gather(about("TrainingStalled"))
    frames = found["stacks"][0]["threads"][0]["frames"]
    assert (len(frames), frames[-1][-5:]) == (64, ":63 f")
    assert "hunter2" not in to_json(found)
    assert len(to_json(found).encode()) < MAX_BYTES
    assert any("more threads of rank 0 are omitted" in line for line in found["missing"])
    scene.threads = {0: {"MainThread 1": ["x" * 400] * 1000}}
    frames = scene.gather(about("TrainingStalled"))["stacks"][0]["threads"][0]["frames"]
    assert CHARACTERS_OF_ALL - 300 < sum(map(len, frames)) <= CHARACTERS_OF_ALL


def test_of_many_ranks_some_have_their_values_with_fewer_phases_and_are_asked_for_batches(scene: Scene) -> None:
    scene.ranks(list(range(100)))
    found = scene.gather(replace(about(rank="70"), evidence={STEP: 5}))
    assert list(found["ranks"]) == ["70", *map(str, range(63))]
    assert scene.asked[0] == {70, *range(63)}
    assert len(to_json(found).encode()) < MAX_BYTES


def test_the_largest_part_is_dropped_if_there_is_too_much(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.ranks([5])
    monkeypatch.setitem(gathering._GATHERERS, "samples", lambda _: {"samples": ["x" * 100] * 1000})
    found = scene.gather(about())
    assert "samples" not in found
    assert found["missing"] == ["samples: 101 KiB is too large"]
    assert "ranks" in found


def test_a_part_that_fails_costs_only_itself(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.ranks([5])

    def fail(_: object) -> dict[str, Any]:
        raise RuntimeError("broken")

    monkeypatch.setitem(gathering._GATHERERS, "samples", fail)
    found = scene.gather(about())
    assert (list(found["ranks"]), found["missing"]) == (["0"], ["samples: RuntimeError"])


def process(pid: int, resident: int, cpu: float) -> TrainingProcess:
    return TrainingProcess(pid, 1, "rank", "python", "R", "net", "net-1", pid, resident, cpu, 4, BEGIN)


def test_the_greatest_processes_come_first(scene: Scene) -> None:
    scene.seen = [process(pid, pid * 1000, 1.0) for pid in range(1, 12)]
    found = scene.gather(Alert("HostMemoryPressure", "critical", NOW))["processes"]
    assert [one["pid"] for one in found] == list(range(11, 3, -1))
    assert found[0] == {
        "pid": 11,
        "role": "rank",
        "command": "python",
        "run": "net",
        "rank": 11,
        "resident_bytes": 11000,
        "cpu_seconds": 1.0,
    }


def test_processes_are_ordered_by_the_cpus_of_the_last_seconds(scene: Scene) -> None:
    def tick(at: float) -> None:
        scene.seen = [process(1, 0, at / 2 - 100), process(2, 0, at * 3 - 10)]
        scene.state.update(Batch("sampler", [Sample(daemon.COLLECTOR_LAST_SUCCESS, ("process",), at)]))

    tick(100.0)
    evidence = EvidenceGatherer(scene.sources, lambda _: None, wall=lambda: NOW, pause=lambda _: tick(102.0))
    found = evidence.gather(Alert("CpuSaturated", "warning", NOW), NOW)["processes"]
    assert [(one["pid"], one["cpus"]) for one in found] == [(2, 3.0), (1, 0.5)]


def test_ranks_are_ordered_by_what_they_read_and_write(scene: Scene) -> None:
    def tick(at: float) -> None:
        scene.seen = [process(1, 0, 0.0), process(2, 0, 0.0)]
        counters = [
            *(Sample(families.READ, (pid,), 1e6 * at) for pid in "12"),
            Sample(families.WRITTEN, ("1",), 0.0),
            Sample(families.WRITTEN, ("2",), 5e6 * at),
        ]
        scene.state.update(Batch("sampler", [*counters, Sample(daemon.COLLECTOR_LAST_SUCCESS, ("process",), at)]))

    tick(100.0)
    evidence = EvidenceGatherer(scene.sources, lambda _: None, wall=lambda: NOW, pause=lambda _: tick(102.0))
    found = evidence.gather(Alert("IoBottleneck", "warning", NOW), NOW)["processes"]
    rates = [(one["pid"], one["read_bytes_per_second"], one["written_bytes_per_second"]) for one in found]
    assert rates == [(2, 1e6, 5e6), (1, 1e6, 0.0)]


def test_a_death_has_the_events_and_memory(scene: Scene) -> None:
    event = Event("net-1", 0, NOW - 5, "rank_ended", 3, fields={"state": "failed", "cause": "SIGBUS"})
    old = Event("net-1", 0, NOW - 5000, "checkpoint", 3)
    scene.kept.put([opened("net-1", name="net"), old, event])
    scene.state.update(Batch("cgroup", [Sample(cgroup.LIMIT, ("/a",), 5e9)]))
    found = scene.gather(about("TrainingProcessDied", rank="3"))
    assert found["events"] == [
        {
            "time": NOW - 5,
            "rank": 3,
            "step": None,
            "kind": "rank_ended",
            "fields": {"state": "failed", "cause": "SIGBUS"},
        }
    ]
    assert found["cgroups"] == {"/a": {"memory_limit_bytes": 5e9}}
    assert "processes: this machine has no process of a training now" in found["missing"]


def test_a_gpu_has_its_readings_its_limits_and_its_xid_errors(scene: Scene) -> None:
    machine = Machine()
    machine.now = NOW - 60
    collector = GpuCollector(cast("Nvml", Simulated(machine, "h100", ("throttled",))), timeout=1.0)
    machine.now = NOW
    scene.state.update(Batch("gpu", collector.collect(), complete=True))
    found = scene.gather(Alert("GpuThrottled", "warning", NOW, labels={"gpu": "7", "uuid": "GPU-7"}))["gpus"]
    assert list(found) == ["7"]
    readings = found["7"]["readings"]
    assert {"temperature_celsius gpu", "power_watts", "memory_used_bytes", "clock_hertz sm"} <= readings.keys()
    assert not {name for name in readings if name.startswith(("power_limit_watts m", "xid_errors"))}
    assert any(reason.startswith("hw_") for reason in found["7"]["clocks_kept_down_by"])


def test_evidence_is_gathered_when_an_alert_begins_and_when_it_gets_worse(scene: Scene) -> None:
    scene.ranks([5])
    scene.evidence.start()
    begun = about(rank="0")
    worse = about(rank="0", severity="critical")
    for alert in (begun, begun, worse, worse, Alert(*begun_ended(worse))):
        scene.evidence.accept(Batch("alerts", records=[alert]))
    eventually(lambda: len(scene.records) >= 2)
    scene.evidence.stop()
    assert [(note.alert, note.started, note.run, note.labels) for note in scene.records] == [
        ("LossSpike", NOW, "net-1", {"run": "net", "rank": "0"})
    ] * 2
    assert scene.records[0].evidence["ranks"]["0"]["step"] == 5.0


def test_evidence_that_an_earlier_daemon_gathered_is_not_replaced_by_what_is_seen_after_the_trouble(
    scene: Scene,
) -> None:
    scene.ranks([5])
    kept = about(rank="0")
    evidence = EvidenceGatherer(scene.sources, scene.deliver, wall=lambda: NOW, pause=lambda _: None, fired=[kept])
    evidence.start()
    over = replace(kept, evidence={"recovered": NOW})
    evidence.accept(Batch("alerts", records=[over, about("NonFinite", rank="0")]))
    eventually(lambda: scene.records)
    evidence.stop()
    assert [note.alert for note in scene.records] == ["NonFinite"]


def begun_ended(alert: Alert) -> tuple[Any, ...]:
    return alert.alert, alert.severity, alert.started, alert.run, alert.labels, "", "", NOW + 1


def test_the_pipeline_never_blocks_and_the_oldest_alerts_get_no_evidence(scene: Scene) -> None:
    holds, go_on = threading.Event(), threading.Event()

    def ask(_: str, __: frozenset[int]) -> tuple[frozenset[int], list[RankAnswer]]:
        holds.set()
        assert go_on.wait(DEADLINE)
        return frozenset(), []

    scene.ranks([5])
    evidence = EvidenceGatherer(
        scene.sources._replace(request_stacks=ask), scene.deliver, wall=lambda: NOW, pause=lambda _: None
    )
    evidence.start()
    evidence.accept(Batch("alerts", records=[about("TrainingStalled")]))
    assert holds.wait(DEADLINE)
    evidence.accept(Batch("alerts", records=[about(started=NOW + n, rank="0") for n in range(MAX_QUEUED_ALERTS + 10)]))
    go_on.set()
    eventually(lambda: len(scene.records) == MAX_QUEUED_ALERTS + 1)
    evidence.stop()
    assert [note.started for note in scene.records[1:]] == [NOW + n for n in range(10, MAX_QUEUED_ALERTS + 10)]


def test_events_need_no_evidence(scene: Scene) -> None:
    scene.ranks([5])
    assert scene.gather(about("RunFinished")) == {}
