"""What is read of the first GPU of a driver that exists only in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pynvml

from trackside_daemon.nvml.groups import selected_groups
from trackside_daemon.nvml.worker.driver import Driver

if TYPE_CHECKING:
    from trackside_daemon.nvml.reading import GpuReading


def read(*extra: str) -> GpuReading:
    """One cycle, with groups beyond the default."""
    return Driver(pynvml, selected_groups(extra)).read().gpus[0]


def of(gpu: GpuReading, start: str) -> dict[str, float]:
    """The series whose family begins so, with their labels behind a colon."""
    return {":".join((family, *labels)): value for family, labels, value in gpu.values if family.startswith(start)}
