"""What the driver does to the real worker, row by row of the survival table, and what the handle makes of it.

The handle's clock is moved on where a deadline or a back-off would be waited for.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import eventually

from trackside_daemon.nvml.handle import Nvml, NvmlAbsent, NvmlPaused, NvmlUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvml.fake.library import Scenario

    from trackside_daemon.nvml.reading import GpuReading, Reading

LONG = 30.0
"""Patience for what comes at once, on a machine that is busy with other tests."""

RATES = "nvmlDeviceGetUtilizationRates"


class Clock:
    """The monotonic clock, moved on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def nvml(clock: Clock, scenario: Scenario) -> Iterator[Nvml]:
    """A handle whose worker meets the fake driver with two GPUs."""
    handle = Nvml(clock=clock)
    yield handle
    handle.close()


def read(nvml: Nvml, clock: Clock) -> Reading:
    """The next reading; back-off and the worker's end are not waited for."""

    def look() -> Reading | None:
        try:
            return nvml.read(LONG)
        except NvmlUnavailable:
            clock.ahead += 1.0
            return None

    found = eventually(look)
    assert found is not None
    return found


def refusal(nvml: Nvml, patience: float = LONG) -> str:
    with pytest.raises(NvmlUnavailable) as caught:
        nvml.read(patience)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pid(nvml: Nvml) -> int:
    assert nvml._child is not None
    return nvml._child.pid


def values(gpu: GpuReading) -> dict[str, float]:
    return {name if not labels else f"{name}:{':'.join(labels)}": value for name, labels, value in gpu.values}


def hang(nvml: Nvml, gpu: int) -> None:
    """Asks until the worker stands at the GPU."""

    def stands_there() -> bool:
        refusal(nvml, 0.05)
        return nvml._dialogue is not None and nvml._dialogue.at == gpu

    eventually(stands_there)


def assert_both_are_up(reading: Reading) -> None:
    assert [values(gpu).get("utilization_ratio") for gpu in reading.gpus] == [0.98, 0.98]


def test_a_driver_that_is_not_loaded_is_found_when_it_is(nvml: Nvml, scenario: Scenario, clock: Clock) -> None:
    scenario.unload()
    with pytest.raises(NvmlAbsent, match="the NVIDIA kernel module is not loaded; run modprobe nvidia, or reboot"):
        nvml.read(LONG)
    scenario.say()
    assert_both_are_up(read(nvml, clock))


def test_a_machine_whose_gpus_are_gone_says_so_and_finds_them_again(
    nvml: Nvml, scenario: Scenario, clock: Clock
) -> None:
    scenario.gpus(0)
    with pytest.raises(NvmlAbsent, match="NVML sees no GPU"):
        nvml.read(LONG)
    scenario.gpus(2)
    assert_both_are_up(read(nvml, clock))


def test_an_initialisation_that_hangs_has_a_minute(nvml: Nvml, scenario: Scenario, clock: Clock) -> None:
    scenario.say("system nvmlInitWithFlags hang")
    assert "replaced after 60 s" in refusal(nvml, 0.05)
    clock.ahead += 61
    assert "hung for 61 s" in refusal(nvml, 0.05)
    scenario.unsay("system nvmlInitWithFlags")
    assert_both_are_up(read(nvml, clock))
    assert nvml.restarts["timeout"] == 1


@pytest.mark.parametrize("status", [15, 999])
def test_a_gpu_that_is_lost_is_held_at_0_while_the_other_goes_on_until_it_returns(
    nvml: Nvml, scenario: Scenario, clock: Clock, status: int
) -> None:
    before = read(nvml, clock).gpus[1]
    worker = pid(nvml)
    scenario.say(f"1 * status {status}")
    for _ in range(3):
        healthy, lost = read(nvml, clock).gpus
        assert values(healthy)["utilization_ratio"] == 0.98
        assert (lost.uuid, lost.info, lost.values) == (before.uuid, before.info, [("up", (), 0.0)])
    assert pid(nvml) != worker
    assert nvml.restarts["gpu_lost"] == 1
    scenario.unsay("1 *")
    assert_both_are_up(read(nvml, clock))


