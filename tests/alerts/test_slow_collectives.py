"""A slow link and a late rank among 64 are named with node and kind, from text files and over OTLP; healthy ones raise nothing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from inspector_job import GPUS, HOSTS, Fault, InspectorJob, otlp, text_files

from trackside_daemon.alerts.slow_collectives import CollectiveAlerts
from trackside_daemon.bridges.otlp.receiver import OtlpCollector, decode
from trackside_daemon.collectors.foreign import ForeignFamilies
from trackside_daemon.collectors.textfile import TextfileCollector
from trackside_daemon.detectors.collectives import EVERY, MOST, Operation, SlowCollectives
from trackside_daemon.detectors.settings import DEFAULTS
from trackside_daemon.model.families import gpu
from trackside_daemon.model.families.training import LOST, RUN_INFO
from trackside_daemon.model.metric import Batch, Metric, Sample
from trackside_daemon.model.records import Alert
from trackside_daemon.model.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trackside_daemon.model.finding import Finding

KINDS = {"network": "link", "nvlink": "link", "rank": "rank", "": ""}


class Daemon:
    """The parts of a daemon that the numbers pass, from the collector to the findings; *directory* is None for OTLP."""

    def __init__(self, directory: Path | None) -> None:
        self.now = 0.0
        self.state = State()
        self._directory = directory
        families = ForeignFamilies()
        self._otlp = OtlpCollector(families, lambda: self.now)
        self._collector = self._otlp if directory is None else TextfileCollector(str(directory), families)
        self.alerts = self.start()

    def start(self) -> CollectiveAlerts:
        self.alerts = CollectiveAlerts(
            self.state, DEFAULTS.collective_ratio, lambda: self.now, lambda: self.now, host="node0.cluster"
        )
        return self.alerts

    def receive(self, dump: Mapping[Operation, float]) -> list[Finding]:
        if self._directory is None:
            assert self._otlp.accept(decode(otlp(dump, self.now), is_json=True)) == 0
        else:
            for name, text in text_files(dump).items():
                (self._directory / name).write_text(text)
        self.state.update(Batch(self._collector.name, self._collector.collect(), complete=True))
        findings = self.alerts.accept(Batch("sampler"))
        self.now += EVERY
        return findings


def planted(number: int) -> tuple[Fault, bool, bool]:
    """Return a fault, whether messages have more sizes, and whether the training restarts with it."""
    chosen = random.Random(number)
    kind = ("network", "nvlink", "rank", "rank")[number % 4]
    factor = chosen.uniform(1.0, 3.0) if kind == "rank" else chosen.uniform(0.3, 0.6)
    return Fault(kind, chosen.randrange(HOSTS), chosen.randrange(GPUS), factor), number % 3 == 0, number % 5 == 0


def check_named(number: int, directory: Path | None) -> None:
    fault, mixed, restarts = planted(number)
    daemon, job = Daemon(directory), InspectorJob(number, mixed=mixed)
    assert [found for _ in range(14) for found in daemon.receive(job.dump())] == []
    if restarts:
        job.restart()
    (found,) = [found for _ in range(8) for found in daemon.receive(job.dump(fault))]
    labels = dict(found.labels)
    assert (found.evidence["kind"], labels["host"]) == (KINDS[fault.kind], f"node{fault.host}")
    assert fault.kind != "rank" or labels["gpu"].removeprefix("GPU") == str(fault.gpu)
    assert labels["communicator"] in {one.name for one in job.communicators}
    (over,) = [found for _ in range(8) for found in daemon.receive(job.dump())]
    assert over.over
    assert over.labels == found.labels


def test_a_planted_fault_is_named_with_its_node_and_kind() -> None:
    check_named(4, None)


@pytest.mark.usefixtures("only_soak")
@pytest.mark.parametrize("number", range(20))
def test_each_of_twenty_planted_faults_is_named(number: int, tmp_path: Path) -> None:
    check_named(number, tmp_path if number % 2 else None)


@pytest.mark.usefixtures("only_soak")
@pytest.mark.parametrize("number", range(20))
def test_a_healthy_hour_with_restarts_and_mixed_sizes_raises_nothing(number: int, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path if number % 2 else None)
    job = InspectorJob(1000 + number, mixed=number % 3 == 0)
    for dump in range(int(3600 / EVERY)):
        if dump in {40, 90}:
            job.restart()
        assert daemon.receive(job.dump()) == []


def labelled(metric: Metric, **values: str) -> Sample:
    return Sample(metric, tuple(values.get(name, "") for name in metric.labels), 1.0)


class Pair:
    """Two nodes of one communicator, of which the second slows down when asked."""

    def __init__(self, gpu: str = "GPU3") -> None:
        self._number = 0
        self._gpu = gpu

    def dump(self, *, late: bool = False) -> dict[Operation, float]:
        self._number += 1
        about = ("0xab", "2", "AllReduce", "4-5GB", "RING_SIMPLE")
        fast = 40 + self._number / 1000
        return {Operation("node0", self._gpu, *about): fast, Operation("node1", "0", *about): fast / (4 if late else 1)}


def test_the_run_and_the_rank_of_a_gpu_of_this_machine_are_named() -> None:
    daemon, job = Daemon(None), Pair()
    samples = [
        labelled(gpu.RANK_INFO, gpu="3", uuid="GPU-3", run="llama", rank="7"),
        labelled(RUN_INFO, run="llama", run_id="llama-1"),
    ]
    daemon.state.update(Batch("ranks", samples))
    found = [one for late in (False, True) for _ in range(14) for one in daemon.receive(job.dump(late=late))]
    assert [(one.run, dict(one.labels)["rank"]) for one in found] == [("llama-1", "7")]
    assert found[0].summary == (
        "the rank on GPU3 of node0 is late, and its peers wait: AllReduce 4-5GB runs at 10 GB/s, 25.0 % of 40.01, in "
        "communicator 0xab (rank 7 of llama)"
    )


def test_an_evaluation_with_operations_of_the_same_size_raises_nothing() -> None:
    daemon, job = Daemon(None), Pair()
    found = []
    for tick in range(60):
        spent = 28.0 * min(max(0, tick - 14), 20)
        daemon.state.update(
            Batch("times", [Sample(LOST, ("llama", "0", "stall"), 0.0), Sample(LOST, ("llama", "0", "eval"), spent)])
        )
        found += [(tick, one.over) for one in daemon.receive(job.dump(late=14 < tick < 35 or tick > 50))]
    assert [over for _, over in found] == [False]
    assert found[0][0] > 50


def test_an_alert_of_an_earlier_daemon_ends_if_it_is_not_found_again() -> None:
    daemon, job = Daemon(None), Pair()
    labels = {"communicator": "0xab", "gpu": "GPU3", "host": "node0"}
    daemon.alerts.restore(Alert("CollectiveSlow", "warning", 0.0, labels=labels, evidence={"kind": "rank"}))
    found = [(daemon.now, one.over) for _ in range(25) for one in daemon.receive(job.dump())]
    assert found == [(600.0 + EVERY, True)]


def test_invented_hosts_have_few_verdicts() -> None:
    watch = SlowCollectives(2.0)
    invented = [Operation(f"h{one}", "0", f"c{one}", "1", f"o{one}", "1M", "ring") for one in range(200)]
    for tick in range(25):
        found = watch.update(tick * EVERY, dict.fromkeys(invented, tick / 100 + (100.0 if tick < 15 else 1.0)))
    assert len(found) == MOST
