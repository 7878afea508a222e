"""Processes of a GPU: counts, memory and shares, and implausible process ids."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from nvml.answers import target

from trackside_daemon.nvml.reader_groups import selected_groups
from trackside_daemon.nvml.readers import host_pids
from trackside_daemon.nvml.readers.host_pids import HostPids
from trackside_daemon.nvml.readers.processes import MPS, Accounting, Processes, ProcessUtilization
from trackside_daemon.nvml.readers.unsupported import Unsupported
from trackside_daemon.nvml.worker.driver import Driver
from trackside_daemon.nvml.worker.library import CountedNvml

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trackside_daemon.nvml.reading import Value

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE, NO_DATA = 0, 2, 3, 4, 6, 7, 21
NOWHERE = 0xFFFFFFFF
"""Instance id of a process on a GPU without MIG."""
UNKNOWN = 2**64 - 1
ANY = HostPids(host_pids.PID_LIMIT, checked=False)
COMPUTE, MULTI = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"


def lists(*processes: tuple[int, ...]) -> Callable[..., int]:
    """Return a driver function that lists *processes*: process id, bytes, and instances if there are any."""

    def answer(_: Any, name: str, handle: Any, count: Any, places: Any) -> int:
        target(count).value, room = len(processes), target(count).value
        if not processes:
            return SUCCESS
        if places is None or room < len(processes):
            return INSUFFICIENT_SIZE
        for place, (pid, used, *instances) in zip(places, processes, strict=False):
            place.pid, place.usedGpuMemory = pid, used
            place.gpuInstanceId, place.computeInstanceId = instances or (NOWHERE, NOWHERE)
        return SUCCESS

    return answer


@pytest.fixture
def unsupported() -> Unsupported:
    return Unsupported()


@pytest.fixture
def read(library: Any, unsupported: Unsupported) -> Callable[..., list[Value]]:
    """Return a function that calls a reader for the first GPU."""
    library.functions |= {COMPUTE: lists(), MULTI: lists()}
    nvml, processes = CountedNvml(pynvml), Processes(ANY)

    def read(reader: Any = processes) -> list[Value]:
        values: list[Value] = reader(nvml, pynvml.nvmlDeviceGetHandleByIndex(0), unsupported)
        return values

    return read


def test_an_idle_gpu_has_no_processes_and_reports_it(read: Any) -> None:
    assert read() == [("processes", (), 0)]


def test_each_process_has_its_memory(read: Any, library: Any) -> None:
    library.functions[COMPUTE] = lists((4242, 60_000), (4243, 1_000))
    assert read() == [
        ("processes", (), 2),
        ("process_memory_bytes", ("4242",), 60_000),
        ("process_memory_bytes", ("4243",), 1_000),
    ]


def test_a_process_of_unknown_memory_is_counted_and_has_none(read: Any, library: Any) -> None:
    library.functions[COMPUTE] = lists((4242, UNKNOWN))
    assert read() == [("processes", (), 1)]


def test_a_process_on_two_mig_instances_has_the_memory_of_both(read: Any, library: Any) -> None:
    library.functions[COMPUTE] = lists((4242, 500, 1, 0), (4242, 700, 2, 0))
    assert read() == [("processes", (), 1), ("process_memory_bytes", ("4242",), 1_200)]


def test_a_sum_of_which_a_part_is_unknown_is_unknown(read: Any, library: Any) -> None:
    library.functions[COMPUTE] = lists((4242, UNKNOWN, 1, 0), (4242, 700, 2, 0))
    assert read() == [("processes", (), 1)]


def test_clients_of_mps_are_processes_too_and_counted_once(read: Any, library: Any) -> None:
    library.functions[COMPUTE] = lists((4000, 30), (4242, 500))
    library.functions[MULTI] = lists((4242, 500), (4243, 600))
    values = {(family, *labels): value for family, labels, value in read()}
    assert values["processes",] == 3
    assert values["process_memory_bytes", "4242"] == 500


def test_a_driver_without_mps_reports_the_other_processes(read: Any, library: Any, unsupported: Unsupported) -> None:
    library.functions[COMPUTE] = lists((4242, 500))
    library.status[MULTI] = NOT_SUPPORTED
    assert len(read()) == 2
    assert MPS in unsupported


def test_process_ids_that_cannot_be_are_dropped(read: Any, library: Any) -> None:
    library.functions[COMPUTE] = lists((0, 1), (5_000_000, 1), (NOWHERE, 1), (4242, 500))
    assert read() == [("processes", (), 1), ("process_memory_bytes", ("4242",), 500)]


def test_where_the_gpu_reports_only_root_its_mig_devices_are_read(read: Any, library: Any) -> None:
    def compute(_: Any, name: str, handle: Any, *rest: Any) -> int:
        gpu = pynvml.cast(handle, pynvml.c_void_p).value
        return NO_PERMISSION if gpu == 1 else lists((gpu, 100, gpu, 0))(_, name, handle, *rest)

    def device(_: Any, name: str, handle: Any, index: Any, out: Any) -> int:
        if index.value == 1:
            return NOT_FOUND
        pynvml.cast(out, pynvml.POINTER(pynvml.c_void_p))[0] = 100 + index.value
        return SUCCESS

    library.values["nvmlDeviceGetMaxMigDeviceCount"] = 3
    library.functions |= {COMPUTE: compute, "nvmlDeviceGetMigDeviceHandleByIndex": device}
    assert read() == [
        ("processes", (), 2),
        ("process_memory_bytes", ("100",), 100),
        ("process_memory_bytes", ("102",), 100),
    ]


@pytest.mark.parametrize("status", [INVALID_ARGUMENT, NOT_FOUND])
def test_a_mig_device_that_is_destroyed_while_it_is_asked_costs_only_its_own_processes(
    read: Any, library: Any, unsupported: Unsupported, status: int
) -> None:
    def compute(_: Any, name: str, handle: Any, *rest: Any) -> int:
        address = pynvml.cast(handle, pynvml.c_void_p).value
        refused = {1: NO_PERMISSION, 100: status}
        return refused.get(address) or lists((address, 100, address, 0))(_, name, handle, *rest)

    def device(_: Any, name: str, handle: Any, index: Any, out: Any) -> None:
        pynvml.cast(out, pynvml.POINTER(pynvml.c_void_p))[0] = 100 + index.value

    library.values["nvmlDeviceGetMaxMigDeviceCount"] = 2
    library.functions |= {COMPUTE: compute, "nvmlDeviceGetMigDeviceHandleByIndex": device}
    assert read() == [("processes", (), 1), ("process_memory_bytes", ("101",), 100)]
    assert "processes" not in unsupported


def test_without_mig_a_list_for_root_is_refused(library: Any) -> None:
    library.status[COMPUTE] = NO_PERMISSION
    library.functions[COMPUTE] = lists()
    library.values["nvmlDeviceGetMaxMigDeviceCount"] = 0
    assert "CAP_SYS_ADMIN" in Driver(pynvml).read().gpus[0].unsupported["processes"]


class Shares:
    """Samples of ``nvmlDeviceGetProcessUtilization``: timestamp, process id, percent of SMs and of memory."""

    def __init__(self, library: Any) -> None:
        self.samples: list[tuple[int, int, int, int]] = []
        self.asked_since: list[int] = []
        library.functions["nvmlDeviceGetProcessUtilization"] = self.answer

    def answer(self, *call: Any) -> int:
        *_, places, count, since = call
        found = [sample for sample in self.samples if sample[0] > since.value]
        target(count).value = len(found)
        if not found:
            return NOT_FOUND
        if places is None:
            self.asked_since.append(since.value)
            return INSUFFICIENT_SIZE
        for place, sample in zip(places, found, strict=True):
            place.timeStamp, place.pid, place.smUtil, place.memUtil = sample
        return SUCCESS


def test_shares_are_those_since_the_cycle_before(read: Any, library: Any) -> None:
    shares, reader = Shares(library), ProcessUtilization(ANY)
    shares.samples = [(1_000, 4242, 99, 99)]
    assert read(reader) == []
    shares.samples += [(2_000, 4242, 50, 20), (1_500, 4242, 10, 10), (1_600, 4243, 30, 5)]
    assert sorted(read(reader)) == [
        ("process_memory_utilization_ratio", ("4242",), 0.2),
        ("process_memory_utilization_ratio", ("4243",), 0.05),
        ("process_sm_utilization_ratio", ("4242",), 0.5),
        ("process_sm_utilization_ratio", ("4243",), 0.3),
    ]
    assert shares.asked_since == [0, 1_000]
    assert read(reader) == []


def test_shares_of_a_process_that_cannot_be_are_dropped(read: Any, library: Any) -> None:
    shares, reader = Shares(library), ProcessUtilization(ANY)
    shares.samples = [(1_000, 4242, 99, 99)]
    read(reader)
    shares.samples += [(2_000, 0, 50, 20), (2_000, NOWHERE, 50, 20)]
    assert read(reader) == []


def test_an_absurd_share_is_rejected_and_counted(library: Any) -> None:
    library.count = 1
    shares = Shares(library)
    shares.samples = [(1_000, os.getpid(), 0, 0)]
    driver = Driver(pynvml)
    driver.read()
    shares.samples += [(2_000, os.getpid(), 4_000_000, 10)]
    reading = driver.read()
    families = {family for family, _, _ in reading.gpus[0].values}
    assert "process_memory_utilization_ratio" in families
    assert "process_sm_utilization_ratio" not in families
    assert reading.rejected == {"trackside_gpu_process_sm_utilization_ratio": 1}


@pytest.mark.parametrize("status", [NOT_FOUND, NO_DATA])
def test_no_samples_are_no_refusal(library: Any, status: int) -> None:
    Shares(library)
    library.status["nvmlDeviceGetProcessUtilization"] = status
    assert "process-utilization" not in Driver(pynvml).read().gpus[0].unsupported


def accounted(most: dict[int, int]) -> Callable[..., int]:
    def answer(_: Any, name: str, handle: Any, pid: Any, out: Any) -> int:
        if pid.value not in most:
            return NOT_FOUND
        target(out).maxMemoryUsage = most[pid.value]
        return SUCCESS

    return answer


def test_the_most_memory_is_reported_of_processes_that_are_accounted(read: Any, library: Any) -> None:
    library.values["nvmlDeviceGetAccountingMode"] = 1
    library.functions[COMPUTE] = lists((4242, 500), (4243, 500), (4244, 500))
    library.functions["nvmlDeviceGetAccountingStats"] = accounted({4242: 900, 4244: UNKNOWN})
    assert read(Accounting(ANY)) == [("process_max_memory_bytes", ("4242",), 900)]


def test_accounting_that_is_off_is_refused_with_the_remedy(read: Any, library: Any, unsupported: Unsupported) -> None:
    library.values["nvmlDeviceGetAccountingMode"] = 0
    assert read(Accounting(ANY)) == []
    assert "nvidia-smi -am 1" in unsupported.reasons()["accounting"]


def test_accounting_is_read_only_on_request() -> None:
    assert "accounting" not in selected_groups()
    assert "accounting" in selected_groups(["accounting"])


def ended() -> int:
    """Return the id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def test_on_the_host_a_process_that_does_not_exist_is_no_process() -> None:
    here = HostPids(host_pids.PID_LIMIT, checked=True)
    assert os.getpid() in here
    assert 1 in here  # another user's, perhaps
    assert ended() not in here


def test_in_a_container_a_process_of_the_host_may_be_one_that_is_not_seen() -> None:
    assert ended() in ANY


def proc(path: Path, *, pid_max: str) -> Path:
    (path / "sys/kernel").mkdir(parents=True)
    (path / "sys/kernel/pid_max").write_text(pid_max)
    (path / "self/ns").mkdir(parents=True)
    (path / "self/ns/pid").touch()
    return path


def test_a_containers_own_limit_does_not_bind_the_host(tmp_path: Path) -> None:
    assert host_pids.max_pid(proc(tmp_path, pid_max="32768\n")) == host_pids.PID_LIMIT


def test_the_hosts_limit_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = proc(tmp_path, pid_max="32768\n")
    monkeypatch.setattr(host_pids, "HOST_NAMESPACE", (root / "self/ns/pid").stat().st_ino)
    assert host_pids.max_pid(root) == 32768


def test_without_proc_every_possible_id_is_believed(tmp_path: Path) -> None:
    assert 4_000_000 in host_pids.host_pids(tmp_path)