def test_a_driver_that_is_unloaded_and_loaded_again_is_followed(nvml: Nvml, scenario: Scenario, clock: Clock) -> None:
    read(nvml, clock)
    scenario.unload()
    with pytest.raises(NvmlAbsent):
        nvml.read(LONG)
    scenario.say()
    assert_both_are_up(read(nvml, clock))


@pytest.mark.parametrize("manner", ["hang", "deaf"])
def test_a_gpu_that_hangs_costs_a_worker_and_is_left_alone_while_the_other_goes_on(
    nvml: Nvml, scenario: Scenario, clock: Clock, manner: str
) -> None:
    read(nvml, clock)
    worker = pid(nvml)
    scenario.say(f"1 {RATES} {manner}")
    hang(nvml, 1)
    clock.ahead += 11
    assert "at GPU 1, which is left alone for a while, and is replaced" in refusal(nvml, 0.05)
    healthy, hung = read(nvml, clock).gpus
    assert values(healthy)["utilization_ratio"] == 0.98
    assert hung.values == [("up", (), 0.0)]
    assert not Path(f"/proc/{worker}").exists()
    assert nvml.restarts["timeout"] == 1

    scenario.unsay(f"1 {RATES}")
    clock.ahead += 60
    assert_both_are_up(read(nvml, clock))


def test_a_driver_that_is_slow_is_waited_for_and_the_ticks_between_are_counted(
    nvml: Nvml, scenario: Scenario, clock: Clock
) -> None:
    read(nvml, clock)
    worker = pid(nvml)
    scenario.say("0 delay 0.02")
    while not nvml.skipped:
        refusal(nvml, 0.01)
    assert_both_are_up(read(nvml, clock))
    assert pid(nvml) == worker


def test_after_an_upgrade_of_the_driver_a_new_process_loads_the_new_library(
    nvml: Nvml, scenario: Scenario, clock: Clock
) -> None:
    assert read(nvml, clock).driver["driver_version"] == "580.95.05"
    scenario.say("system nvmlSystemGetDriverVersion 590.48.01")
    assert "the driver was upgraded under a running kernel module" in refusal(nvml)
    reading = read(nvml, clock)
    assert reading.driver["driver_version"] == "590.48.01"
    assert_both_are_up(reading)
    assert nvml.restarts["library_mismatch"] == 1


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize(
    ("manner", "says"), [("crash", "it was killed: Segmentation fault"), ("exit", "it exited with status 1")]
)
def test_a_library_that_takes_its_process_along_costs_a_worker(
    nvml: Nvml, scenario: Scenario, manner: str, says: str, call: int
) -> None:
    clock = nvml._clock
    assert isinstance(clock, Clock)
    read(nvml, clock)
    scenario.say(f"0 {RATES} {manner} {call}")
    for _ in range(call - 1):
        nvml.read(LONG)
    text = refusal(nvml)
    assert says in text
    scenario.unsay(f"0 {RATES}")
    assert_both_are_up(read(nvml, clock))
    assert nvml.restarts[manner] == 1


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (3, "this GPU or its mode does not support it"),
        (4, "no permission"),
        (13, "the driver is older than the function"),
        (25, "the driver is older than the question"),
        (26, "the driver no longer answers it"),
    ],
)
def test_what_a_gpu_refuses_is_absent_there_and_told_and_not_asked_again(
    nvml: Nvml, scenario: Scenario, clock: Clock, status: int, why: str
) -> None:
    scenario.say(f"1 {RATES} status {status}")
    for _ in range(3):
        able, refuses = read(nvml, clock).gpus
    assert values(able)["utilization_ratio"] == 0.98
    assert "utilization_ratio" not in values(refuses)
    assert values(refuses)["temperature_celsius:gpu"] == 61
    assert refuses.refusals["utilization"].startswith(why)
    calls = nvml.last.calls[RATES]
    assert sum(times for result, times in calls.items() if result != "success") == 1


def test_a_gpu_that_needs_a_reset_still_tells_its_temperature(nvml: Nvml, scenario: Scenario, clock: Clock) -> None:
    scenario.say(f"1 {RATES} status 16", "1 nvmlDeviceGetMemoryInfo_v2 status 16", "1 field:230 u 1")
    healthy, sick = read(nvml, clock).gpus
    assert values(healthy)["utilization_ratio"] == 0.98
    assert values(sick)["temperature_celsius:gpu"] == 61
    assert not {"utilization_ratio", "memory_used_bytes"} & values(sick).keys()
    scenario.say(f"1 {RATES} 98 61")
    assert_both_are_up(read(nvml, clock))


