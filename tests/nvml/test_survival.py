"""Failures of the driver in the real worker, row by row of the survival table, and the handle's reaction."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from nvml.fake.library import board
from nvml.watching import LONG, Watch, values
from processes import eventually

from trackside_daemon.nvml.handle.handle import NvmlAbsent, NvmlPaused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvml.fake.library import Scenario

    from trackside_daemon.nvml.reading import Reading

RATES = "nvmlDeviceGetUtilizationRates"
FIRST, SECOND = (f"GPU-5fd4f087-86f3-1f4a-1e6e-4c8a3b6d9e0{index}" for index in range(2))


@pytest.fixture
def watch(scenario: Scenario) -> Iterator[Watch]:
    """Yield a handle whose worker reads the fake driver with two GPUs."""
    watch = Watch()
    yield watch
    watch.nvml.close()


def assert_both_are_up(reading: Reading) -> None:
    assert [values(gpu).get("utilization_ratio") for gpu in reading.gpus] == [0.98, 0.98]


def test_an_initialisation_that_hangs_has_a_minute(watch: Watch, scenario: Scenario) -> None:
    scenario.set("system nvmlInitWithFlags hang")
    assert "replaced after 60 s" in watch.unavailable_reason(0.05)
    watch.ahead += 61
    assert "hung for 61 s" in watch.unavailable_reason(0.05)
    scenario.remove("system nvmlInitWithFlags")
    assert_both_are_up(watch.read())
    assert watch.nvml.restarts["timeout"] == 1


@pytest.mark.parametrize("status", [15, 999])
def test_a_gpu_that_is_lost_is_at_0_while_the_other_is_read_until_it_returns(
    watch: Watch, scenario: Scenario, status: int
) -> None:
    before = watch.read().gpus[1]
    worker = watch.pid
    scenario.set(f"1 * status {status}")
    for _ in range(3):
        healthy, lost = watch.read().gpus
        assert values(healthy)["utilization_ratio"] == 0.98
        assert (lost.uuid, lost.info, lost.values) == (before.uuid, before.info, [("up", (), 0.0)])
    assert watch.pid != worker
    assert watch.nvml.restarts["gpu_lost"] == 1
    scenario.remove("1 *")
    assert_both_are_up(watch.read())


def test_a_gpu_that_may_not_be_opened_any_longer_is_gone_until_it_may(watch: Watch, scenario: Scenario) -> None:
    before = watch.read().gpus[1]
    scenario.set("1 * status 4")
    for _ in range(2):
        reading = watch.read()
        assert [gpu.index for gpu in reading.gpus] == [0]
        assert [(gpu.uuid, gpu.values) for gpu in reading.gone] == [(before.uuid, [("up", (), 0.0)])]
    scenario.remove("1 *")
    assert_both_are_up(watch.read())


def test_a_driver_and_gpus_that_go_are_found_when_they_are_back(watch: Watch, scenario: Scenario) -> None:
    for _ in range(2):
        scenario.unload()
        with pytest.raises(NvmlAbsent, match="the NVIDIA kernel module is not loaded; run modprobe nvidia, or reboot"):
            watch.nvml.read(LONG)
        scenario.set()
        assert_both_are_up(watch.read())
    scenario.gpus(0)
    with pytest.raises(NvmlAbsent, match="NVML sees no GPU"):
        watch.nvml.read(LONG)
    scenario.gpus(2)
    assert_both_are_up(watch.read())


def test_a_library_that_forgets_its_initialisation_is_replaced(watch: Watch, scenario: Scenario) -> None:
    watch.read()
    scenario.set("* * status 1")
    assert "NVML returned error 1" in watch.unavailable_reason()
    scenario.remove("* *")
    assert_both_are_up(watch.read())
    assert watch.nvml.restarts["error"] == 1


@pytest.mark.parametrize("manner", ["hang", "deaf"])
def test_a_gpu_that_hangs_costs_a_worker_and_is_quarantined_while_the_other_is_read(
    watch: Watch, scenario: Scenario, manner: str
) -> None:
    watch.read()
    worker = watch.pid
    scenario.set(f"1 {RATES} {manner}")
    watch.read_until_hang_at(1)
    watch.ahead += 11
    assert "at GPU 1, which is skipped for a while, and is replaced" in watch.unavailable_reason(0.05)
    healthy, hung = watch.read().gpus
    assert values(healthy)["utilization_ratio"] == 0.98
    assert hung.values == [("up", (), 0.0)]
    assert not Path(f"/proc/{worker}").exists()
    assert watch.nvml.restarts["timeout"] == 1

    scenario.remove(f"1 {RATES}")
    watch.ahead += 60
    assert_both_are_up(watch.read())


def test_a_driver_that_is_slow_is_waited_for_and_the_ticks_between_are_counted(
    watch: Watch, scenario: Scenario
) -> None:
    watch.read()
    worker = watch.pid
    scenario.set("0 delay 0.005")
    while not watch.nvml.skipped:
        watch.unavailable_reason(0.01)
    assert_both_are_up(watch.read())
    assert watch.pid == worker


def test_after_an_upgrade_of_the_driver_a_new_process_loads_the_new_library(watch: Watch, scenario: Scenario) -> None:
    assert watch.read().driver["driver_version"] == "580.95.05"
    scenario.set("system nvmlSystemGetDriverVersion 590.48.01")
    assert "the driver was upgraded under a running kernel module" in watch.unavailable_reason()
    reading = watch.read()
    assert reading.driver["driver_version"] == "590.48.01"
    assert_both_are_up(reading)
    assert watch.nvml.restarts["library_mismatch"] == 1


@pytest.mark.parametrize(
    ("manner", "message", "call"),
    [("crash", "it was killed: Segmentation fault", 1), ("exit", "it exited with status 1", 3)],
)
def test_a_library_that_ends_its_process_costs_a_worker(
    watch: Watch, scenario: Scenario, manner: str, message: str, call: int
) -> None:
    watch.read()
    scenario.set(f"0 {RATES} {manner} {call}")
    for _ in range(call - 1):
        watch.nvml.read(LONG)
    text = watch.unavailable_reason()
    assert message in text
    scenario.remove(f"0 {RATES}")
    assert_both_are_up(watch.read())
    assert watch.nvml.restarts[manner] == 1


def test_an_unsupported_call_is_absent_and_reported_and_not_retried(watch: Watch, scenario: Scenario) -> None:
    scenario.set(f"1 {RATES} status 26")
    for _ in range(3):
        able, refuses = watch.read().gpus
    assert values(able)["utilization_ratio"] == 0.98
    assert "utilization_ratio" not in values(refuses)
    assert values(refuses)["temperature_celsius:gpu"] == 61
    assert refuses.unsupported["utilization"].startswith("the driver no longer supports it")
    calls = watch.nvml.last.calls[RATES]
    assert sum(times for result, times in calls.items() if result != "success") == 1


def test_gpus_that_come_and_go_are_followed(watch: Watch, scenario: Scenario) -> None:
    first, second = watch.read().gpus
    scenario.gpus(3)
    assert [gpu.index for gpu in watch.read().gpus] == [0, 1, 2]
    scenario.gpus(1)
    reading = watch.read()
    assert [gpu.uuid for gpu in reading.gpus] == [first.uuid]
    assert [(gpu.index, gpu.values) for gpu in reading.gone] == [(1, [("up", (), 0.0)]), (2, [("up", (), 0.0)])]
    assert reading.gone[0].uuid == second.uuid


def test_an_index_that_means_another_gpu_is_read_under_its_uuid(watch: Watch, scenario: Scenario) -> None:
    first, second = watch.read().gpus
    scenario.set(f"0 nvmlDeviceGetUUID {second.uuid}", f"1 nvmlDeviceGetUUID {first.uuid}")
    assert [gpu.uuid for gpu in watch.read().gpus] == [second.uuid, first.uuid]


ABSURD = {
    "utilization_ratio": f"{RATES} 4294967295 0",
    "temperature_celsius": "nvmlDeviceGetTemperature 255",
    "energy_joules_total": "nvmlDeviceGetTotalEnergyConsumption 0xFFFFFFFFFFFFFFFF",
    "memory_bytes": "nvmlDeviceGetMemoryInfo_v2 9223372036854775794 1 1 1",
}


def test_values_that_cannot_be_are_left_out_and_counted(watch: Watch, scenario: Scenario) -> None:
    scenario.set(*(f"1 {line}" for line in ABSURD.values()))
    able, absurd = watch.read().gpus
    missing = values(able).keys() - values(absurd).keys()
    assert {name.partition(":")[0] for name in missing} == ABSURD.keys()
    assert watch.nvml.last.rejected == {f"trackside_gpu_{family}": 1 for family in ABSURD}
    watch.read()
    assert watch.nvml.last.rejected == {f"trackside_gpu_{family}": 2 for family in ABSURD}


def test_numbers_of_parts_that_cannot_be_do_not_keep_the_worker_busy(watch: Watch, scenario: Scenario) -> None:
    scenario.set("1 nvmlDeviceGetMigMode 1 1")
    numbers = ("field:91 u", "nvmlDeviceGetNumFans", "nvmlDeviceGetMaxMigDeviceCount")
    scenario.set(*(f"1 {number} 4294967295" for number in numbers))
    assert_both_are_up(watch.nvml.read(LONG))


def test_a_pause_frees_the_device_files_until_it_is_over(watch: Watch, scenario: Scenario, tmp_path: Path) -> None:
    for index in range(2):
        (tmp_path / f"nvidia{index}").touch()
    scenario.set(f"system device-files {tmp_path}")
    watch.read()
    assert open_files(watch.pid, tmp_path) == {"nvidia0", "nvidia1"}
    worker = watch.pid
    assert watch.nvml.pause(60)
    assert not Path(f"/proc/{worker}").exists()
    with pytest.raises(NvmlPaused, match="trackside resume-gpu ends the pause"):
        watch.nvml.read(LONG)
    watch.ahead += 61
    assert_both_are_up(watch.read())
    assert open_files(watch.pid, tmp_path) == {"nvidia0", "nvidia1"}


def test_a_request_to_unbind_the_driver_starts_a_pause(watch: Watch, scenario: Scenario) -> None:
    scenario.set("system nvmlSystemEventSetCreate 1")
    watch.read()
    numbers = count(1)

    def is_notified() -> bool:
        scenario.set(f"system system-event:{next(numbers)} 1 0")
        try:
            watch.nvml.read(LONG)
        except NvmlPaused:
            return True
        return False

    eventually(is_notified)
    assert watch.nvml.restarts["gpu_unbind"] == 1
    watch.ahead += 61
    assert_both_are_up(watch.read())


def open_files(process: int, directory: Path) -> set[str]:
    """Return the files in the directory that the process has open."""
    links = (entry.readlink() for entry in Path(f"/proc/{process}/fd").iterdir())
    return {link.name for link in links if link.parent == directory and link.name.startswith("nvidia")}


def until_events_are_awaited(watch: Watch, scenario: Scenario) -> None:
    """Cause Xid errors until one is counted: NVML drops those from before the worker waits for them."""

    def is_notified() -> bool:
        scenario.xid(0, 1)
        return 1 in watch.read().xids.get(FIRST, {})

    eventually(is_notified)


def test_an_xid_is_counted_once_at_its_gpu_also_by_the_workers_that_follow(watch: Watch, scenario: Scenario) -> None:
    until_events_are_awaited(watch, scenario)
    scenario.xid(1, 31)
    eventually(lambda: 31 in watch.read().xids.get(SECOND, {}))
    worker = watch.pid
    scenario.set(f"0 {RATES} exit")
    assert "exited" in watch.unavailable_reason()
    scenario.remove(f"0 {RATES}")
    times, moment = watch.read().xids[SECOND][31]
    assert watch.pid != worker
    assert times == 1
    assert 0 < moment <= time.time()


def test_the_xid_that_explains_a_loss_is_counted_although_it_comes_after_it(watch: Watch, scenario: Scenario) -> None:
    until_events_are_awaited(watch, scenario)
    scenario.set("1 * status 15")
    assert watch.read().gpus[1].values == [("up", (), 0.0)]
    scenario.set("0 delay 0.005")
    scenario.xid(1, 79)
    watch.read()
    scenario.remove("0 delay")
    reading = watch.read()
    assert reading.gpus[1].values == [("up", (), 0.0)]
    assert reading.xids[SECOND][79][0] == 1
    assert watch.nvml.restarts["gpu_lost"] == 1


def test_a_gpu_that_is_divided_by_mig_and_made_whole_again_is_followed(watch: Watch, scenario: Scenario) -> None:
    whole = dict(scenario.lines)
    assert values(watch.read().gpus[0])["mig_mode"] == 0
    scenario.set(*board("h100-mig"))
    divided = values(watch.read().gpus[0])
    assert divided["mig_mode"] == 1
    assert "utilization_ratio" not in divided
    assert len([name for name in divided if name.startswith("mig_info:")]) == 2

    scenario.remove(*(f"0.2 {key}" for scope, key in [*scenario.lines] if scope == "0.2"))
    scenario.set("0.0 nvmlDeviceGetUUID MIG-other", "0.0 nvmlDeviceGetGpuInstanceId 1")
    assert {name for name in values(watch.read().gpus[0]) if name.startswith("mig_info:")} == {
        "mig_info:MIG-other:1:0:3g.40gb"
    }

    scenario.lines.clear()
    scenario.lines.update(whole)
    scenario.set()
    assert_both_are_up(watch.read())
    assert not any(name.startswith("mig_info") for name in values(watch.read().gpus[0]))
