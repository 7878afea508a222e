"""A slow link and a late rank among 64 are named with node and kind; a healthy training raises nothing."""

import random
from itertools import count

import pytest
from inspector_job import GPUS, HOSTS, Fault, InspectorJob

from trackside_daemon.detectors.collectives import EVERY, SlowCollectives
from trackside_daemon.detectors.settings import DEFAULTS

KINDS = {"network": "link", "nvlink": "link", "rank": "rank"}


def planted(number: int) -> tuple[Fault, bool, bool]:
    """Return a fault, whether messages have more sizes, and whether the training restarts with it."""
    chosen = random.Random(number)
    kind = ("network", "nvlink", "rank", "rank")[number % 4]
    factor = chosen.uniform(1.0, 3.0) if kind == "rank" else chosen.uniform(0.3, 0.6)
    return Fault(kind, chosen.randrange(HOSTS), chosen.randrange(GPUS), factor), number % 3 == 0, number % 5 == 0


def named(number: int) -> None:
    fault, mixed, restarts = planted(number)
    job, detector, times = (
        InspectorJob(number, mixed=mixed),
        SlowCollectives(DEFAULTS.collective_ratio),
        count(0, EVERY),
    )
    for _ in range(14):
        assert detector.update(next(times), job.dump()) == []
    if restarts:
        job.restart()
    found = [one for _ in range(8) for one in detector.update(next(times), job.dump(fault))]
    assert {(one.kind, one.host) for one in found} == {(KINDS[fault.kind], f"node{fault.host}")}
    assert all(one.gpu == str(fault.gpu) for one in found if one.kind == "rank")
    assert [detector.update(next(times), job.dump()) for _ in range(8)][-1] == []


@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_planted_fault_is_named_with_its_node_and_kind(number: int) -> None:
    named(number)


@pytest.mark.usefixtures("only_soak")
@pytest.mark.parametrize("number", range(20))
def test_each_of_twenty_planted_faults_is_named(number: int) -> None:
    named(number)


@pytest.mark.usefixtures("only_soak")
@pytest.mark.parametrize("number", range(20))
def test_a_healthy_hour_with_restarts_and_mixed_sizes_raises_nothing(number: int) -> None:
    job, detector = InspectorJob(1000 + number, mixed=number % 2 == 0), SlowCollectives(DEFAULTS.collective_ratio)
    for dump in range(int(3600 / EVERY)):
        if dump in {40, 90}:
            job.restart()
        assert detector.update(dump * EVERY, job.dump()) == []
