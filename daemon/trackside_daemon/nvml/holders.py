"""Who has the NVIDIA driver's device files open: what keeps a GPU from being reset or taken away."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

DEVICES = "/dev/nvidia"


class Holder(NamedTuple):
    """A process; *name* as in /proc/PID/comm."""

    pid: int
    name: str


def holders(proc: Path = Path("/proc")) -> list[Holder]:
    """The processes that hold one, as far as this user may look: root sees all."""
    found = []
    for process in proc.glob("[0-9]*"):
        try:
            if any(str(entry.readlink()).startswith(DEVICES) for entry in (process / "fd").iterdir()):
                found.append(Holder(int(process.name), (process / "comm").read_text(errors="replace").strip()))
        except OSError:  # it has ended, or is another user's
            continue
    return sorted(found)
