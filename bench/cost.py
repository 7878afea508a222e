"""Read from the kernel what a process costs the machine."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil


def cpu(pid: int) -> float:
    """Return user and system seconds (/proc/PID/stat, fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def precise(pid: int) -> float:
    """Return CPU seconds of all live threads, to the nanosecond (/proc/PID/task/TID/schedstat)."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def memory(pid: int) -> tuple[float, float]:
    """Return RSS and PSS in MiB (/proc/PID/smaps_rollup); without that file, PSS is NaN."""
    if not Path(f"/proc/{pid}/smaps_rollup").exists():  # gVisor
        return psutil.Process(pid).memory_info().rss / 2**20, math.nan
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    sizes = {fields[0]: int(fields[1]) / 1024 for fields in lines}
    return sizes["Rss:"], sizes["Pss:"]
