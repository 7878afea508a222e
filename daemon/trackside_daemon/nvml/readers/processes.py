"""The processes on a GPU: how many, their memory, their share of its time; by the host's process ids."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from trackside_daemon.nvml.readers import mig
from trackside_daemon.nvml.readers.calls import ask
from trackside_daemon.nvml.readers.host_pids import Pids, of_this_host
from trackside_daemon.nvml.readers.sample_cursor import Seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside_daemon.nvml.readers.unsupported import Refusals
    from trackside_daemon.nvml.reading import Value

MPS = "processes{mps}"
"""What a refusal to tell those of the Multi-Process Service is called."""


class Processes:
    """Those that compute on a GPU, its MIG devices included.

    Args:
        known: The process ids that can be true.
    """

    def __init__(self, known: Pids | None = None) -> None:
        self._known = known or of_this_host()

    def __call__(self, nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
        """Their number, 0 when there are none, and the memory of each in bytes, where the driver knows it."""
        memory = _memory(running(nvml, handle, refusals, self._known))
        return [
            ("processes", (), len(memory)),
            *(("process_memory_bytes", (str(pid),), used) for pid, used in memory.items() if used is not None),
        ]


class ProcessUtilization:
    """What each process has of a GPU's time.

    Args:
        known: The process ids that can be true.
    """

    def __init__(self, known: Pids | None = None) -> None:
        self._known = known or of_this_host()
        self._seen = Seen()

    def __call__(self, nvml: Any, handle: Any, _: Refusals) -> list[Value]:
        """``nvmlDeviceGetProcessUtilization``, in percent: the newest sample of each process since the cycle before.

        Of a process that has just ended a share may be absurd (Syllo/nvtop#110): the families' bounds reject it.
        """

        def ask_since(since: int) -> list[tuple[int, Any]]:
            return [(sample.timeStamp, sample) for sample in nvml.nvmlDeviceGetProcessUtilization(handle, since)]

        newest = {sample.pid: sample for _, sample in self._seen.new(nvml, ask_since) if sample.pid in self._known}
        values: list[Value] = []
        for pid, sample in newest.items():
            values.append(("process_sm_utilization_ratio", (str(pid),), sample.smUtil / 100))
            values.append(("process_memory_utilization_ratio", (str(pid),), sample.memUtil / 100))
        return values


class Accounting:
    """The most memory that each running process has had.

    Args:
        known: The process ids that can be true.
    """

    def __init__(self, known: Pids | None = None) -> None:
        self._known = known or of_this_host()

    def __call__(self, nvml: Any, handle: Any, refusals: Refusals) -> list[Value]:
        """``nvmlDeviceGetAccountingStats``, in bytes, while accounting mode is on."""
        if nvml.nvmlDeviceGetAccountingMode(handle) != nvml.NVML_FEATURE_ENABLED:
            refusals.add("accounting", "accounting mode is off; nvidia-smi -am 1 as root switches it on")
            return []
        values: list[Value] = []
        for pid in sorted({process.pid for process in running(nvml, handle, refusals, self._known)}):
            try:
                most = nvml.nvmlDeviceGetAccountingStats(handle, pid).maxMemoryUsage
            except (nvml.NVMLError_NotFound, TypeError):
                # It began before accounting did; or the driver does not know, and pynvml fails to write None.
                continue
            values.append(("process_max_memory_bytes", (str(pid),), most))
        return values


def running(nvml: Any, handle: Any, refusals: Refusals, known: Pids) -> list[Any]:
    """``nvmlDeviceGetComputeRunningProcesses_v3``, with its kind for the clients of MPS; those that can be true."""
    processes = _told(nvml, handle, nvml.nvmlDeviceGetComputeRunningProcesses_v3)
    mps = ask(nvml, refusals, MPS, lambda: _told(nvml, handle, nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3))
    return [process for process in (*processes, *(mps or ())) if process.pid in known]


def _told(nvml: Any, handle: Any, tell: Callable[[Any], list[Any]]) -> list[Any]:
    """What the GPU tells of all its MIG devices; where that takes root, what each device tells of itself."""
    try:
        return tell(handle)
    except nvml.NVMLError_NoPermission:
        devices = mig.handles(nvml, handle)
        if not devices:
            raise
        return [process for device in devices for process in mig.present(nvml, partial(tell, device)) or ()]


def _memory(processes: list[Any]) -> dict[int, int | None]:
    """Bytes by process id, summed over GPU and compute instances; None where one of them does not say."""
    by_instance = {(told.pid, told.gpuInstanceId, told.computeInstanceId): told.usedGpuMemory for told in processes}
    memory: dict[int, int | None] = {}
    for (pid, _, _), used in by_instance.items():
        before = memory.get(pid, 0)
        memory[pid] = None if used is None or before is None else before + used
    return memory
