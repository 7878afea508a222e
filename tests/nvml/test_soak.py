"""Thousands of cycles of the real worker, and hundreds of workers, leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from nvml.fake.library import board
from nvml.watching import LONG, Watch

from trackside_daemon.nvml.handle.handle import NvmlUnavailable
from trackside_daemon.nvml.reading import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvml.fake.library import Scenario

#: Counters, samples and processes as they are while a training runs.
LIVELY = (
    "* nvmlDeviceGetTotalEnergyConsumption 7654321987+650000",
    "* nvmlDeviceGetSamples:1 1760000000000000+1000000 200000 98",
    "* nvmlDeviceGetProcessUtilization 1 1760000000000000+1000000 96 60",
    "* field:197 L 98765432109876+1000000000",
    "* field:138:all L 9876543210+50000000",
)
SLACK = 2 * 1024**2
"""Bytes that an allocator may keep; a leak of 1 KiB per cycle would be five times as much at the full count."""


STATUSES = (999, 2, 1, 3, 4, 6, 7, 9, 10, 13, 16, 18, 19, 20, 21, 25, 26, 27, 29, 31)
"""Values of ``nvmlReturn_t``, without that of a lost GPU."""


class Held(NamedTuple):
    """Resources of a process."""

    memory: int
    files: int
    threads: int


def held(process: int) -> Held:
    place = Path(f"/proc/{process}")
    pages = int((place / "statm").read_text().split()[1])
    return Held(
        pages * os.sysconf("SC_PAGE_SIZE"), len([*(place / "fd").iterdir()]), len([*(place / "task").iterdir()])
    )


def test_a_worker_stays_as_large_as_it_was(scenario: Scenario, count: Callable[[int, int], int]) -> None:
    scenario.gpus(8)
    scenario.set(*LIVELY)
    watch = Watch(WorkerSettings(extra=("all",)))
    cycles = count(45, 10_000)
    for _ in range(cycles // 3):
        watch.read()
    worker, before = watch.pid, held(watch.pid)
    for _ in range(cycles):
        reading = watch.nvml.read(LONG)
    after = held(worker)
    assert watch.pid == worker
    assert len(reading.gpus) == 8
    assert (after.files, after.threads) == (before.files, before.threads)
    assert after.memory - before.memory < SLACK
    watch.nvml.close()


def test_workers_that_die_one_after_another_leave_nothing_in_their_parent(
    scenario: Scenario, count: Callable[[int, int], int]
) -> None:
    scenario.set("0 nvmlDeviceGetUtilizationRates exit 2")
    watch = Watch()

    def lose_a_worker() -> None:
        watch.read()
        with pytest.raises(NvmlUnavailable):
            watch.nvml.read(LONG)

    lose_a_worker()
    before = held(os.getpid())
    workers = count(3, 200)
    for _ in range(workers):
        lose_a_worker()
    after = held(os.getpid())
    assert watch.nvml.restarts["exit"] == workers + 1
    assert (after.files, after.threads) == (before.files, before.threads)
    assert after.memory - before.memory < SLACK
    watch.nvml.close()


def test_no_result_of_any_function_ends_the_worker_or_the_other_gpu(
    scenario: Scenario, count: Callable[[int, int], int]
) -> None:
    scenario.set(*board("h100-mig"))
    watch = Watch(WorkerSettings(extra=("all",)))
    keys = {key for scope, key in scenario.lines if scope in ("*", "0.0") and key != "nvmlDeviceGetUUID"}
    watch.read()
    for status in STATUSES[: count(1, len(STATUSES))]:
        for key in sorted(keys):
            scenario.set(f"1 {key} status {status}")
            healthy, _ = watch.nvml.read(LONG).gpus
            assert healthy.values[0] == ("up", (), 1.0), (key, status)
            scenario.remove(f"1 {key}")
    assert not any(watch.nvml.restarts.values())
    watch.nvml.close()
