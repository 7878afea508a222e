"""Collect page faults, swapping and OOM kills of the host, from /proc/vmstat."""

from __future__ import annotations

from pathlib import Path

from trackside_daemon.collectors.kernel_files import fields, read_base
from trackside_daemon.model.metric import Metric, Sample


def _family(name: str, field: str, text: str) -> Metric:
    return Metric(f"trackside_host_{name}_total", "counter", f"{text}, from /proc/vmstat {field}.")


FIELDS = {
    "oom_kill": _family("oom_kills", "oom_kill", "Processes that the kernel killed for lack of memory"),
    "pgmajfault": _family("major_page_faults", "pgmajfault", "Page faults that needed a read from disk"),
    "pgfault": _family("page_faults", "pgfault", "Page faults, including major ones"),
    "pswpin": _family("swap_in_pages", "pswpin", "Pages read from swap"),
    "pswpout": _family("swap_out_pages", "pswpout", "Pages written to swap"),
}


class VmstatCollector:
    """The counters of /proc/vmstat that show a lack of memory; counters that this kernel lacks are left out.

    Args:
        proc: Path of procfs.
    """

    name = "vmstat"
    metrics = tuple(FIELDS.values())

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._vmstat = proc / "vmstat"
        self._fields = [(f"{field} ".encode(), metric) for field, metric in FIELDS.items()]

    def collect(self) -> list[Sample]:
        """Return one sample per field.

        Raises:
            OSError: /proc/vmstat cannot be read.
            ValueError: It has none of the fields, or one is not a number.
        """
        return fields(read_base(self._vmstat), self._fields, self._vmstat)
