"""Readings of the first GPU of the fake driver in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pynvml

from trackside_daemon.nvml.reader_groups import selected_groups
from trackside_daemon.nvml.worker.driver import Driver

if TYPE_CHECKING:
    from trackside_daemon.nvml.reading import GpuReading


def read(*extra: str) -> GpuReading:
    """Return the first GPU after one cycle, with *extra* groups."""
    return Driver(pynvml, selected_groups(extra)).read().gpus[0]


def of(gpu: GpuReading, start: str) -> dict[str, float]:
    """Return the series whose family starts with *start*, by ``family:label``."""
    return {":".join((family, *labels)): value for family, labels, value in gpu.values if family.startswith(start)}
