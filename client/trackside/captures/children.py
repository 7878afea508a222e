"""The processes below this one, such as the workers of its data loaders: their stacks, and what the kernel says of them.

A child that `trackside.interpreter` has prepared writes its stacks in the handler of a signal, so that one in a deadlock does
too, into a file in memory, which its parent finds below /proc.
"""

import os
import re
import time
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path

from trackside.environment.identity import children, stat
from trackside.interpreter import FRAMES, STACKS_FILE, STACKS_SIGNAL
from trackside.patterns import pattern
from trackside.wire import Child

PROC = Path("/proc")
CHILDREN = 64  # most children that are asked
DEPTH = 2  # a fork server is between a rank and its workers
SECONDS = 0.2  # time for all of them to answer
POLL_SECONDS = 0.005
BYTES = 64 * 1024  # most of an answer that is read
THREADS = 8  # most threads of a child, the main thread first

_FORK = pattern(r"multiprocessing.process\.py:\d+ _bootstrap$")
_FRAME = pattern(r'  File "(.*)", line (\d+) in (.*)')


def child_processes() -> list[Child]:
    """Return the processes below this one, with the stacks of those that one with a run forked, and of its loaders' workers."""
    found: list[int] = []
    level = [os.getpid()]
    for _ in range(DEPTH):
        level = [child for pid in level for child in children(PROC, pid)][: CHILDREN - len(found)]
        found += level
    files = {pid: file for pid in found if (file := _asked(pid)) is not None}
    until, sizes = time.monotonic() + SECONDS, list[int]()
    while files and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        before, sizes = sizes, [_size(file) for file in files.values()]
        if sizes == before and all(sizes):
            break
    return [child for pid in found if (child := _child(pid, files.get(pid))) is not None]


def child_stacks() -> dict[str, list[str]]:
    """Return the stacks of these processes by the name and number of each and of its thread, as `Stacks` has them."""
    return {
        f"{child.name} {child.pid} {thread}": calls
        for child in child_processes()
        for thread, calls in (child.threads or {"MainThread 0": [f"state {child.state} {child.waits}".strip()]}).items()
    }


def _asked(pid: int) -> Path | None:
    """Ask a child that has a handler for it, and return the file of its answer; None without one."""
    place = PROC / str(pid)
    with suppress(OSError, ValueError, IndexError):
        caught = re.search(rb"^SigCgt:\s*(\w+)", (place / "status").read_bytes(), re.MULTILINE)
        if caught is None or not int(caught[1], 16) >> (STACKS_SIGNAL - 1) & 1:
            return None
        for file in (place / "fd").iterdir():
            if str(file.readlink()) == f"/memfd:{STACKS_FILE.format(pid)} (deleted)":
                os.truncate(file, 0)
                os.kill(pid, STACKS_SIGNAL)
                return file
    return None


def _size(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return -1  # it has ended


def _child(pid: int, file: Path | None) -> Child | None:
    try:
        fields = stat(PROC, pid)
        name = (PROC / str(pid) / "comm").read_bytes().decode(errors="replace").strip()
        state, parent, ticks = fields[0].decode(), int(fields[1]), int(fields[11]) + int(fields[12])
        ended = int(fields[49]) if state == "Z" else 0
    except (OSError, ValueError, IndexError):
        return None
    waits, threads = "", dict[str, list[str]]()
    with suppress(OSError):
        waits = (PROC / str(pid) / "wchan").read_text()
    if file is not None:
        with suppress(OSError), file.open("rb") as answer:
            threads = parsed(answer.read(BYTES).decode(errors="replace"))
    cpu = ticks / os.sysconf("SC_CLK_TCK")
    return Child(pid, name, state, "" if waits == "0" else waits, parent, ended, cpu, threads)


def parsed(text: str) -> dict[str, list[str]]:
    """Return the stacks that `faulthandler` wrote, which has the main thread last and innermost calls first, as `Stacks` does."""
    stacks = [
        [f"{frame[1]}:{frame[2]} {frame[3]}" for frame in _FRAME.finditer(part)]
        for part in re.split(r"^(?:Current thread|Thread) 0x", text, flags=re.MULTILINE)[1:]
    ]
    # The calls of the parent until the fork say nothing about the child.
    calls = ([*dropwhile(lambda one: not _FORK.search(one), reversed(of))] or of[::-1] for of in stacks[::-1])
    names = ("MainThread 0", *(f"Thread {number}" for number in range(1, THREADS)))
    return {name: of[-FRAMES:] for name, of in zip(names, calls, strict=False)}
