"""Processes that have the NVIDIA driver's device files open, and so prevent a GPU reset or removal."""

from pathlib import Path
from typing import NamedTuple

DEVICES = "/dev/nvidia"


class DeviceHolder(NamedTuple):
    """A process with an open device file; *name* is from /proc/PID/comm."""

    pid: int
    name: str


def holders(proc: Path = Path("/proc")) -> list[DeviceHolder]:
    """Return the processes with an open device file, by process id; without root, only those of this user."""
    processes = []
    for process in proc.glob("[0-9]*"):
        try:
            if any(str(entry.readlink()).startswith(DEVICES) for entry in (process / "fd").iterdir()):
                name = (process / "comm").read_text(errors="replace").strip()
                processes.append(DeviceHolder(int(process.name), name))
        except OSError:  # the process has ended, or belongs to another user
            continue
    return sorted(processes)
