"""Processes on a GPU by the host's process ids: their number, their memory, and their share of its time."""

from collections.abc import Callable
from functools import partial
from typing import Any

from trackside_daemon.nvml.readers import mig
from trackside_daemon.nvml.readers.busy import SampleCursor
from trackside_daemon.nvml.readers.host_pids import HostPids, host_pids
from trackside_daemon.nvml.readers.unsupported import Unsupported, call_if_supported
from trackside_daemon.nvml.reading import Value

MPS = "processes{mps}"  # name of the clients of the Multi-Process Service among the unsupported calls


class Processes:
    """Processes that compute on a GPU, including its MIG devices.

    Args:
        pids: Plausible process ids.
    """

    def __init__(self, pids: HostPids | None = None) -> None:
        self._pids = pids or host_pids()

    def __call__(self, nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
        """Return their number, which may be 0, and the memory of each in bytes, if the driver reports it."""
        memory = _memory_by_pid(running_processes(nvml, handle, unsupported, self._pids))
        return [
            ("processes", (), len(memory)),
            *(("process_memory_bytes", (str(pid),), used) for pid, used in memory.items() if used is not None),
        ]


class ProcessUtilization:
    """Share of a GPU's time by process.

    Args:
        pids: Plausible process ids.
    """

    def __init__(self, pids: HostPids | None = None) -> None:
        self._pids = pids or host_pids()
        self._cursor = SampleCursor()

    def __call__(self, nvml: Any, handle: Any, _: Unsupported) -> list[Value]:
        """Read ``nvmlDeviceGetProcessUtilization``, in percent: each process's newest sample since the last cycle.

        The share of a process that has just ended may be absurd (Syllo/nvtop#110); the families' bounds reject it.
        """

        def read_since(since: int) -> list[tuple[int, Any]]:
            return [(sample.timeStamp, sample) for sample in nvml.nvmlDeviceGetProcessUtilization(handle, since)]

        samples = self._cursor.new_samples(nvml, read_since)
        # The samples are in the order of time, so the last one of each process stays.
        newest = {sample.pid: sample for _, sample in samples if sample.pid in self._pids}
        values: list[Value] = []
        for pid, sample in newest.items():
            values.append(("process_sm_utilization_ratio", (str(pid),), sample.smUtil / 100))
            values.append(("process_memory_utilization_ratio", (str(pid),), sample.memUtil / 100))
        return values


class Accounting:
    """Peak memory of each running process.

    Args:
        pids: Plausible process ids.
    """

    def __init__(self, pids: HostPids | None = None) -> None:
        self._pids = pids or host_pids()

    def __call__(self, nvml: Any, handle: Any, unsupported: Unsupported) -> list[Value]:
        """Read ``nvmlDeviceGetAccountingStats``, in bytes, while accounting mode is on."""
        if nvml.nvmlDeviceGetAccountingMode(handle) != nvml.NVML_FEATURE_ENABLED:
            unsupported.add("accounting", "accounting mode is off; nvidia-smi -am 1 as root switches it on")
            return []
        values: list[Value] = []
        for pid in sorted({process.pid for process in running_processes(nvml, handle, unsupported, self._pids)}):
            try:
                peak = nvml.nvmlDeviceGetAccountingStats(handle, pid).maxMemoryUsage
            except (nvml.NVMLError_NotFound, TypeError):
                # It began before accounting did; or the driver has no value, and pynvml fails to write None.
                continue
            values.append(("process_max_memory_bytes", (str(pid),), peak))
        return values


def running_processes(nvml: Any, handle: Any, unsupported: Unsupported, pids: HostPids) -> list[Any]:
    """Return ``nvmlDeviceGetComputeRunningProcesses_v3`` and its sibling for MPS clients, with plausible ids only."""
    processes = _list_processes(nvml, handle, nvml.nvmlDeviceGetComputeRunningProcesses_v3)
    list_clients = partial(_list_processes, nvml, handle, nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3)
    clients = call_if_supported(nvml, unsupported, MPS, list_clients) or ()
    return [process for process in (*processes, *clients) if process.pid in pids]


def _list_processes(nvml: Any, handle: Any, read: Callable[[Any], list[Any]]) -> list[Any]:
    """Return the processes of a GPU with all its MIG devices; if that requires root, ask each device."""
    try:
        return read(handle)
    except nvml.NVMLError_NoPermission:
        devices = mig.device_handles(nvml, handle)
        if not devices:
            raise
        return [process for device in devices for process in mig.call_if_present(nvml, partial(read, device)) or ()]


def _memory_by_pid(processes: list[Any]) -> dict[int, int | None]:
    """Return bytes by process id, summed over GPU and compute instances; None if an instance has no value."""
    # By instance, so that a process in both lists of the driver counts once.
    by_instance = {
        (process.pid, process.gpuInstanceId, process.computeInstanceId): process.usedGpuMemory for process in processes
    }
    memory: dict[int, int | None] = {}
    for (pid, _, _), used in by_instance.items():
        before = memory.get(pid, 0)
        memory[pid] = None if used is None or before is None else before + used
    return memory
