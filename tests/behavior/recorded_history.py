"""A history with a run for each kind of trouble and of data, recorded by the daemon's parts in simulated time.

All moments, ids and names are fixed, and no value is one of this machine.
"""

from __future__ import annotations

import io
import json
import random
from math import exp, nan
from typing import TYPE_CHECKING, Any

import msgspec
from benchmark_results import benchmark_results
from captures.summary import traces
from diagnosis.simulated_job import Job, SimulatedJob
from in_process_daemon import InProcessDaemon
from layer_frames import attention, frame, normal
from msgspec.structs import replace
from wire_messages import WALL, moment

from trackside.benchmark.results import publish
from trackside.media.pixels import encode
from trackside.wire import (
    SUMMARY,
    AllocationSite,
    Allocator,
    Flight,
    FlightEntry,
    FlightGroup,
    MediaItem,
    MemorySnapshot,
    ProcessInfo,
    TrainingAlert,
    TrainingEvent,
)
from trackside_daemon.alerts.active_alert import CONCLUSION
from trackside_daemon.alerts.evidence.gathering import EvidenceGatherer
from trackside_daemon.alerts.evidence.sources import Sources
from trackside_daemon.alerts.firing_alerts import FiringAlerts
from trackside_daemon.captures.hang.cases import Absent, rank_dump
from trackside_daemon.captures.hang.verdict import verdict
from trackside_daemon.captures.kinds.by_name import BY_NAME
from trackside_daemon.captures.kinds.memory import RankMemory
from trackside_daemon.checkpoints.resumes import Resumes
from trackside_daemon.diagnosis.diagnosis import diagnose
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.documents.diagnosis import lines
from trackside_daemon.history.files.importing import import_run
from trackside_daemon.history.files.layer_lines import layer_lines
from trackside_daemon.history.files.run_file import open_run_file
from trackside_daemon.history.read.series import run_streams
from trackside_daemon.history.record import run_changes
from trackside_daemon.history.training_counters import TrainingCounters
from trackside_daemon.model.capture import AlertLink, Capture, ProfileOptions
from trackside_daemon.model.checkpoint import COMPLETE, DAMAGED, GONE, Checkpoint
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import STALLS, Alert, AlertNote, Silence
from trackside_daemon.service.assembly import DIAGNOSIS_LINES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trackside_daemon.history.recorder import HistoryRecorder
    from trackside_daemon.model.state import State

    Message = Callable[[int, Sequence[tuple[float, int]]], Mapping[str, Any]]
    Events = Mapping[int, Sequence[tuple[str, Mapping[str, Any]]]]

GIB = 2**30
IDENTITY = {
    "start": 1,
    "local_rank": 0,
    "local_world": 1,
    "gpus": (),
    "job_id": "",
    "git_commit": "0123456789abcdef0123456789abcdef01234567",
    "framework": "torch 2.13.0",
}
CONFIG = {"lr": 3e-4, "batch_size": 64, "model": {"layers": 12, "width": 768}, "seed": 1}
ABOUT = ProcessInfo(
    command=("python", "train.py", "--lr", "3e-4"),
    directory="/home/me/gpt",
    python="3.11.7",
    platform="Linux-6.1-x86_64",
    packages={"torch": "2.13.0", "numpy": "2.3.5"},
    git_dirty=True,
    environ={"OMP_NUM_THREADS": "8"},
)

IMPORTED = "step,time,loss,lr\n" + "".join(
    f"{step},{WALL - 5000 + step},{2.5 - step / 100:.2f},{0.001 * step}\n" for step in range(60)
)


def hello(**config: Any) -> dict[str, Any]:
    """Return the fields of a hello; *config* replaces fields of the configuration."""
    tags = config.pop("tags", ())
    return {"config": json.dumps({**CONFIG, **config}), "tags": tags, "about": ABOUT, "total_steps": 400}


def nanoseconds(at: float) -> int:
    """Return a moment on the clients' clock."""
    return round((50.0 + at) * 1e9)


