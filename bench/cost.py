"""What a process costs the machine, by what the kernel says of it."""

from __future__ import annotations

import os
from pathlib import Path


def child(pid: int) -> int:
    """The process's only child; the thread that started it is not the main one."""
    children = [
        word for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]
    return int(children[0])


def cpu(pid: int) -> float:
    """User and system seconds (/proc/PID/stat, fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def precise(pid: int) -> float:
    """CPU seconds of the threads that live, to the nanosecond (/proc/PID/task/TID/schedstat)."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def memory(pid: int) -> tuple[float, float]:
    """RSS and PSS, in MiB (/proc/PID/smaps_rollup)."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    sizes = {fields[0]: int(fields[1]) / 1024 for fields in lines}
    return sizes["Rss:"], sizes["Pss:"]
