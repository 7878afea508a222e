"""Families of the daemon's process and of its interpreter, with the names, help texts and values of prometheus_client.

That library itself would cost the daemon 1 MiB, most of it for an HTTP server and client that nothing here uses.
"""

from __future__ import annotations

import gc
import os
import platform
from pathlib import Path

from trackside_daemon.model.metric import Metric
from trackside_daemon.model.state import Rows, Series

PROC = Path("/proc")

VIRTUAL_MEMORY = Metric("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.")
RESIDENT_MEMORY = Metric("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.")
START_TIME = Metric("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
CPU = Metric("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.")
OPEN_FILES = Metric("process_open_fds", "gauge", "Number of open file descriptors.")
MAX_FILES = Metric("process_max_fds", "gauge", "Maximum number of open file descriptors.")
PYTHON = Metric(
    "python_info",
    "gauge",
    "Python platform information",
    ("version", "implementation", "major", "minor", "patchlevel"),
)
# By key of `gc.get_stats()`.
COLLECTIONS = {
    "collected": Metric("python_gc_objects_collected_total", "counter", "Objects collected during gc", ("generation",)),
    "uncollectable": Metric(
        "python_gc_objects_uncollectable_total", "counter", "Uncollectable objects found during GC", ("generation",)
    ),
    "collections": Metric(
        "python_gc_collections_total", "counter", "Number of times this generation was collected", ("generation",)
    ),
}


class ProcessMetrics:
    """Reads the families of this process at each call, from /proc/self and the interpreter.

    Args:
        proc: The procfs; without one, as on macOS, the ``process_*`` families are missing.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._process = proc / "self"
        self._boot_time = _boot_time(proc)
        self._python = (platform.python_version(), platform.python_implementation(), *platform.python_version_tuple())
        self._series: dict[tuple[Metric, tuple[str, ...]], Series] = {}

    def rows(self) -> list[Rows]:
        """Return the families with their current values."""
        process = {} if self._boot_time is None else {**_usage(self._process, self._boot_time), **_files(self._process)}
        generations = [*enumerate(gc.get_stats())]
        return [
            *(self._rows(metric, {(): value}) for metric, value in process.items()),
            self._rows(PYTHON, {self._python: 1.0}),
            *(
                self._rows(metric, {(str(number),): float(stats[key]) for number, stats in generations})
                for key, metric in COLLECTIONS.items()
            ),
        ]

    def _rows(self, metric: Metric, values: dict[tuple[str, ...], float]) -> Rows:
        # The same series each time, because the exposition caches their texts.
        series = [self._series.setdefault((metric, labels), Series(metric, labels, "trackside")) for labels in values]
        return Rows(metric, series, [*values.values()])


def _boot_time(proc: Path) -> float | None:
    """Return the boot time in Unix seconds; None without a procfs."""
    try:
        lines = (proc / "stat").read_bytes().splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) for line in lines if line.startswith(b"btime ")), None)


def _usage(process: Path, boot_time: float) -> dict[Metric, float]:
    """Return memory, start and CPU time from stat, in bytes and seconds; nothing if it cannot be read."""
    try:
        # The name before these fields stands in parentheses, and may itself contain any character.
        fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return {}
    ticks = os.sysconf("SC_CLK_TCK")
    return {
        VIRTUAL_MEMORY: float(fields[20]),
        RESIDENT_MEMORY: float(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        START_TIME: float(fields[19]) / ticks + boot_time,
        CPU: float(fields[11]) / ticks + float(fields[12]) / ticks,
    }


def _files(process: Path) -> dict[Metric, float]:
    """Return the number and the limit of open files; nothing if they cannot be read."""
    try:
        limits = (process / "limits").read_bytes().splitlines()
        limit = next(line for line in limits if line.startswith(b"Max open file")).split()[3]
        return {OPEN_FILES: float(len([*(process / "fd").iterdir()])), MAX_FILES: float(limit)}
    except OSError:
        return {}
