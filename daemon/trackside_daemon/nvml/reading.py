"""What the worker says in one cycle: the schema of the pipe, imported by both of its ends."""

from __future__ import annotations

import msgspec

Value = tuple[str, tuple[str, ...], float]
"""A family's short name, such as ``temperature_celsius``; values of its extra labels, such as ``("gpu",)``; and the
value in the family's base unit."""


class GpuReading(msgspec.Struct):
    """One GPU.

    Attributes:
        index: As nvidia-smi shows it; it may change at a reboot.
        uuid: As NVML says it; empty when the GPU was lost before it could be asked.
        info: ``name``, ``pci_bus_id`` and ``source``, which is ``nvml`` or ``simulated``.
        values: What this GPU measures; what it does not is absent. A lost GPU has ``up`` 0 and nothing else.
    """

    index: int
    uuid: str
    info: dict[str, str]
    values: list[Value]


class Reading(msgspec.Struct, omit_defaults=True):
    """All GPUs at one moment, or why there are none.

    Attributes:
        driver: ``driver_version``, ``nvml_version`` and ``cuda_version``; empty when simulated.
        error: What is wrong and how to mend it, in one line; empty when nothing is. The worker ends after saying it.
        absent: The error is that this host has no NVIDIA driver or no GPU, and not that they fail.
    """

    gpus: list[GpuReading] = []
    driver: dict[str, str] = {}
    error: str = ""
    absent: bool = False
