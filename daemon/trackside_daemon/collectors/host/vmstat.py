"""Collect page faults, swapping and OOM kills of the host, from /proc/vmstat."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trackside_daemon.collectors.kernel_files import fields, read_base
from trackside_daemon.model.families import host

if TYPE_CHECKING:
    from trackside_daemon.model.metric import Sample


class VmstatCollector:
    """The counters of /proc/vmstat that show a lack of memory; counters that this kernel lacks are left out.

    Args:
        proc: Path of procfs.
    """

    name = "vmstat"
    metrics = tuple(host.VMSTAT.values())

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._vmstat = proc / "vmstat"
        self._fields = [(f"{field} ".encode(), metric) for field, metric in host.VMSTAT.items()]

    def collect(self) -> list[Sample]:
        """Return one sample per field.

        Raises:
            OSError: /proc/vmstat cannot be read.
            ValueError: It has none of the fields, or one is not a number.
        """
        return fields(read_base(self._vmstat), self._fields, self._vmstat)
