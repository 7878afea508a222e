"""File systems that hang when a test wants it, without a mount: a worker that blocks on a fifo, and its results."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING

from processes import eventually

from trackside_daemon.collectors.host.filesystem.remote import DEADLINE

if TYPE_CHECKING:
    from pathlib import Path

    from scripted_workers import Clock

    from trackside_daemon.collectors.host.filesystem.filesystem import FilesystemCollector
    from trackside_daemon.linux.worker_process import WorkerProcess

ROOM = {"size_bytes": 4096000, "free_bytes": 1638400, "avail_bytes": 1228800, "files": 200, "files_free": 150}
WELL = {"device_error": 0, "readonly": 0, **ROOM}
DEAD = {"device_error": 1}
#: Answers what a worker would. Of a path in whose place below its argument there is a fifo, it reads that first: it
#: hangs until somebody writes there.
BLOCKS = """
import os, sys
print("ready", flush=True)
for request in sys.stdin:
    fifo = os.path.join(sys.argv[1], os.path.basename(bytes.fromhex(request).decode()))
    if os.path.exists(fifo): open(fifo).read()
    print("4096 1000 400 300 200 150", flush=True)
"""


def by_mount(collector: FilesystemCollector) -> dict[str, dict[str, float]]:
    """Return the values of each mount point, by family."""
    reported: dict[str, dict[str, float]] = defaultdict(dict)
    for metric, (point, _), value in collector.collect():
        assert isinstance(value, (int, float))
        reported[point][metric.name.removeprefix("trackside_host_filesystem_")] = value
    return dict(reported)


def hanging(collector: FilesystemCollector) -> list[WorkerProcess]:
    """Return the workers that have a request and have not answered."""
    return [*collector.remote.busy.values()]


def waited_for(collector: FilesystemCollector) -> list[tuple[int, str, str]]:
    """Return the mounts that the workers wait for: id, device and place."""
    return [*collector.remote.busy]


def idle(collector: FilesystemCollector) -> list[WorkerProcess]:
    """Return the workers that wait for a request."""
    return collector.remote.workers.idle


def ask_in_vain(collector: FilesystemCollector, fifo: Path) -> WorkerProcess:
    """Collect until only the mount of that name blocks its worker and another is idle; return the blocked one."""
    os.mkfifo(fifo)
    eventually(lambda: by_mount(collector) and len(hanging(collector)) == 1 and idle(collector))
    return hanging(collector)[0]


def hang(collector: FilesystemCollector, clock: Clock, fifo: Path) -> WorkerProcess:
    """Collect until the mount of that name is reported as dead; return the worker that hangs there."""
    child = ask_in_vain(collector, fifo)
    clock.now += DEADLINE + 0.1
    assert by_mount(collector)[f"/{fifo.name}"] == DEAD
    return child


def remote_mounts(collector: FilesystemCollector) -> int:
    """Return of how many remote mounts the collector remembers anything."""
    return len(collector.remote._states)


def wait_for_answers(collector: FilesystemCollector, seconds: float) -> None:
    """Let each tick wait so long for the answers of its workers."""
    collector.remote.timeout = seconds


def is_reaped(child: WorkerProcess) -> bool:
    return child.is_reaped()
