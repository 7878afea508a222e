"""Messages between the daemon and the NVML worker: the schema of the pipe, imported by both ends."""

import msgspec

Value = tuple[str, tuple[str, ...], float]
"""A family's short name, such as ``temperature_celsius``; values of its extra labels, such as ``("gpu",)``; and the
value in the family's base unit."""

DOWN: list[Value] = [("up", (), 0.0)]  # all values of a GPU that is lost or quarantined
NOT_ANSWERING = "it does not answer; see dmesg for NVRM and Xid"  # default reason why a GPU is down
NO_PERMISSION = "no permission"  # prefix of the reasons that the administrator of the daemon can remove


class WorkerSettings(msgspec.Struct, omit_defaults=True):
    """Settings of a worker, passed to it as its first argument in JSON."""

    extra: tuple[str, ...] = ()  # reader groups to read beyond the default ones, or ``all``
    skip: tuple[str, ...] = ()  # reader groups not to read
    simulate: int = 0  # number of GPUs to simulate; 0 reads the driver
    profile: str = "h100"  # board of the simulated GPUs
    faults: tuple[str, ...] = ()  # faults of the simulated GPUs


class ReadingRequest(msgspec.Struct):
    """One request to a worker, as one line of JSON."""

    quarantined: list[int] = []  # indexes of GPUs to skip, because a worker hung there
    interval: float = 1.0  # seconds until the next request, within which the cycle should end


class GpuReading(msgspec.Struct):
    """Reading of one GPU."""

    index: int  # index in nvidia-smi; it may change at a reboot
    uuid: str  # UUID from NVML; empty if the GPU was lost or skipped before the worker could read it
    info: dict[str, str]  # labels of ``trackside_gpu_info``; ``source`` is ``nvml`` or ``simulated``
    # Measured values, without those that this GPU does not support. A lost GPU has ``up`` 0 and nothing else.
    values: list[Value]
    # Reasons why values are missing, by reader or series; ``up`` has the reason why a GPU is lost.
    unsupported: dict[str, str] = {}


class Reading(msgspec.Struct, omit_defaults=True):
    """Readings of all GPUs in one cycle, or the error that prevented them. All counts start when the worker starts."""

    gpus: list[GpuReading] = []
    driver: dict[str, str] = {}  # ``driver_version``, ``nvml_version`` and ``cuda_version``; empty when simulated
    error: str = ""  # the error and its remedy, in one line; empty without an error. The worker ends after it sends one
    absent: bool = False  # True if the error is that this host has no NVIDIA driver or no GPU
    reason: str = ""  # a word for the error, as in ``trackside_nvml_worker_restarts_total``
    calls: dict[str, dict[str, int]] = {}  # number of NVML calls, by function and result
    call_seconds: dict[str, float] = {}  # time spent in each NVML function
    rejected: dict[str, int] = {}  # number of values out of bounds, by family
    # Xid errors by UUID and Xid: their number, and the Unix time of the last. The UUID is empty if NVML did not report
    # it.
    xids: dict[str, dict[int, tuple[int, float]]] = {}
    # GPUs that NVML counts but this process may not open, each with nothing but the reason.
    hidden: list[GpuReading] = []
    # End of the cycle, by `time.monotonic`, which all processes of a machine share; 0 if unknown.
    measured_at: float = 0.0
    # GPUs that were up before and that NVML no longer counts, each with ``up`` 0; `handle.Nvml` adds them.
    gone: list[GpuReading] = []
