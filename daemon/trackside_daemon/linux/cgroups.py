"""Find the directories of control groups: v1, v2, or both at once.

The paths in /proc/PID/cgroup and the roots in /proc/self/mountinfo are both relative to this process's cgroup namespace.
Paths outside of it begin with one ``/..`` per step up from the namespace's root (cgroup_namespaces(7)).
"""

import os
from collections.abc import Mapping
from glob import escape
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.linux import mountinfo

V2 = ""  # name of the v2 hierarchy in /proc/PID/cgroup, where a hierarchy of v1 has the names of its controllers

LABEL_BYTES = 256
# The kernel appends this for a zombie whose cgroup has been removed.
_GONE = " (deleted)"


class CgroupMount(NamedTuple):
    """A mounted cgroup hierarchy, whose directory *root* appears at *point*."""

    point: Path
    root: str


class Cgroup(NamedTuple):
    """The cgroups that a process is in."""

    path: str  # label value of the cgroup, from `label`
    # Directories by controller of v1, the process's own first, then those above; empty when not mounted here.
    v1: Mapping[str, tuple[Path, ...]]
    v2: tuple[Path, ...]  # directories of v2, in the same order

    def levels(self, controller: str) -> tuple[Path, ...]:
        """Return a controller's directory for the process and those above, of v1 or v2, the nearest first."""
        return self.v1.get(controller, self.v2)


class Cgroups:
    """The cgroup hierarchies that are mounted here.

    Args:
        proc: Path of procfs; its ``self/mountinfo`` has the mount points of the hierarchies.
        sys: Path of the host's sysfs; mounts below it have precedence over others.
        root: Directory below which the mount points lie, for a ``self/mountinfo`` of another machine.
    """

    def __init__(self, proc: Path, sys: Path = Path("/sys"), root: Path = Path("/")) -> None:
        self._proc = proc
        self._mounts = mounts(proc, sys, root)

    def of(self, pid: int) -> Cgroup | None:
        """Return a process's cgroups (/proc/PID/cgroup); None when the process or a cgroup is gone."""
        try:
            text = os.fsdecode((self._proc / str(pid) / "cgroup").read_bytes())
        except OSError:
            return None
        paths = _paths(text)
        if any(path.endswith(_GONE) for path in paths.values()):
            return None
        return Cgroup(
            label(text),
            {name: self._levels(name, path, pid) for name, path in paths.items() if name != V2},
            self._levels(V2, paths[V2], pid) if V2 in paths else (),
        )

    def _levels(self, name: str, cgroup: str, pid: int) -> tuple[Path, ...]:
        for mount in self._mounts.get(name, ()):
            directory = directory_of(mount, cgroup, pid)
            if directory is not None:
                return tuple(level for level in (directory, *directory.parents) if level.is_relative_to(mount.point))
        return ()


def mounts(proc: Path, sys: Path, root: Path) -> dict[str, list[CgroupMount]]:
    """Return the mounts of each hierarchy by its names in /proc/PID/cgroup (/proc/self/mountinfo, proc(5))."""
    by_name: dict[str, list[CgroupMount]] = {}
    try:
        lines = mountinfo.parse((proc / "self" / "mountinfo").read_bytes())
    except OSError:
        return by_name
    for line in lines:
        if line.fstype in {"cgroup", "cgroup2"}:
            for name in (V2,) if line.fstype == "cgroup2" else line.super_options:
                by_name.setdefault(name, []).append(CgroupMount(_below(root, line.point), line.root))
    # In a container with the host's /sys, the container's own cgroup mount may show only a part of the tree.
    first = _below(root, str(sys))
    for hierarchy in by_name.values():
        hierarchy.sort(key=lambda mount: not mount.point.is_relative_to(first))
    return by_name


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def directory_of(mount: CgroupMount, cgroup: str, pid: int) -> Path | None:
    """Return the directory of a process's cgroup; None when it lies outside of the mount."""
    top_up, top = _steps(mount.root)
    up, names = _steps(cgroup)
    # The kernel writes .. only at the beginning; elsewhere it would lead out of the mount.
    if ".." in names:
        return None
    if top_up == up and names[: len(top)] == top:
        return mount.point.joinpath(*names[len(top) :])
    # The mount begins above the namespace's root, and no file has the names in between: search them for the process.
    if top_up > up and not top:
        return _search(mount.point, top_up - up, names, pid)
    return None


def _steps(path: str) -> tuple[int, list[str]]:
    """Return the number of leading ``..`` in a path, and the names that follow."""
    names = [name for name in path.split("/") if name]
    up = next((index for index, name in enumerate(names) if name != ".."), len(names))
    return up, names[up:]


def _search(point: Path, hidden: int, names: list[str], pid: int) -> Path | None:
    """Return the directory below *point* that lists a process, when the namespace hides the first *hidden* names of the path."""
    text = str(pid)
    for directory in point.glob("/".join(["*"] * hidden + [escape(name) for name in names])):
        try:
            if text in (directory / "cgroup.procs").read_text().split():
                return directory
        except OSError:
            continue
    return None


def label(text: str) -> str:
    """Return the label value of a process's cgroup from the text of /proc/PID/cgroup; empty when it has none.

    It is the path in the hierarchy of v1's memory, else of v1's cpu, else of v2: the first that is not the root.
    Only the last `LABEL_BYTES` of a long path are kept, because the end distinguishes the processes of a job.
    """
    paths = _paths(text)
    candidates = [paths[name].removesuffix(_GONE) for name in ("memory", "cpu", V2) if name in paths]
    chosen = next((path for path in candidates if path != "/"), "/" if candidates else "")
    # The cut may split a character, whose remaining bytes are dropped.
    return chosen.encode(errors="replace")[-LABEL_BYTES:].decode(errors="ignore")


def _paths(text: str) -> dict[str, str]:
    """Return a process's path in each hierarchy, by the hierarchy's names."""
    parts = (line.split(":", 2) for line in text.split("\n") if line.count(":") > 1)
    return {name: path for _, names, path in parts for name in names.split(",")}