def events(by_step: Events) -> Message:
    """Return what rank 0 sends with its rows: the events of their steps."""

    def message(rank: int, rows: Sequence[tuple[float, int]]) -> Mapping[str, Any]:
        return {
            "events": [
                TrainingEvent(kind, nanoseconds(at), step, json.dumps(fields))
                for at, step in rows
                for kind, fields in (by_step.get(step, ()) if rank == 0 else ())
            ]
        }

    return message


def summary(**values: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the event with results of a run."""
    return SUMMARY, values


def loss(at: int, factor: float, until: int = 10**9) -> Callable[[int], float]:
    """Return a loss that is multiplied by a factor from one step until another."""
    return lambda step: (4 / (1 + step / 100) + 0.5) * (factor if at <= step < until else 1)


def forgetting() -> Callable[[int], float]:
    """Return a loss that is twice as high from the first step that is made again."""
    made, usual, again = set[int](), loss(0, 1.0), [False]

    def at(step: int) -> float:
        again[0] = again[0] or step in made
        made.add(step)
        return usual(step) * (2.0 if again[0] else 1.0)

    return at


def learning(step: int) -> Mapping[str, float]:
    """Return the further values of a usual training."""
    return {"lr": 3e-4 * min(1.0, (step + 1) / 47), "grad_norm": 1.0 + 1 / (1 + step / 20)}


def reinforced(step: int) -> Mapping[str, float]:
    """Return the values of a policy whose reward collapses while the divergence from the reference grows."""
    fallen = max(0.0, min(1.0, (step - 260) / 20))
    return {
        "reward": 0.8 * (1 - exp(-step / 60)) * (1 - fallen) + 0.02 * random.Random(step).gauss(0, 1),
        "kl": 0.01 * (1 + step / 200) + 4.0 * fallen,
        "entropy": 1.5 * exp(-step / 300),
        "response_length": 220 + step / 4,
        "timing_s/gen": 0.25,
        "timing_s/update_actor": 0.1,
    }


def layers(_: int, rows: Sequence[tuple[float, int]]) -> Mapping[str, Any]:
    """Return distributions of the layers at each 20th step, and the description of the model at the first."""
    frames, described = [], []
    for at, step in rows:
        if step == 0:
            modules = [
                {"name": "embed", "type": "Embedding", "parameters": 1000},
                {"name": "blocks.0.attn", "type": "Attention", "parameters": 400},
                {"name": "head", "type": "Linear", "parameters": 1000},
            ]
            described = [
                TrainingEvent("model", nanoseconds(at), 0, json.dumps({"modules": modules, "parameters": 2400}))
            ]
        if step % 20 == 0:
            scale = 1.0 + step / 50
            made = [
                frame(step, {"embed": normal(step), "head": normal(step, scale=scale)}),
                frame(step, {"embed": normal(step, scale=0.1), "head": normal(step, scale=1e-9)}, "gradients"),
                frame(
                    step, {"blocks.0.attn": normal(step), "head": [0.0] * 90 + [1.5] * 10}, "activations", saturated=0.3
                ),
                attention(step, {"blocks.0.attn/0": (0.5, 9.0 + step), "blocks.0.attn/1": (2.5, 3.0)}),
            ]
            frames += [replace(one, time=nanoseconds(at)) for one in made]
    return {"distributions": frames, "events": described}


def media(_: int, rows: Sequence[tuple[float, int]]) -> Mapping[str, Any]:
    """Return an image, a text, a table and an alert of the training code."""
    table = json.dumps({"columns": ["input", "loss"], "rows": [["a < b", 1.5], ["c", 0.5]], "omitted": 2}).encode()
    items, alerts = [], []
    for at, step in rows:
        if step % 100 == 0:
            now = nanoseconds(at)
            items += [
                MediaItem("image", "samples", now, encode(3, 2, 1, bytes(range(6))), step),
                MediaItem("text", "completion", now, f"Step {step} says <b>hello</b>.".encode(), step),
                MediaItem("table", "errors", now, table, step),
            ]
        if step == 200:
            alerts = [TrainingAlert("accuracy is low", nanoseconds(at), "0.31 after 200 steps", "warning", step)]
    return {"media": items, "alerts": alerts}


class BenchmarkedRun:
    """The part of a `trackside.Run` to which a benchmark publishes; it keeps values and events for `events`."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.sent: list[tuple[str, Mapping[str, Any]]] = []

    def push(self, values: Mapping[str, Any], /, *, step: int) -> None:
        """Keep values."""
        self.values |= {key: value for key, value in values.items() if isinstance(value, int | float)}

    def event(self, kind: str, /, **fields: Any) -> None:
        """Keep an event."""
        self.sent.append((kind, fields))

    def summary(self, values: Mapping[str, Any], /) -> None:
        """Keep results."""
        self.sent.append((SUMMARY, {key: value for key, value in values.items() if value is not None}))


def benchmarked() -> BenchmarkedRun:
    """Return what a benchmark publishes."""
    run = BenchmarkedRun()
    publish(run, benchmark_results(100))
    return run


def called(last: int, *, pending: bool) -> Flight:
    """Return the flight recorder of a rank that has called collectives up to *last*."""
    stack = ["/home/me/train.py:12 main", "/x/site-packages/torch/d.py:7 all_reduce"]
    reading = ["/home/me/train.py:10 main", "/home/me/loader.py:88 read"]
    calls = [FlightEntry(number, "all_reduce", "completed", "[4] Float", 4, 60.0) for number in range(last - 2, last)]
    calls.append(FlightEntry(last, "all_reduce", "scheduled" if pending else "completed", "[4] Float", 4, 30.0))
    return Flight({"MainThread 1": stack if pending else reading}, [FlightGroup("gloo", "0", "default_pg", [], calls)])


HANGING = {rank: called(31 if rank == 1 else 32, pending=rank != 1) for rank in range(4)}
"""The flight recorders of four ranks, of which rank 1 never arrived."""


class _Explained:
    """A listener that gathers the evidence of each alert when it begins, and has it published at the next tick."""

    def __init__(self, daemon: RecordingDaemon, state: State, history: HistoryRecorder, proc: Path) -> None:
        self._daemon, self._begun = daemon, set[str]()
        sources = Sources(
            state,
            history.database,
            lambda *_: (frozenset(), []),
            list,
            lambda: history.writer.flush(60),
            diagnose=self._diagnose,
            proc=str(proc),
        )
        self._history = history
        self._gatherer = EvidenceGatherer(
            sources,
            lambda _: None,
            wall=lambda: daemon.now.wall,
            clock=lambda: daemon.now.monotonic,
        )
        self._gatherer.stop()  # it waits for nothing
        self.found: list[Batch] = []

    def accept(self, batch: Batch) -> None:
        """Gather."""
        for alert in batch.records:
            if not isinstance(alert, Alert) or alert.ended is not None or alert.fingerprint in self._begun:
                continue
            self._begun.add(alert.fingerprint)
            evidence = self._gatherer.gather(alert, alert.started)
            if alert.alert in STALLS and alert.run == "stalled":
                judged = verdict({rank: rank_dump(one) for rank, one in HANGING.items()}, Absent())
                assert judged is not None
                evidence |= {CONCLUSION: judged.text, "hang": judged._asdict()}
            if evidence:
                note = AlertNote(alert.alert, alert.started, alert.run, alert.labels, evidence)
                self.found.append(Batch("evidence", records=[note]))

    def _diagnose(self, run: str) -> Sequence[str]:
        with self._history.database.reading() as connection:
            return list(lines(diagnose(connection, run, CostSection())))[1:DIAGNOSIS_LINES]


class RecordingDaemon(InProcessDaemon):
    """A daemon whose alerts have evidence, and which judges each resumed attempt.

    Args:
        place: An empty directory; the history is below it.

    Attributes:
        place: The directory.
        firing: The alerts that fire.
    """

    def __init__(self, place: Path) -> None:
        self.firing = FiringAlerts()
        (place / "proc").mkdir(parents=True)
        (place / "history").mkdir()
        self.place = place
        self._resumed: list[Batch] = []
        super().__init__(place / "history", machine=("host",), listeners=self._listeners, sources=self._sources)
        self._counters = TrainingCounters(self.state, self.history.writer.put)

    def tick(self, values: Mapping[str, float], *, gpus: bool = False) -> None:
        """Run a tick, record the counters of the trainings, and publish the evidence and the verdicts that are due."""
        super().tick(values, gpus=gpus)
        self._counters.record(self.now.monotonic, self.now.wall)
        self.resumes.tick()
        if self._explained.found:
            self.flush()  # a record shares its evidence with the active alert, which a note changes
        for found in (self._explained.found, self._resumed):
            while found:
                self.publish(*found.pop(0).records)

    def publish(self, *records: Any) -> None:
        """Pass records through the pipeline."""
        self.pipeline.accept(Batch("recorded", records=list(records)))

    def flush(self) -> None:
        """Wait until the history has everything, and all ended runs are packed."""
        self.history.writer.flush(60)
        while self.history.writer.call(lambda store: bool(store.due)).result(60):
            pass

    def _listeners(self, state: State, history: HistoryRecorder) -> Sequence[Any]:
        self._explained = _Explained(self, state, history, self.place / "proc")
        return [self._explained, self.firing]

    def _sources(self, history: HistoryRecorder) -> Sequence[Any]:
        self.resumes = Resumes(
            history.database,
            lambda: history.writer.flush(60),
            self._resumed.append,
            clock=lambda: self.now.monotonic,
            wall=lambda: self.now.wall,
        )
        return [self.resumes]


def _job(run: str, name: str = "", **fields: Any) -> Job:
    usual: dict[str, Any] = {"steps": 300, "saves": 100, "save": 1.5, "evaluates": 150, "tokens": 4096}
    usual |= {"identity": IDENTITY, "hello": hello(), "values": learning, "measures": True, "loss": loss(0, 1.0)}
    return Job(run=run, name=name or run, **(usual | fields))


def _jobs() -> list[Job]:
    bench = benchmarked()
    checkpoints = {
        step: [("checkpoint", {"path": f"/ckpt/step-{step}", "seconds": 1.5, "metrics": {"loss": 2.0 - step / 500}})]
        for step in (100, 200, 299)
    }
    nine = {299: [summary(best_eval_loss=1.83, accuracy=0.91, note="a <good> one")]}
    return [
        _job("baseline", "gpt", hello=hello(tags=("paper", "seed-1")), message=events(nine)),
        _job(
            "slow-loader",
            "gpt",
            steps=600,
            loader=0.9,
            hello=hello(lr=1e-3, seed=2, tags=("paper", "seed-2")),
            message=events({599: [summary(best_eval_loss=1.9)]}),
        ),
        _job("crashed", fails=250, message=events({249: [("exception", {"type": "ValueError", "text": "bad batch"})]})),
        _job("nan", loss=loss(200, nan)),
        _job("spike", loss=loss(220, 3.0, 228)),
        _job("straggler", ranks=4, steps=1000, slow={2: 1.5}, synced=True),
        _job("resumed", fails=250, gap=60.0, loss=forgetting()),
        _job("stalled", ranks=4, stalls=(150, 900.0), synced=True),
        _job("throttled", ranks=2, clock=lambda rank, time: 0.6 if rank == 1 and time > 60 else 1.0),
        _job("swapping", swaps=0.25, idle_gpus=1),
        _job("leaking", gpu=20.0, leaks=2e6),
        _job("layers", message=layers),
        _job("rl", values=reinforced, hello=hello(algorithm="grpo")),
        _job("checkpoints", message=events(checkpoints)),
        _job("captured", ranks=2),
        _job("benchmark", steps=2, gpus=False, values=lambda _: bench.values, message=events({1: bench.sent})),
        _job("media", gpus=False, message=media),
        _job("lost", steps=200, leaves=True),
        _job("live", ranks=2, steps=120, leaves=True),
    ]


RUNS = [*(job.run for job in _jobs()), "imported"]
"""The ids of the runs."""


def record(daemon: RecordingDaemon) -> None:
    """Record the history; the daemon is then at the moment of its end."""
    for number, job in enumerate(_jobs()):
        if job.run == "live":
            daemon.after += 600.0  # so that the run before it is lost
            daemon.tick({})
        daemon.after += 60.0
        begun = daemon.after
        SimulatedJob(job, daemon, number).run()
        if job.run == "checkpoints":
            daemon.publish(*_checkpoints(begun))
        if job.run == "captured":
            daemon.flush()
            daemon.publish(*_captures(daemon, begun))
    writer = daemon.history.writer
    import_run(
        writer, open_run_file(io.BytesIO(IMPORTED.encode()), "run.csv", id="imported", name="imported", begin=WALL)
    )
    writer.call(lambda store: run_changes.pin(store, "baseline", pinned=True)).result(60)
    daemon.publish(
        Silence("00000001", {"alert": "LossSpike"}, daemon.now.wall - 60, daemon.now.wall + 3600, "at night")
    )
    daemon.flush()


def _checkpoints(begun: float) -> list[Checkpoint]:
    """Return what audits found: an intact checkpoint, a damaged one, and one that is gone."""
    at = moment(begun).wall
    found = [
        (100, GONE, "", ""),
        (200, DAMAGED, "model.pt", "bytes 4096 to 8191 have changed"),
        (299, COMPLETE, "", ""),
    ]
    return [
        Checkpoint(
            "checkpoints",
            f"/ckpt/step-{step}",
            0,
            at + 8 + step / 2,
            "event",
            state,
            step,
            "torch",
            12_345_678,
            None if state == GONE else at + 200,
            file,
            reason,
            {"loss": 2.0 - step / 500},
        )
        for step, state, file, reason in found
    ]


def _captures(daemon: RecordingDaemon, begun: float) -> list[Capture]:
    """Return a capture of each kind with the summary of its files, and one that failed."""
    at = moment(begun).wall
    stacks = {rank: dict(one.threads) for rank, one in HANGING.items() if rank < 2}
    sites = [AllocationSite(["/x/site-packages/torch/nn.py:3 forward", "/home/me/train.py:12 step"], GIB, 3)]
    memory = RankMemory(
        MemorySnapshot(
            [Allocator("cuda:0", GIB + 1000, 2 * GIB, [*sites, AllocationSite([], 1 << 20, 1)])], ["a trace"]
        ),
        {"[heap]": 300 << 20, "/x/libtorch.so": 200 << 20},
    )
    with daemon.history.database.reading() as connection:
        found = {
            rank: [line for _, line in layer_lines(connection, stream, 0)]
            for stream, _, rank in run_streams(connection, "layers", 0)
        }
    contents: dict[str, dict[int, bytes]] = {
        "stacks": {rank: msgspec.json.encode(one) for rank, one in stacks.items()},
        "flight_recorder": {rank: msgspec.json.encode(one) for rank, one in HANGING.items()},
        "memory": {0: msgspec.json.encode(memory), 1: msgspec.json.encode(memory)},
        "layers": {
            rank: b"".join(msgspec.json.encode(line) + b"\n" for line in lines) for rank, lines in found.items()
        },
    }
    made = [
        Capture(
            "0000000000a0",
            "captured",
            0,
            "profile",
            "person",
            at + 60,
            (0, 1),
            ProfileOptions(10, None, stacks=True),
            "summarised",
            ended=at + 65,
            step=150,
            summary=traces.capture(traces.healthy(1), traces.healthy(2, scale=1.3)),
        )
    ]
    for number, (kind, files) in enumerate(contents.items(), 1):
        paths = {}
        for rank, data in files.items():
            paths[rank] = daemon.place / f"{kind}_{rank}"
            paths[rank].write_bytes(data)
        link = AlertLink("TrainingStalled", at, {"run": "captured"}) if kind == "flight_recorder" else None
        asked = Capture(
            f"0000000000a{number}", "captured", 0, kind, "alert" if link else "api", at + 60 + number, tuple(files)
        )
        made.append(
            Capture(
                asked.id,
                asked.run,
                0,
                kind,
                asked.trigger,
                asked.asked,
                asked.ranks,
                state="summarised",
                cause=link,
                ended=at + 70 + number,
                summary=BY_NAME[kind].summarize(paths),
            )
        )
    failed = "rank 0: it does not answer: it is stopped, or a call holds the GIL"
    made.append(Capture("0000000000a9", "captured", 0, "stacks", "api", at + 90, (0,), state="failed", reason=failed))
    return made
