"""Collect memory and swap of the host, from /proc/meminfo."""

from __future__ import annotations

from pathlib import Path

from trackside_daemon.collectors.kernel_files import fields, number, read_base
from trackside_daemon.model.metric import Metric, Sample


def _family(name: str, field: str, text: str) -> Metric:
    return Metric(f"trackside_host_{name}_bytes", "gauge", f"{text}, from /proc/meminfo {field}.", unit="bytes")


FIELDS = {
    "MemTotal": _family("memory", "MemTotal", "Memory that the kernel can use"),
    "MemAvailable": _family("memory_available", "MemAvailable", "Memory available to programs without swapping"),
    "MemFree": _family("memory_free", "MemFree", "Unused memory, not even used as a cache"),
    "Buffers": _family("memory_buffers", "Buffers", "Cached blocks of devices"),
    "Cached": _family("memory_cached", "Cached", "Cached files, shared memory and tmpfs"),
    "Shmem": _family(
        "memory_shmem", "Shmem", "Shared memory and tmpfs, through which data loader workers pass batches"
    ),
    "Dirty": _family(
        "memory_dirty", "Dirty", "Bytes written to files but not to disk yet, for example after a checkpoint"
    ),
    "Writeback": _family("memory_writeback", "Writeback", "Bytes that are being written to disk"),
    "AnonPages": _family("memory_anonymous", "AnonPages", "Memory of processes that is not backed by files"),
    "SwapTotal": _family("swap", "SwapTotal", "Swap space"),
}
SWAP_USED = _family("swap_used", "SwapTotal - SwapFree", "Used swap space")


class MemoryCollector:
    """The fields of /proc/meminfo that matter to a training; fields that this kernel lacks are left out.

    Args:
        proc: Path of procfs.
    """

    name = "memory"
    metrics = (*FIELDS.values(), SWAP_USED)

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._meminfo = proc / "meminfo"
        self._fields = [(f"{field}:".encode(), metric) for field, metric in FIELDS.items()]

    def collect(self) -> list[Sample]:
        """Return one sample per field.

        Raises:
            OSError: /proc/meminfo cannot be read.
            ValueError: It has none of the fields, or one is not a number.
        """
        data = read_base(self._meminfo)
        samples = fields(data, self._fields, self._meminfo, 1024)  # a kB of this file has 1024 bytes
        swap, free = (number(data, name, self._meminfo) for name in (b"SwapTotal:", b"SwapFree:"))
        if swap is not None and free is not None:
            samples.append(Sample(SWAP_USED, (), (swap - free) * 1024))
        return samples
