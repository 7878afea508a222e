"""What the worker says in one cycle: the schema of the pipe, imported by both of its ends."""

from __future__ import annotations

import msgspec

Value = tuple[str, tuple[str, ...], float]
"""A family's short name, such as ``temperature_celsius``; values of its extra labels, such as ``("gpu",)``; and the
value in the family's base unit."""

DOWN: list[Value] = [("up", (), 0.0)]
"""All that is said of a GPU that is lost or left alone."""

SILENT = "it does not answer; see dmesg for NVRM and Xid"
"""Why a GPU is not up, where nothing more is known."""

PERMISSION = "no permission"
"""A refusal that begins so can be cured by whoever runs the daemon."""


class Order(msgspec.Struct, omit_defaults=True):
    """What a worker is to do, as its one argument in JSON.

    Attributes:
        extra: Groups that are read beyond the default, or ``all``; *skip* those that are not.
        simulate: How many GPUs to simulate; 0 asks the driver.
        profile: What the simulated ones are, and *troubles* what ails them.
    """

    extra: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    simulate: int = 0
    profile: str = "h100"
    troubles: tuple[str, ...] = ()


class Request(msgspec.Struct):
    """What a worker is asked, as one line of JSON.

    Attributes:
        avoid: Indexes of GPUs to leave alone, since a worker hung there.
        interval: Seconds until the next request, in which a cycle is to be done.
    """

    avoid: list[int] = []
    interval: float = 1.0


class GpuReading(msgspec.Struct):
    """One GPU.

    Attributes:
        index: As nvidia-smi shows it; it may change at a reboot.
        uuid: As NVML says it; empty when the GPU was lost or left out before it could be asked.
        info: By the labels of ``trackside_gpu_info``; ``source`` is ``nvml`` or ``simulated``.
        values: What this GPU measures; what it does not is absent. A GPU that is lost has ``up`` 0 and nothing else.
        refusals: Why it does not measure what is absent, by reader or family; ``up`` says why a GPU is lost.
    """

    index: int
    uuid: str
    info: dict[str, str]
    values: list[Value]
    refusals: dict[str, str] = {}


class Reading(msgspec.Struct, omit_defaults=True):
    """All GPUs at one moment, or why there are none.

    Attributes:
        driver: ``driver_version``, ``nvml_version`` and ``cuda_version``; empty when simulated.
        error: What is wrong and how to mend it, in one line; empty when nothing is. The worker ends after saying it.
        absent: The error is that this host has no NVIDIA driver or no GPU, and not that they fail.
        reason: A word for the error, as in ``trackside_nvml_worker_restarts_total``.
        calls: Calls of NVML since the worker began: by function and result, how many.
        seconds: Time spent in each function since the worker began.
        rejected: Values beyond their bounds since the worker began, by family.
        xids: Xid errors since the worker began: by UUID, which is empty where the GPU could not say it, and by Xid, how
            many, and the Unix time of the last.
        hidden: GPUs that NVML counts and that may not be opened here, each with nothing but the reason.
        measured: When the cycle ended, by `time.monotonic`, which is one clock for all processes of a machine; 0 when not
            said.
        gone: GPUs that were up before and that NVML counts no longer, each with ``up`` 0; `handle.Nvml` says them.
    """

    gpus: list[GpuReading] = []
    driver: dict[str, str] = {}
    error: str = ""
    absent: bool = False
    reason: str = ""
    calls: dict[str, dict[str, int]] = {}
    seconds: dict[str, float] = {}
    rejected: dict[str, int] = {}
    xids: dict[str, dict[int, tuple[int, float]]] = {}
    hidden: list[GpuReading] = []
    measured: float = 0.0
    gone: list[GpuReading] = []
