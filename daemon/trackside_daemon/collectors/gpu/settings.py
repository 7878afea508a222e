"""The settings of the GPU collector."""

from __future__ import annotations

from trackside_daemon.collectors.collector_settings import CollectorSection
from trackside_daemon.nvml.settings import NvmlSection


class GpuSection(NvmlSection, CollectorSection):
    """The GPU collector."""
