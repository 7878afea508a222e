"""Read from the kernel what a process costs the machine."""

from __future__ import annotations

import os
from pathlib import Path


def child(pid: int) -> int:
    """Return the only child of a process; another thread than the main one may have started it."""
    children = [
        word for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]
    return int(children[0])


def cpu(pid: int) -> float:
    """Return user and system seconds (/proc/PID/stat, fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def precise(pid: int) -> float:
    """Return CPU seconds of all live threads, to the nanosecond (/proc/PID/task/TID/schedstat)."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def memory(pid: int) -> tuple[float, float]:
    """Return RSS and PSS in MiB (/proc/PID/smaps_rollup)."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    sizes = {fields[0]: int(fields[1]) / 1024 for fields in lines}
    return sizes["Rss:"], sizes["Pss:"]
