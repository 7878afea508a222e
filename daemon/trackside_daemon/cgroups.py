"""Where the kernel's control groups are: of v1, v2, or both side by side."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Mount(NamedTuple):
    """A mounted cgroup hierarchy: *root* of it is seen at *point*."""

    point: Path
    root: str


def mounts(proc: Path) -> tuple[Mount | None, Mount | None]:
    """Where v1's memory controller and v2 are mounted (/proc/self/mountinfo, proc(5))."""
    v1 = v2 = None
    try:
        lines = (proc / "self" / "mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None, None
    for line in lines:
        fields, _, tail = line.partition(" - ")
        kind, _, options = tail.split(" ")[:3]
        _, _, _, root, point = fields.split(" ")[:5]
        mount = Mount(Path(point), root)
        if kind == "cgroup2":
            v2 = v2 or mount
        elif kind == "cgroup" and "memory" in options.split(","):
            v1 = v1 or mount
    return v1, v2


def place(mount: Mount, cgroup: str) -> Path | None:
    """The directory of a cgroup; None when it is outside of what is mounted here."""
    root = mount.root.rstrip("/")
    if ".." in cgroup.split("/") or not f"{cgroup}/".startswith(f"{root}/"):
        return None
    return mount.point / cgroup[len(root) :].lstrip("/")


LABEL_BYTES = 256


def label(text: bytes | str) -> str:
    """The path of a process's cgroup, as series are labelled with it, from /proc/PID/cgroup; empty when it has none.

    It is that of the hierarchy that limits memory: of v1 where that is in use, else of v2. Of a very long path it is the
    end, which tells the processes of a job apart.
    """
    lines = (text.decode(errors="replace") if isinstance(text, bytes) else text).split("\n")
    parts = (line.split(":", 2) for line in lines if line.count(":") > 1)
    paths = {name: path for _, names, path in parts for name in names.split(",")}
    found = next((paths[name] for name in ("memory", "cpu", "") if name in paths), "")
    return found.removesuffix(" (deleted)").encode(errors="replace")[-LABEL_BYTES:].decode(errors="ignore")
