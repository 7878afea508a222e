"""Samples of the NVML worker and of the number of GPUs, with readings and without."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pytest

from trackside_daemon.collectors.base import Collector, NothingToCollect
from trackside_daemon.collectors.gpu.gpu import GpuCollector
from trackside_daemon.collectors.gpu.nvml_worker import NvmlCollector, sees_part
from trackside_daemon.nvml.handle.handle import Nvml, NvmlAbsent, NvmlDown, NvmlLocked, NvmlPaused, NvmlUnavailable
from trackside_daemon.nvml.reading import DOWN, GpuReading, Reading

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.nvml.reading import Value

UP: list[Value] = [("up", (), 1.0)]
DRIVER = {"driver_version": "580.95", "nvml_version": "13.580.95", "cuda_version": "13.0"}
TWO = Reading([GpuReading(index, f"GPU-{index}", {"name": "NVIDIA H100"}, UP) for index in (0, 1)], DRIVER)


class Handle:
    """A handle whose answer a test sets."""

    def __init__(self) -> None:
        self.answer: Reading | Exception = TWO
        self.restarts = {"timeout": 2, "crash": 0}
        self.stuck = False
        self.skipped = 0
        self.paused_until: float | None = None
        self.last = Reading()

    def read(self, _patience: float) -> Reading:
        if isinstance(self.answer, Exception):
            raise self.answer
        self.last = self.answer
        return self.answer


class House:
    """Both collectors, run one after the other."""

    def __init__(self, sys: Path | None = None, expected: int = 0, *, whole: bool = False) -> None:
        self.handle = Handle()
        nvml = cast("Nvml", self.handle)
        self.gpu = GpuCollector(nvml, timeout=1.0)
        self.nvml = NvmlCollector(nvml, self.gpu, expected, sys, whole=whole)

    def tick(self, answer: Reading | Exception) -> dict[tuple[str, ...], Any]:
        self.handle.answer = answer
        with suppress(NothingToCollect, NvmlUnavailable):
            self.gpu.collect()
        return {
            (sample.metric.name.removeprefix("trackside_"), *sample.labels): sample.value
            for sample in self.nvml.collect()
        }

    def gpus(self, answer: Reading | Exception) -> tuple[Any, Any]:
        """Return the numbers of visible and of expected GPUs."""
        found = self.tick(answer)
        return found.get(("gpus_visible",)), found.get(("gpus_expected",))


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """A machine with two NVIDIA GPUs, an NVSwitch, and a graphics card of another vendor."""
    for slot, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030200"),
        ("0000:02:00.0", "0x10de", "0x030000"),
        ("0000:03:00.0", "0x10de", "0x068000"),
        ("0000:04:00.0", "0x1002", "0x030000"),
    ):
        device = tmp_path / "bus" / "pci" / "devices" / slot
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    return tmp_path


def test_as_many_are_expected_as_were_ever_seen() -> None:
    house, one = House(), Reading(TWO.gpus[:1])
    assert [house.gpus(answer) for answer in (one, TWO, one)] == [(1, 1), (2, 2), (1, 2)]


def test_as_many_are_expected_as_are_on_the_bus_for_nvml_where_none_is_kept_from_the_daemon(sys: Path) -> None:
    house = House(sys, whole=True)
    assert [house.gpus(answer) for answer in (NvmlAbsent("no module"), Reading(TWO.gpus[:1]))] == [(0, 2), (1, 2)]
    other, devices = sys / "bus/pci/drivers/nouveau", sys / "bus/pci/devices"
    other.mkdir(parents=True)
    (devices / "0000:02:00.0" / "driver").symlink_to(other)
    (devices / "0000:01:00.0" / "driver").symlink_to(other.with_name("nvidia"))
    assert house.gpus(Reading(TWO.gpus[:1])) == (1, 1)
    assert House(sys, expected=4, whole=True).gpus(TWO) == (2, 4)


def test_a_container_or_a_job_may_have_a_part_of_the_gpus(tmp_path: Path) -> None:
    assert not sees_part({"HOME": "/"}, tmp_path)
    assert sees_part({"SLURM_JOB_ID": "7"}, tmp_path)
    (tmp_path / ".dockerenv").touch()
    assert sees_part({}, tmp_path)


def test_as_many_are_expected_as_were_configured() -> None:
    house = House(expected=8)
    assert [house.gpus(answer) for answer in (NvmlAbsent("no driver"), TWO)] == [(0, 8), (2, 8)]


def test_no_visible_count_is_reported_when_a_worker_does_not_answer_a_second_time() -> None:
    house, late = House(), NvmlUnavailable("no answer for 1 s")
    reported = [house.gpus(answer) for answer in (late, TWO, late, late, TWO)]
    assert reported == [(None, 0), (2, 2), (2, 2), (None, 2), (2, 2)]


def test_no_visible_count_is_reported_by_a_daemon_that_leaves_the_gpus_to_another(sys: Path) -> None:
    house = House(sys)
    locked = NvmlLocked("process 7 samples the GPUs of this machine already")
    assert [house.gpus(answer) for answer in (locked, NvmlUnavailable("it starts"), locked)] == [(None, 0)] * 3
    assert house.tick(locked)["gpus_pci",] == 2
    assert [house.gpus(answer) for answer in (TWO, locked)] == [(2, 2), (None, 2)]
    assert house.nvml.status()["gpus"] == []


def test_none_is_visible_at_once_when_there_is_no_driver_any_more_and_what_was_seen_is_not_up() -> None:
    house = House()
    assert house.gpus(TWO) == (2, 2)
    found = house.tick(NvmlAbsent("the NVIDIA kernel module is not loaded"))
    assert (found["gpus_visible",], found["gpu_up", "0", "GPU-0"], found["gpu_up", "1", "GPU-1"]) == (0, 0.0, 0.0)


def test_what_was_seen_is_not_up_from_when_nvml_is_down_until_there_is_a_reading() -> None:
    house = House()
    house.tick(TWO)
    for answer in (NvmlDown("the NVML worker hung"), NvmlUnavailable("it starts"), NvmlUnavailable("it starts")):
        found = house.tick(answer)
        assert (found["gpu_up", "0", "GPU-0"], found["gpu_up", "1", "GPU-1"]) == (0.0, 0.0)
        assert found["gpus_visible",] == 0
    assert ("gpu_up", "0", "GPU-0") not in house.tick(TWO)


def test_while_a_worker_is_replaced_only_those_that_were_down_already_are_reported_as_down() -> None:
    house, replaced = House(), NvmlUnavailable("a GPU is lost, and a new NVML worker looks for the others")
    lost = GpuReading(1, "GPU-1", {}, DOWN, {"up": "it fell off the bus"})
    house.tick(Reading([TWO.gpus[0], lost], xids={"GPU-0": {13: (2, 1.7e9)}}))
    house.tick(replaced)
    for _ in range(3):
        found = house.tick(replaced)
        assert {name[2]: value for name, value in found.items() if name[0] == "gpu_up"} == {"GPU-1": 0.0}
        assert found["gpu_xid_errors_total", "0", "GPU-0", "13"] == 2
    reported = house.nvml.status()["gpus"]
    assert [(gpu["up"], gpu["refused"]) for gpu in reported] == [(None, {}), (False, {"up": "it fell off the bus"})]


def test_gpus_that_are_left_alone_have_neither_a_visible_count_nor_a_missing_one() -> None:
    house = House()
    assert [house.gpus(answer) for answer in (TWO, NvmlPaused("paused"))] == [(2, 2), (None, 0)]


def test_the_bus_counts_the_gpus_of_nvidia_also_those_that_come_and_go(sys: Path) -> None:
    house = House(sys)
    assert house.tick(NvmlAbsent("no driver"))["gpus_pci",] == 2
    gone = sys / "bus" / "pci" / "devices" / "0000:02:00.0"
    gone.rename(sys / "aside")
    assert house.tick(TWO)["gpus_pci",] == 1
    (sys / "aside").rename(gone)
    (gone / "vendor").write_text("0x1002\n")
    assert house.tick(TWO)["gpus_pci",] == 1


def test_a_device_that_is_pulled_out_while_it_is_read_is_none(sys: Path) -> None:
    (sys / "bus" / "pci" / "devices" / "0000:02:00.0" / "class").unlink()
    assert House(sys).tick(TWO)["gpus_pci",] == 1


def test_without_a_bus_or_with_simulated_gpus_there_is_no_count_of_the_bus(tmp_path: Path) -> None:
    assert ("gpus_pci",) not in House(tmp_path).tick(TWO)
    assert ("gpus_pci",) not in House(None).tick(TWO)


def test_the_worker_and_its_calls_are_reported_also_without_a_reading() -> None:
    house = House()
    reading = Reading(
        TWO.gpus,
        calls={"nvmlDeviceGetUUID": {"success": 4, "gpu_is_lost": 1}},
        call_seconds={"nvmlDeviceGetUUID": 0.25},
        rejected={"trackside_gpu_power_watts": 3},
    )
    house.tick(reading)
    house.handle.stuck = True
    found = house.tick(NvmlUnavailable("it hung"))
    assert {name: value for name, value in found.items() if not name[0].startswith("gpu")} == {
        ("nvml_worker_stuck",): 1.0,
        ("nvml_worker_restarts_total", "timeout"): 2,
        ("nvml_worker_restarts_total", "crash"): 0,
        ("nvml_calls_total", "nvmlDeviceGetUUID", "success"): 4,
        ("nvml_calls_total", "nvmlDeviceGetUUID", "gpu_is_lost"): 1,
        ("nvml_call_seconds_total", "nvmlDeviceGetUUID"): 0.25,
        ("samples_rejected_total", "trackside_gpu_power_watts"): 3,
    }


def test_the_status_names_for_each_gpu_what_it_refuses_and_why(sys: Path) -> None:
    house = House(sys)
    unsupported = {"energy": "this GPU or its mode does not support it"}
    clocks: list[Value] = [("clock_hertz", (domain,), 1e9) for domain in ("sm", "memory")]
    house.tick(Reading([GpuReading(0, "GPU-0", {"name": "NVIDIA H100"}, [*clocks, *UP], unsupported)], DRIVER))
    assert house.nvml.status() == {
        "gpus": [
            {
                "index": 0,
                "uuid": "GPU-0",
                "name": "NVIDIA H100",
                "up": True,
                "measured": ["clock_hertz", "up"],
                "refused": unsupported,
                "ailments": [],
            }
        ],
        "nvml": {
            **DRIVER,
            "visible": 1,
            "expected": 1,
            "pci": 2,
            "error": "",
            "absent": False,
            "paused_until": None,
        },
    }


def test_the_status_explains_why_there_is_nothing() -> None:
    house = House()
    assert house.nvml.status()["nvml"]["error"] == "nothing was read yet"
    house.tick(TWO)
    house.tick(NvmlAbsent("no driver; install one"))
    reported = house.nvml.status()
    assert [gpu["up"] for gpu in reported["gpus"]] == [False, False]
    assert (reported["nvml"]["error"], reported["nvml"]["absent"]) == ("no driver; install one", True)
    house.handle.paused_until = math.inf
    house.tick(NvmlPaused("paused"))
    reported = house.nvml.status()
    assert (reported["gpus"], reported["nvml"]["paused_until"], "visible" in reported["nvml"]) == ([], "inf", False)


def test_it_meets_the_contract_of_a_collector() -> None:
    kept: Collector = House().nvml
    assert kept.name == "nvml"
