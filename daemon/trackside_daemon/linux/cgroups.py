"""Where the kernel's control groups are: of v1, v2, or both side by side.

The paths in /proc/PID/cgroup and the roots in /proc/self/mountinfo are both as this process's cgroup namespace has
them: what lies outside of it begins with ``/..``, one for each step up from the namespace's root (cgroup_namespaces(7)).
"""

from __future__ import annotations

import os
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.linux import mountinfo

if TYPE_CHECKING:
    from collections.abc import Mapping

V2 = ""
"""How the hierarchy of v2 is called in /proc/PID/cgroup, where one of v1 has the names of its controllers."""

LABEL_BYTES = 256
_GONE = " (deleted)"


class Mount(NamedTuple):
    """A mounted cgroup hierarchy: *root* of it is seen at *point*."""

    point: Path
    root: str


class Cgroup(NamedTuple):
    """The cgroups that a process is in.

    Attributes:
        path: As `label` has it.
        v1: For each controller of v1 its directory and those above, the nearest first; none when that is not seen here.
        v2: The same of v2.
    """

    path: str
    v1: Mapping[str, tuple[Path, ...]]
    v2: tuple[Path, ...]

    def levels(self, controller: str) -> tuple[Path, ...]:
        """The directory that a controller has for the process, and those above, whichever version it is in."""
        return self.v1.get(controller, self.v2)


class Cgroups:
    """The hierarchies that are mounted here.

    Args:
        proc: Where procfs is mounted; its ``self/mountinfo`` says where the cgroups are.
        sys: Where the host's /sys is: what is mounted below it goes before what is mounted elsewhere.
        root: What the mount points are below of, when ``self/mountinfo`` is of another place than this one.
    """

    def __init__(self, proc: Path, sys: Path = Path("/sys"), root: Path = Path("/")) -> None:
        self._proc = proc
        self._mounts = mounts(proc, sys, root)

    def of(self, pid: int) -> Cgroup | None:
        """A process's cgroups (/proc/PID/cgroup); None when it or they are gone."""
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
            found = place(mount, cgroup, pid)
            if found is not None:
                return tuple(one for one in (found, *found.parents) if one.is_relative_to(mount.point))
        return ()


def mounts(proc: Path, sys: Path, root: Path) -> dict[str, list[Mount]]:
    """The mounts of each hierarchy by the names it has in /proc/PID/cgroup (/proc/self/mountinfo, proc(5))."""
    found: dict[str, list[Mount]] = {}
    try:
        lines = mountinfo.parse((proc / "self" / "mountinfo").read_bytes())
    except OSError:
        return found
    for line in lines:
        if line.fstype in {"cgroup", "cgroup2"}:
            for name in (V2,) if line.fstype == "cgroup2" else line.more:
                found.setdefault(name, []).append(Mount(_below(root, line.point), line.root))
    first = _below(root, str(sys))
    for same in found.values():
        same.sort(key=lambda mount: not mount.point.is_relative_to(first))
    return found


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def place(mount: Mount, cgroup: str, pid: int) -> Path | None:
    """The directory of a process's cgroup; None when it is outside of what is mounted here."""
    (top_up, top), (up, names) = _steps(mount.root), _steps(cgroup)
    if ".." in names:
        return None
    if top_up == up and names[: len(top)] == top:
        return mount.point.joinpath(*names[len(top) :])
    if top_up > up and not top:
        return _search(mount.point, top_up - up, names, pid)
    return None


def _steps(path: str) -> tuple[int, list[str]]:
    """The steps up that a path begins with, and the names that follow."""
    names = [name for name in path.split("/") if name]
    up = next((index for index, name in enumerate(names) if name != ".."), len(names))
    return up, names[up:]


def _search(point: Path, hidden: int, names: list[str], pid: int) -> Path | None:
    """The directory below *point* that has a process, where the namespace hides the first names on the way to it."""
    own = str(pid)
    for found in point.glob("/".join(["*"] * hidden + [escape(name) for name in names])):
        try:
            if own in (found / "cgroup.procs").read_text().split():
                return found
        except OSError:
            continue
    return None


def label(text: str) -> str:
    """How series name a process's cgroup, from /proc/PID/cgroup; empty when it has none.

    It is where the process is in the hierarchy of v1's memory, else of v1's cpu, else of v2: the first that is not the
    root. Of a very long path it is the end, which tells the processes of a job apart.
    """
    paths = _paths(text)
    known = [paths[name].removesuffix(_GONE) for name in ("memory", "cpu", V2) if name in paths]
    found = next((path for path in known if path != "/"), "/" if known else "")
    return found.encode(errors="replace")[-LABEL_BYTES:].decode(errors="ignore")


def _paths(text: str) -> dict[str, str]:
    """Where a process is, by the names of the hierarchies."""
    parts = (line.split(":", 2) for line in text.split("\n") if line.count(":") > 1)
    return {name: path for _, names, path in parts for name in names.split(",")}
