"""Read the stacks of a process, in the best way that there is for it."""

import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from trackside_daemon.cli.attach.injection import SINCE, InjectionError, stacks_inside
from trackside_daemon.cli.attach.target import PROC, AttachedProcess
from trackside_daemon.linux.child_process import output

PY_SPY_SECONDS = 5.0
THREADS = 256  # most threads that are reported


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Thread(msgspec.Struct):
    thread_id: int = 0
    thread_name: str | None = None
    frames: list[_Frame] = []


def way(target: AttachedProcess) -> str:
    """Return how `stacks` finds the stacks, as one line for people."""
    if target.version >= SINCE:
        return "by the process itself"
    if target.version and shutil.which("py-spy"):
        return "by py-spy"
    missing = "they need Python 3.14 in the process, or py-spy in $PATH" if target.version else "it is no Python"
    return f"not of Python, since {missing}; the kernel's view of each thread is shown"


def stacks(target: AttachedProcess) -> dict[str, list[str]]:
    """Return the calls of each thread by its name, the innermost last; where there is no way to them, the thread's state."""
    if target.version >= SINCE:
        with suppress(InjectionError):  # a call holds it: the others need nothing of it
            return stacks_inside(target)
    if target.version and (program := shutil.which("py-spy")):
        text = output([program, "dump", "--json", "--pid", str(target.pid)], PY_SPY_SECONDS)
        with suppress(msgspec.MsgspecError):
            return {_name(one): _calls(one) for one in msgspec.json.decode(text, type=list[_Thread])[:THREADS]}
    return kernel_view(PROC / str(target.pid))


def kernel_view(place: Path) -> dict[str, list[str]]:
    """Return the state of each thread in a directory of /proc, and the kernel's function that it waits in."""
    threads = {}
    for task in sorted((place / "task").iterdir(), key=lambda path: int(path.name))[:THREADS]:
        with suppress(OSError):
            name = (task / "comm").read_text("utf-8", "replace").strip()
            state = next(line for line in (task / "status").read_text().splitlines() if line.startswith("State:"))
            waits = (task / "wchan").read_text().strip()
            waits = f", waits in {waits}" if waits not in {"", "0"} else ""
            threads[f"{name} {task.name}"] = [f"state {state.partition(':')[2].strip()}{waits}"]
    return threads


def _name(thread: _Thread) -> str:
    return f"{thread.thread_name or 'thread'} {thread.thread_id}"


def _calls(thread: _Thread) -> list[str]:
    return [f"{frame.filename}:{frame.line} {frame.name}" for frame in reversed(thread.frames)]
