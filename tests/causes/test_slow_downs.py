"""Likely causes of slow-downs, from series that a test makes: each planted cause comes first, and healthy noise has none."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from trackside_daemon.causes.engine import compared, conclusion, of_slow_down
from trackside_daemon.causes.readings import Neighbour, RankPlace, Readings, SlowDown, counter_level
from trackside_daemon.history.read.resources import Resource
from trackside_daemon.model.families import training

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.causes.readings import Rise

BEGAN = 10_000.0
EVERY = 10.0
SLOW = SlowDown(BEGAN, BEGAN + 60, lost=0.4)

PRESSURE = "trackside_host_pressure_{}_waiting_seconds_total".format
CLOCK = 'trackside_gpu_clock_hertz{gpu="0",domain="sm"}'
LIMIT = 'trackside_gpu_clock_limit_active{gpu="0",reason="hw_thermal"}'
IDLE = 'trackside_host_cpu_seconds_total{mode="idle"}'
STEAL = 'trackside_host_cpu_seconds_total{mode="steal"}'
LIMITED = 'trackside_cgroup_cpu_throttled_seconds_total{cgroup="/job"}'
OWN = 'trackside_process_cpu_seconds_total{pid="10",mode="user"}'
DATA = 'trackside_training_phase_seconds_total{run="net",rank="0",phase="data"}'
BLOCKED = 'trackside_dataloader_blocked_workers{run="net",rank="0"}'
NEIGHBOUR = 'trackside_gpu_process_memory_bytes{gpu="0",pid="99"}'
NEIGHBOUR_USE = 'trackside_gpu_process_sm_utilization_ratio{gpu="0",pid="99"}'

# Usual level of each series, of counters per second, and the size of its noise.
USUAL = {
    CLOCK: (1.98e9, 1.5e7),
    LIMIT: (0.0, 0.0),
    'trackside_gpu_power_limit_watts{gpu="0",limit="enforced"}': (700.0, 0.0),
    'trackside_gpu_pcie_link_width_lanes{gpu="0"}': (16.0, 0.0),
    'trackside_gpu_ecc_errors_total{gpu="0",kind="uncorrected"}': (0.0, 0.0),
    'trackside_gpu_process_memory_bytes{gpu="0",pid="10"}': (5e9, 1e8),
    PRESSURE("memory"): (0.0, 0.001),
    PRESSURE("io"): (0.01, 0.01),
    PRESSURE("cpu"): (0.1, 0.05),
    'trackside_process_cpu_wait_seconds_total{pid="10"}': (0.01, 0.01),
    IDLE: (2.7, 0.1),
    STEAL: (0.0, 0.005),
    LIMITED: (0.0, 0.005),
    OWN: (1.0, 0.05),
    "trackside_host_cpus": (4.0, 0.0),
    DATA: (0.05, 0.02),
    BLOCKED: (0.0, 0.0),
}


def made(series: str, usual: float, noise: float = 0.0, now: float | None = None, seed: int = 1) -> Resource:
    """Return a series, sampled every 10 s, whose level is *now* from `BEGAN` on."""
    family, _, labels = series.rstrip("}").partition("{")
    by_name = dict(pair.replace('"', "").split("=") for pair in labels.split(",") if pair)
    points, total, chance = [], 0.0, random.Random(f"{series} {seed}")
    for moment in range(int(BEGAN - 900), int(SLOW.ended + EVERY), int(EVERY)):
        level = usual if now is None or moment <= BEGAN else now
        level += abs(chance.gauss(0, noise)) * (3 if chance.random() < 0.05 else 1)
        total += level * EVERY
        points.append((float(moment), total if family.endswith("_total") else level))
    return Resource(family, by_name, points)


def readings(changes: Mapping[str, float], *, seed: int = 1, slow: SlowDown = SLOW, **more: object) -> Readings:
    """Return the readings of a healthy machine with these levels changed during the slow-down."""
    resources = [made(series, *usual, changes.get(series), seed) for series, usual in USUAL.items()]
    came = [made(series, level) for series, level in changes.items() if series not in USUAL]
    resources += [one._replace(points=[point for point in one.points if point[0] >= BEGAN]) for one in came]
    ranks = [RankPlace("0", "10", frozenset("0"))]
    return Readings(slow, resources, ranks, pids=frozenset(("10",)), **more)  # type: ignore[arg-type]


def first(changes: Mapping[str, float], **more: object) -> Rise:
    return of_slow_down(readings(changes, **more))[0]  # type: ignore[arg-type]


PLANTED = {
    "gpu_clock": {CLOCK: 1.2e9, LIMIT: 1.0, DATA: 0.03},
    "io_pressure": {PRESSURE("io"): 0.5},
    "slow_storage": {PRESSURE("io"): 0.5, DATA: 0.45, PRESSURE("cpu"): 0.12},
    "cpu_neighbour": {PRESSURE("cpu"): 0.9, IDLE: 0.1},
    "cpu_pressure": {PRESSURE("cpu"): 0.9, IDLE: 0.7, OWN: 3.0},
    "cpu_limit": {LIMITED: 0.6, PRESSURE("cpu"): 0.2},
    "cpu_steal": {STEAL: 2.0, PRESSURE("cpu"): 0.2},
    "gpu_neighbour": {NEIGHBOUR: 2e9, NEIGHBOUR_USE: 0.45},
    "memory_pressure": {PRESSURE("memory"): 0.6, PRESSURE("io"): 0.5},
    "pcie_link": {'trackside_gpu_pcie_link_width_lanes{gpu="0"}': 8.0},
    "gpu_errors": {'trackside_gpu_ecc_errors_total{gpu="0",kind="uncorrected"}': 0.1},
    "gpu_xid": {'trackside_gpu_xid_last_timestamp_seconds{gpu="0",xid="79"}': BEGAN + 3},
    "data_wait": {DATA: 0.45},
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cause", PLANTED)
def test_the_planted_cause_comes_first(cause: str, seed: int) -> None:
    assert first(PLANTED[cause], seed=seed).cause == cause


@pytest.mark.parametrize("lost", [0.13, 0.4, 0.9])
@pytest.mark.parametrize("seed", range(10))
def test_healthy_noise_has_no_cause(seed: int, lost: float) -> None:
    healthy = readings({}, seed=seed, slow=SLOW._replace(lost=lost))
    assert of_slow_down(healthy) == []
    assert conclusion([], compared(healthy)) == (
        "No cause was found; these have not moved more than usual: GPU clocks, PCIe links, memory pressure, I/O pressure, "
        "CPU pressure, the wait for CPUs, the phases of the step."
    )


@pytest.mark.parametrize("seed", range(10))
def test_one_slow_step_in_healthy_noise_has_no_cause(seed: int) -> None:
    assert of_slow_down(readings({}, seed=seed, slow=SlowDown(BEGAN + 21, BEGAN + 24, lost=0.9))) == []


def test_a_slow_step_is_shorter_than_the_interval_of_the_history() -> None:
    slow = SlowDown(BEGAN + 2, BEGAN + 6, lost=0.75)
    stalled = first({PRESSURE("io"): 0.3}, slow=slow)
    assert stalled.cause == "io_pressure"
    assert stalled.share is not None
    assert stalled.share > 0.9, "3 of 10 s are three quarters of a step of 4 s"


def test_a_throttled_gpu_is_described_with_its_clocks_and_the_reason() -> None:
    found = of_slow_down(readings({CLOCK: 1.2e9, LIMIT: 1.0}))
    assert found[0].text.startswith("the clock of GPU 0 fell from 1.9")
    assert found[0].text.endswith(" GHz: thermal slowdown by the hardware")
    assert found[0].share == pytest.approx(0.98, abs=0.04)
    assert conclusion(found, []).startswith("Likely cause: the clock of GPU 0 fell")


def test_a_gpu_that_waits_lowers_its_clock_itself() -> None:
    idle = 'trackside_gpu_clock_limit_active{gpu="0",reason="gpu_idle"}'
    found = of_slow_down(readings({CLOCK: 0.9e9, idle: 1.0, DATA: 0.6}))
    assert [cause.cause for cause in found] == ["data_wait"]


def test_the_neighbours_are_named() -> None:
    busy = [Neighbour(7, "stress", 2.4), Neighbour(8, "sshd", 0.01)]
    text = first(PLANTED["cpu_neighbour"], neighbours=busy).text
    assert "of 4 CPUs instead of 0." in text
    assert ": stress (pid 7, 2.4 CPUs);" in text
    gpu = first(PLANTED["gpu_neighbour"], commands={"99": "python"}).text
    assert gpu == "process 99 (python), which is not part of the training, runs on GPU 0 and uses 45.0 % of it"


def test_the_processes_that_press_on_memory_and_storage_are_named() -> None:
    others = [
        Neighbour(7, "java", 0.0, resident=int(31e9)),
        Neighbour(8, "fio", 0.1, io=2.1e8),
        Neighbour(9, "sh", 0.0),
    ]
    assert first(PLANTED["memory_pressure"], neighbours=others).text.endswith(
        "; the largest other processes: java (pid 7, 28.9 GiB)"
    )
    assert first(PLANTED["io_pressure"], neighbours=others).text.endswith(
        "; other processes that read and write: fio (pid 8, 200 MiB/s)"
    )


def test_others_are_named_on_a_machine_with_varying_use() -> None:
    varies = readings({PRESSURE("cpu"): 0.9, OWN: 0.8})
    others = [one for one in varies.resources if "mode" not in one.labels or one.labels["mode"] != "idle"]
    idle = made(IDLE, 0.5, 1.4, 0.1)
    assert of_slow_down(varies._replace(resources=[*others, idle]))[0].cause == "cpu_neighbour"


def test_processes_that_have_begun_are_named_on_cpus_that_were_busy_before() -> None:
    waits = {PRESSURE("cpu"): 0.9}
    old, new = Neighbour(7, "make", 0.9, age=4000.0), Neighbour(8, "stress", 0.5, age=70.0)
    assert first(waits, neighbours=[old]).cause == "cpu_pressure"
    found = first(waits, neighbours=[old, new])
    assert found.cause == "cpu_neighbour"
    assert found.text.startswith(
        "other processes that have begun use 0.5 of 4 CPUs: stress (pid 8, 0.5 CPUs); the share of"
    )


def test_a_process_of_the_training_and_one_that_was_there_before_are_no_neighbours() -> None:
    assert of_slow_down(readings({'trackside_gpu_process_memory_bytes{gpu="0",pid="10"}': 8e9})) == []
    old = readings({})
    resident = made(NEIGHBOUR, 1e9)
    assert of_slow_down(old._replace(resources=[*old.resources, resident])) == []


def test_workers_that_wait_for_a_device_mean_slow_storage_where_the_kernel_counts_no_pressure() -> None:
    slow = readings({DATA: 0.45, BLOCKED: 3.0})
    without = [one for one in slow.resources if "pressure" not in one.family]
    assert of_slow_down(slow._replace(resources=without))[0].cause == "slow_storage"


def test_an_idle_gpu_is_explained_by_waits_that_have_always_been_there() -> None:
    slow = SlowDown(BEGAN, BEGAN + 60, lost=0.8, lasting=True)
    always = made(DATA, 0.7)
    one = readings({}, slow=slow)
    found = of_slow_down(one._replace(resources=[always]))[0]
    assert found.text == "the share of time that rank 0 spends waiting for data is 70.0 %"


def test_an_idle_gpu_is_explained_by_others_that_have_always_used_the_cpus() -> None:
    slow = SlowDown(BEGAN, BEGAN + 60, lost=0.8, lasting=True)
    always = {PRESSURE("cpu"): 0.95, IDLE: 0.1, OWN: 0.4, "trackside_host_cpus": 4.0}
    one = readings({}, slow=slow)._replace(resources=[made(series, level) for series, level in always.items()])
    found = of_slow_down(one)[0]
    assert found.cause == "cpu_neighbour"
    assert found.text == (
        "other processes use 3.5 of 4 CPUs; the share of time in which tasks wait for a CPU is 95.0 %"
    )


def test_a_straggler_is_compared_with_the_other_ranks() -> None:
    slow = readings({})
    slower = made(CLOCK, 1.1e9)
    both = [*slow.resources, slower._replace(labels={"gpu": "1", "domain": "sm"})]
    compared_with = slow._replace(
        resources=both, ranks=[RankPlace("1", "11", frozenset("1"))], peers=[RankPlace("0", "10", frozenset("0"))]
    )
    text = of_slow_down(compared_with)[0].text
    assert text.startswith("the clock of GPU 1 is 1.1 GHz, while that of other ranks is 1.9")


def test_each_phase_of_a_straggler_is_compared_with_that_of_the_other_ranks() -> None:
    levels = {("0", "forward"): 0.3, ("0", "backward"): 0.45, ("1", "forward"): 0.3, ("1", "backward"): 0.65}
    series = "trackside_training_phase_seconds_total{{run=net,rank={},phase={}}}"
    resources = [made(series.format(*names), level) for names, level in levels.items()]
    slow = readings({})._replace(
        resources=resources, ranks=[RankPlace("1", "11", frozenset())], peers=[RankPlace("0", "10", frozenset())]
    )
    usual = {labels["phase"]: round(level.usual, 2) for labels, level in slow.of(training.PHASE_SECONDS)}
    assert usual == {"forward": 0.3, "backward": 0.45}
    assert "the phases of the step" not in compared(slow), "backward has moved"


def test_too_little_history_has_no_usual_level_and_nothing_is_concluded() -> None:
    young = readings(PLANTED["io_pressure"])
    resources = [one._replace(points=one.points[-8:]) for one in young.resources]
    assert of_slow_down(young._replace(resources=resources)) == []
    assert conclusion([], compared(young._replace(resources=resources))) == ""


def test_a_reset_counter_and_equal_times_are_no_level() -> None:
    points = [(BEGAN - 50 + 10 * n, value) for n, value in enumerate((5.0, 6.0, 0.0, 1.0, 2.0, 3.0, 4.0))]
    level = counter_level([*points, points[-1]], SLOW)
    assert level is not None
    assert (level.usual, level.now) == (0.1, 0.1)
