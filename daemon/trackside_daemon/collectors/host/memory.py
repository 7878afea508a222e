"""Collect memory and swap of the host, from /proc/meminfo."""

from __future__ import annotations

from pathlib import Path

from trackside_daemon.collectors.kernel_files import fields, number, read_base
from trackside_daemon.model.families import host
from trackside_daemon.model.metric import Sample


class MemoryCollector:
    """The fields of /proc/meminfo that matter to a training; fields that this kernel lacks are left out.

    Args:
        proc: Path of procfs.
    """

    name = "memory"
    metrics = (*host.MEMINFO.values(), host.SWAP_USED)

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._meminfo = proc / "meminfo"
        self._fields = [(f"{field}:".encode(), metric) for field, metric in host.MEMINFO.items()]

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
            samples.append(Sample(host.SWAP_USED, (), (swap - free) * 1024))
        return samples