def test_gpus_that_come_and_go_are_followed(nvml: Nvml, scenario: Scenario, clock: Clock) -> None:
    first, second = read(nvml, clock).gpus
    scenario.gpus(3)
    assert [gpu.index for gpu in read(nvml, clock).gpus] == [0, 1, 2]
    scenario.gpus(1)
    reading = read(nvml, clock)
    assert [gpu.uuid for gpu in reading.gpus] == [first.uuid]
    assert [(gpu.index, gpu.values) for gpu in reading.gone] == [(1, [("up", (), 0.0)]), (2, [("up", (), 0.0)])]
    assert reading.gone[0].uuid == second.uuid


def test_an_index_that_means_another_gpu_is_read_under_its_uuid(nvml: Nvml, scenario: Scenario, clock: Clock) -> None:
    first, second = read(nvml, clock).gpus
    scenario.say(f"0 nvmlDeviceGetUUID {second.uuid}", f"1 nvmlDeviceGetUUID {first.uuid}")
    assert [gpu.uuid for gpu in read(nvml, clock).gpus] == [second.uuid, first.uuid]


@pytest.mark.parametrize(
    ("line", "family"),
    [
        (f"{RATES} 4294967295 0", "trackside_gpu_utilization_ratio"),
        (f"{RATES} 102 0", "trackside_gpu_utilization_ratio"),
        ("nvmlDeviceGetTemperature:0 255", "trackside_gpu_temperature_celsius"),
        ("nvmlDeviceGetTotalEnergyConsumption 0xFFFFFFFFFFFFFFFF", "trackside_gpu_energy_joules_total"),
        ("nvmlDeviceGetMemoryInfo_v2 9223372036854775794 1 1 1", "trackside_gpu_memory_bytes"),
    ],
)
def test_a_value_that_cannot_be_is_left_out_and_counted(
    nvml: Nvml, scenario: Scenario, clock: Clock, line: str, family: str
) -> None:
    scenario.say(f"1 {line}")
    able, absurd = read(nvml, clock).gpus
    missing = values(able).keys() - values(absurd).keys()
    assert [name.partition(":")[0] for name in missing] == [family.removeprefix("trackside_gpu_")]
    assert nvml.last.rejected == {family: 1}
    read(nvml, clock)
    assert nvml.last.rejected == {family: 2}


def test_a_counter_of_the_driver_that_goes_back_is_told_as_it_is(nvml: Nvml, scenario: Scenario, clock: Clock) -> None:
    scenario.say("0 nvmlDeviceGetTotalEnergyConsumption 9000")
    assert values(read(nvml, clock).gpus[0])["energy_joules_total"] == 9
    scenario.say("0 nvmlDeviceGetTotalEnergyConsumption 1000")
    assert values(read(nvml, clock).gpus[0])["energy_joules_total"] == 1


def test_a_pause_frees_the_device_files_until_it_is_over(
    nvml: Nvml, scenario: Scenario, clock: Clock, tmp_path: Path
) -> None:
    for index in range(2):
        (tmp_path / f"nvidia{index}").touch()
    scenario.say(f"system device-files {tmp_path}")
    read(nvml, clock)
    assert opened(pid(nvml), tmp_path) == {"nvidia0", "nvidia1"}
    worker = pid(nvml)
    assert nvml.pause(60)
    assert not Path(f"/proc/{worker}").exists()
    with pytest.raises(NvmlPaused, match="trackside resume-gpu goes on at once"):
        nvml.read(LONG)
    clock.ahead += 61
    assert_both_are_up(read(nvml, clock))
    assert opened(pid(nvml), tmp_path) == {"nvidia0", "nvidia1"}


def opened(process: int, directory: Path) -> set[str]:
    """Files of the directory that the process has open."""
    links = (entry.readlink() for entry in Path(f"/proc/{process}/fd").iterdir())
    return {link.name for link in links if link.parent == directory and link.name.startswith("nvidia")}
