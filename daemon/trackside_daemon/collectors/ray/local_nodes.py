"""Find the nodes of Ray on this machine by their processes, and read their metrics ports."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.model.families import ray as f
from trackside_daemon.model.metric import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

_ID = re.compile(r"[0-9a-f]{16,64}")
_NOT_ACTORS = frozenset(("IDLE", "DashboardAgent", "RuntimeEnvAgent"))
_PORT_DIGITS = 8

# A line of the text format: the name, its labels and the value.
_LINE = re.compile(r"(ray_resources|ray_object_store_(?:used|available)_memory|ray_tasks)\{(.*)\} (\S+)")
_LABEL = re.compile(r'\b(Name|State)="([^"\\]*)"')
_ENDED = frozenset(("FINISHED", "FAILED"))


class LocalNode(NamedTuple):
    """A node of Ray: a raylet process.

    Attributes:
        id: The node's id, hexadecimal.
        pid: The raylet's pid.
        session: The directory of Ray's session.
    """

    id: str
    pid: int
    session: str


class Worker(NamedTuple):
    """A process of an actor or a task.

    Attributes:
        pid: Its pid.
        parent: The pid of its raylet.
        title: What follows ``ray::`` in its title: a class or a function, and the method that runs.
    """

    pid: int
    parent: int
    title: str


def processes(proc: Path) -> tuple[dict[str, LocalNode], list[Worker]]:
    """Return the nodes by id, and the workers, of all processes whose command line this user may read."""
    nodes, workers = {}, []
    for entry in os.listdir(proc):  # noqa: PTH208  a Path for each process would cost more than the reading
        if not entry.isdigit():
            continue
        try:
            line = read(f"{proc}/{entry}/cmdline").decode(errors="replace")
            if line.startswith("ray::"):
                title = line.partition("\0")[0].strip().removeprefix("ray::")
                parent = int(read(f"{proc}/{entry}/stat").rpartition(b")")[2].split()[1])
                workers.append(Worker(int(entry), parent, title))
            elif line.partition("\0")[0].endswith("/raylet"):
                given = dict(part[2:].split("=", 1) for part in line.split("\0") if part[:2] == "--" and "=" in part)
                if _ID.fullmatch(given.get("node_id", "")):
                    node = LocalNode(given["node_id"], int(entry), given.get("session_dir", ""))
                    nodes[node.id] = node
        except (OSError, ValueError, IndexError):  # it has ended meanwhile
            continue
    return nodes, workers


def actor_class(title: str) -> str:
    """Return the class of an actor from its process title; empty for a process that is none, such as a task's."""
    name = title.partition(".")[0]
    return "" if name in _NOT_ACTORS or "(" in name or ":" in name or "-" in name or not name[:1].isupper() else name


def metrics_port(node: LocalNode) -> int | None:
    """Return the port of a node's metrics on this machine, which Ray writes into a file of its session.

    Raises:
        ValueError: The file has no number.
    """
    path = Path(node.session) / f"metrics_export_port_{node.id}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(os.read(descriptor, _PORT_DIGITS))
    finally:
        os.close(descriptor)


def samples(node: LocalNode, text: str) -> Iterator[Sample]:
    """Yield the samples of a node from the text of its metrics port; tasks without labels of a node, to be summed."""
    store: dict[str, float] = {}
    for name, labels, value in _LINE.findall(text):
        has = dict(_LABEL.findall(labels))
        number, state = float(value), has.get("State", "")
        if name == "ray_resources":
            yield Sample(f.RESOURCES, (node.id, has.get("Name", ""), state.lower()), number)
        elif name == "ray_tasks":
            if number and state not in _ENDED:
                yield Sample(f.TASKS, (state.lower(),), number)
        else:
            store[name] = number
    if len(store) == 2:
        used = store["ray_object_store_used_memory"]
        yield Sample(f.STORE_USED, (node.id,), used)
        yield Sample(f.STORE_SIZE, (node.id,), used + store["ray_object_store_available_memory"])
