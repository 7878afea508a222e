"""The whole page of a small machine, word for word: `pytest --update-golden` rewrites it, and the diff is reviewed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, cast

import layer_frames
import pytest
from documents import documented
from metrics_page import Page, promtool
from processes import ROOT, eventually
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from trackside.packing import pack
from trackside.wire import (
    DURATION_BUCKETS,
    Block,
    Bye,
    CheckpointTotals,
    Clock,
    DataWaits,
    Device,
    Envelope,
    Hello,
    Histogram,
    Identity,
    Memory,
    Pushes,
    ResourceUsage,
    Totals,
    encode,
)
from trackside_daemon.alerts.active_alerts import ActiveAlerts
from trackside_daemon.alerts.silences import Silences
from trackside_daemon.checkpoints import tracked
from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.collectors.gpu.nvml_worker import NvmlCollector
from trackside_daemon.collectors.host.host import CpuCollector, MemoryCollector
from trackside_daemon.collectors.process.ranks import RanksCollector
from trackside_daemon.detectors.rank_watch import RankWatch
from trackside_daemon.diagnosis.accounts import goodput_batch
from trackside_daemon.diagnosis.costs import Begin, LiveCosts
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.ingest.client_sessions import ClientSessions
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.model.checkpoint import COMPLETE, Checkpoint
from trackside_daemon.model.families import alerts, derived, ray, rl, training
from trackside_daemon.model.families import daemon as daemon_families
from trackside_daemon.model.families.catalogue import metrics
from trackside_daemon.model.families.gpu import FAMILIES, POD_INFO
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.records import Silence
from trackside_daemon.model.state import State
from trackside_daemon.nvml.reading import GpuReading, Reading
from trackside_daemon.pipeline.pipeline import STAGES
from trackside_daemon.sampling.sampler import Sampler
from trackside_daemon.training.admission import PageLimits
from trackside_daemon.training.liveness import Liveness
from trackside_daemon.training.moment import Moment
from trackside_daemon.training.runs import Runs
from trackside_daemon.web.exposition import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processes import Daemon

    from trackside.wire import DistributionFrame
    from trackside_daemon.nvml.handle.handle import Nvml

GOLDEN = ROOT / "tests" / "golden"
PROC = ROOT / "tests" / "collectors" / "fixtures" / "proc"
SYS = ROOT / "tests" / "collectors" / "fixtures" / "sys"
PAGES = {"metrics.txt": False, "metrics.openmetrics.txt": True}
"""Golden files, and whether they are in OpenMetrics."""

OF_REAL_PROCESSES = {"trackside_process_unique_memory_bytes", "trackside_process_proportional_memory_bytes"}
"""What no tree of files can show."""

SECOND = 1_000_000_000
"""Nanoseconds."""

WALL = 1_760_000_000 * SECOND
NOW = Moment(wall=WALL / SECOND, monotonic=5_000.0)

GIB = 1024**3
MEMBER = RankProcess(
    "char-model", "launch-10.0.0.1-29500-4711-99", 0, 0, 0, "815", 4711, ("0",), "train-0", "ml", "main"
)

#: The newest of each key, by rank.
VALUES = (
    {
        "loss": 2.25,
        "accuracy": 0.5,
        "lr": 3e-4,
        "grad_norm": 1.5,
        "epoch": 1,
        "grad_norm_local_squared": 1.125,
        "eval/loss": 2.5,
        'a "b"\\\n': -1e-9,
    },
    {"loss": math.nan, "accuracy": 0.25, "lr": 3e-4, "grad_norm": math.inf, "epoch": 1, "eval/loss": 1e22},
)


class Driver:
    """A driver of two GPUs whose readings never change."""

    skipped, stuck = 0, False
    restarts: ClassVar = {"timeout": 1, "crash": 0}
    last = Reading(
        calls={"nvmlDeviceGetTemperature": {"success": 20, "not_supported": 2}},
        call_seconds={"nvmlDeviceGetTemperature": 0.03125},
        rejected={"trackside_gpu_power_watts": 3},
    )

    def read(self, _patience: float) -> Reading:
        driver = {"driver_version": "580.95.05", "nvml_version": "13.580.95.05", "cuda_version": "13.0"}
        return Reading([_gpu(0, 0.875), _gpu(1, 0.0)], driver)


def _gpu(index: int, busy: float) -> GpuReading:
    info = {"name": "NVIDIA H100 80GB HBM3", "pci_bus_id": f"00000000:0{index + 1}:00.0", "source": "nvml"}
    return GpuReading(
        index,
        f"GPU-00000000-0000-0000-0000-00000000000{index}",
        info,
        [
            ("up", (), 1.0),
            ("utilization_ratio", (), busy),
            ("memory_controller_utilization_ratio", (), busy / 2),
            ("memory_bytes", (), 80 * GIB),
            ("memory_used_bytes", (), 60 * GIB * busy),
            ("memory_free_bytes", (), 79 * GIB - 60 * GIB * busy),
            ("memory_reserved_bytes", (), GIB),
            ("temperature_celsius", ("gpu",), 30 + 32 * busy),
            ("power_watts", (), 95.5 + 512 * busy),
            ("power_limit_watts", ("enforced",), 700.0),
            ("energy_joules_total", (), 123456789.125 * (1 + busy)),
        ],
    )


@pytest.fixture
def machine() -> State:
    """The state of a machine with two CPUs, two GPUs, and a run of two ranks, one of which has failed."""
    state = State()
    silence = Silence("1a2b3c4d", {"alert": "NonFinite", "run": "char-*"}, NOW.wall - 60, NOW.wall + 3600)
    watch, book = RankWatch(), ActiveAlerts(silences=Silences([silence]))
    for batch in (*_about_itself(), *_sampled(), *_pushed()):
        state.update(batch)
        for reported in book.accept(watch.accept(batch), NOW.wall):
            state.update(reported)
    prices = CostSection(gpu_hour=("*H100*=2.5",), currency="EUR", kwh=0.25)
    begin = Begin(NOW.wall - 600, (), {_gpu(0, 0).uuid: 123456789.125})
    state.update(LiveCosts(state, lambda: (MEMBER,), lambda _: begin, prices).batch(NOW.monotonic, NOW.wall))
    state.update(goodput_batch(state, NOW.monotonic, lambda _: {0: 0.875, 1: 0.75}, {}))
    percentile = Sample(training.STEP_PERCENTILES, ("char-model", "p99"), 0.25)
    state.update(Batch("training:step_percentiles", [percentile], complete=True))
    return state


def _about_itself() -> Iterator[Batch]:
    samples = [
        Sample(daemon_families.BUILD_INFO, ("1.2.3", "3.11.7"), 1),
        Sample(daemon_families.RELOADED, (), 1),
        Sample(daemon_families.RELOADED_AT, (), NOW.wall),
        Sample(daemon_families.CONFIG_HASH, (), 81985529216486),
        Sample(daemon_families.CERTIFICATE_END, (), NOW.wall + 86400 * 90),
    ]
    yield Batch(
        "trackside",
        [*samples, *(Sample(daemon_families.PIPELINE_FAILURES, (stage,), 0) for stage in STAGES)],
        complete=True,
    )
    kept = [
        Sample(daemon_families.HISTORY_SIZE, (), 2 * GIB),
        Sample(daemon_families.HISTORY_SAMPLES, (), 123_456_789),
        Sample(daemon_families.HISTORY_EXCESS, (), 0),
    ]
    yield Batch("history", kept, complete=True)
    sinks = (
        (alerts.NOTIFICATIONS, 5),
        (alerts.NOTIFICATIONS_FAILED, 1),
        (alerts.NOTIFICATIONS_DROPPED, 0),
        (alerts.NOTIFICATIONS_QUEUED, 0),
        (alerts.NOTIFICATIONS_LAST_SUCCESS, NOW.wall),
    )
    yield Batch("notifications", [Sample(metric, ("webhook",), value) for metric, value in sinks], complete=True)
    yield Batch(
        "captures",
        [
            Sample(daemon_families.CAPTURES, ("person", "summarised"), 2),
            Sample(daemon_families.CAPTURES, ("alert", "failed"), 1),
        ],
    )
    yield Batch("captures:kineto", [Sample(daemon_families.DATAGRAMS_REFUSED, ("user",), 3)])
    own = [Sample(training.STRAGGLER_RATIO, ("char-model", rank), ratio) for rank, ratio in (("0", 0.75), ("1", 1.25))]
    yield Batch("stragglers", own, complete=True)
    saved = Checkpoint("1", "/saved/step-3.pt", 0, NOW.wall, "event", COMPLETE, 3, bytes=3 * GIB, checked=NOW.wall)
    yield Batch("checkpoints", tracked.samples({"char-model": [saved]}, {("1", "/saved"): 12 * GIB}), complete=True)


def _sampled() -> list[Batch]:
    nvml = cast("Nvml", Driver())
    gpu = GpuCollector(nvml, timeout=1.0)
    counts = NvmlCollector(nvml, gpu, expected=0, sys=SYS)
    ranks = RanksCollector(lambda: gpu.snapshot.gpus, lambda: (MEMBER,), proc=PROC)
    eventually(lambda: "root" in ranks.collect()[-1].labels)
    collectors = (CpuCollector(PROC), MemoryCollector(PROC), gpu, counts, ranks)
    ticks = iter(range(100))
    sampler = Sampler(collectors, lambda _: None, 1.0, clock=lambda: next(ticks) / 64, wall=lambda: NOW.wall)
    return sampler.tick(NOW.monotonic)


def _pushed() -> Iterator[Batch]:
    sessions = ClientSessions(Runs(PageLimits(layers=("blocks.*",)), linger=60.0, liveness=Liveness(PROC)))
    for rank in (0, 1):
        for frames in _messages_of(rank):
            yield from sessions.receive(Connection(b"peer"), frames, NOW).batches
    yield from sessions.receive(Connection(b"stranger"), [b"GET / HTTP/1.1"], NOW).batches
    yield from sessions.tick(NOW)


def _messages_of(rank: int) -> Iterator[list[bytes]]:
    """Yield the messages of a rank: a hello, four steps, and for rank 1 its end."""
    session = bytes([rank]) * 16
    identity = Identity(
        run="launch-10.0.0.1-29500-4711-99",
        name="char-model",
        rank=rank,
        local_rank=rank,
        world=2,
        local_world=2,
        host="node-1",
        pid=4711 + rank,
        start=99,
        boot="another",
        job_id="815",
        git_commit="7be9f2c0de7be9f2c0de7be9f2c0de7be9f2c0de",
        framework="torch 2.13.0",
    )
    clock = Clock(WALL, round(NOW.monotonic) * SECOND)
    began = clock.wall - 600 * SECOND
    yield encode(Envelope("hello", session), Hello(identity, clock, began, Totals(), total_steps=1000))
    values = VALUES[rank]
    steps = (1, 2, 3, 4)
    times = [clock.monotonic - SECOND * (5 - step) // 8 for step in steps]
    rows = [number for _ in steps for number in values.values()]
    block = Block(list(values), pack("q", steps), pack("q", times), pack("d", rows))
    totals = Totals(
        pushes=4,
        dropped=rank,
        resent=2 * rank,
        overhead=0.0078125,
        steps=4,
        samples=256.0,
        tokens=4_000_000.0,
        nonfinite={"loss": 4, "grad_norm": 4} if rank else {},
        spooled=rank,
        step_duration=Histogram([0] * 7 + [3] + [0] * (len(DURATION_BUCKETS) - 7), 0.375),
        phases={"other": 0.25, "data": 0.125, "eval": 599.625},
        data_wait=DataWaits(
            *([0] * 5 + [4] + [0] * (len(DURATION_BUCKETS) - 5), 0.125),
            first=Histogram([0] * 8 + [1] + [0] * (len(DURATION_BUCKETS) - 8), 0.5),
        ),
        device=Device(
            phases={"forward": 0.0625, "backward": 0.125, "optimizer": 0.03125},
            memory={f"GPU-{rank:08}-0000-0000-0000-000000000000": Memory(8 * GIB, 12 * GIB, 10 * GIB, rank)},
            flops=1.5e15,
        ),
        saves=CheckpointTotals(
            1, Histogram([0] * 9 + [1] + [0] * (len(DURATION_BUCKETS) - 9), 0.75), 3 * GIB, began / SECOND + 300
        ),
    )
    room = ResourceUsage(64 * GIB, 12 * GIB, 20 * GIB, 300, 1024)
    yield encode(
        Envelope("batch", session, 1), Pushes(clock, totals, [block], room=room, distributions=_layers()[rank:])
    )
    if rank:
        yield encode(Envelope("bye", session, 2), Bye(clock, totals, "failed", "RuntimeError"))


def _layers() -> list[DistributionFrame]:
    values = {"blocks.0.mlp": [0.0, -1.5, 2.0, 0.5], "head": [1.5]}  # nothing selects the head
    return [
        layer_frames.attention(4, {"blocks.0.attn/0": (0.25, 8.5)}),
        layer_frames.frame(4, values, update_ratio=0.001953125, rank=2.5),
        layer_frames.frame(4, values, "activations", saturated=0.25),
    ]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_of_a_small_machine_is_the_golden_file(name: str, machine: State, *, update_golden: bool) -> None:
    page = render(machine.snapshot(NOW.monotonic), openmetrics=PAGES[name]).decode()
    if update_golden:
        (GOLDEN / name).write_text(page)
    assert page.splitlines() == (GOLDEN / name).read_text().splitlines()


def test_the_golden_files_have_every_family_of_the_daemon_but_what_a_gpu_may_lack() -> None:
    known, measured = {one.name for one in documented()}, {family.metric.name for family in FAMILIES.values()}
    pages = [GOLDEN / "metrics.txt", *(GOLDEN / "host").glob("*.txt")]
    shown = {name for page in pages for name in Page(page.read_text()).kinds}
    mirrored = {name for name in known if name.startswith("trackside_bridge_")}  # only with a target
    of_few_runs = (*metrics(vars(rl)), *metrics(training.MODEL_SERIES), derived.RANK_STATISTIC, derived.EXTREME_RANK)
    special = {one.name for one in (*of_few_runs, *metrics(vars(ray)), POD_INFO)}
    special |= {name for name in known if name.startswith("trackside_textfile_")}  # only with a directory
    assert shown - measured == known - measured - OF_REAL_PROCESSES - mirrored - special


def test_a_parser_that_is_not_ours_reads_the_same_from_both_golden_files() -> None:
    pages = [(GOLDEN / name).read_text() for name in PAGES]
    parsed = (parse_text(pages[0]), parse_openmetrics(pages[1]))  # type: ignore[no-untyped-call]
    text, openmetrics = (
        {
            (sample.name, *sorted(sample.labels.items())): repr(sample.value)
            for family in families
            for sample in family.samples
        }
        for families in parsed
    )
    assert text == openmetrics
    assert len(text) == len(Page(pages[0]).series)


def test_promtool_finds_nothing_in_a_live_page(
    start_daemon: Callable[..., Daemon], run_training: Callable[..., str]
) -> None:
    daemon = start_daemon("--collector.gpu.simulate=2")
    run_training(daemon, "-c", "import trackside\nfor step in range(9): trackside.push({'a b': 1}, step=step, loss=1)")
    page = daemon.get("/metrics").text
    assert "trackside_training_value" in page
    assert "process_resident_memory_bytes" in page
    assert promtool(page) == ""


def test_nothing_is_nan_but_what_was_pushed_so() -> None:
    page = Page((GOLDEN / "metrics.txt").read_text())
    assert [(one.name, one.labels) for one in page.series if math.isnan(one.value)] == [
        ("trackside_training_loss", {"rank": "1", "run": "char-model"})
    ]
