"""Run code in a process of Python 3.14 or later, by PEP 768."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import trackside
from trackside_daemon.cli.attach.target import PROC, AttachedProcess
from trackside_daemon.linux.child_process import output

SINCE = (3, 14)
WAIT_SECONDS = 10.0  # time for the process to run it: it does so between two instructions of its main thread
POLL_SECONDS = 0.05

_INJECT = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2]); print('sent')"
_CODE = """
import json, os, sys
def _run():
    with open({file!r}, "x") as file:
        try:
            result = (lambda: {expression})()
            json.dump({{"result": result}}, file)
        except BaseException as error:
            json.dump({{"error": f"{{type(error).__name__}}: {{error}}"}}, file)
    os.rename({file!r}, {file!r} + ".done")
_run()
"""


class InjectionError(Exception):
    """The code did not run, or failed; the message is the reason in one line."""


def run_inside(target: AttachedProcess, expression: str) -> Any:
    """Return the value of a Python expression in a process, as JSON has it.

    Raises:
        InjectionError: Its Python is too old, or it did not run the expression.
    """
    if target.version < SINCE:
        ours = ".".join(map(str, target.version)) or Path(target.program).name
        raise InjectionError(f"it runs {'Python ' if target.version else ''}{ours}, and this needs Python 3.14")
    with tempfile.TemporaryDirectory(prefix="trackside-") as directory:  # of this user alone
        result, script = Path(directory, "result"), Path(directory, "code.py")
        script.write_text(_CODE.format(file=str(result), expression=expression), "utf-8")
        # By its own interpreter: the versions on both sides must be the same.
        if output([target.program, "-I", "-c", _INJECT, str(target.pid), str(script)], WAIT_SECONDS).strip() != "sent":
            raise InjectionError(
                "its Python accepts no code from outside: PYTHON_DISABLE_REMOTE_DEBUG, or ptrace_scope"
            )
        done = Path(f"{result}.done")
        until = time.monotonic() + WAIT_SECONDS
        while not done.exists() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        if not done.exists():
            raise InjectionError("its main thread runs no Python code: it is stopped, or in a call of a library")
        answer = json.loads(done.read_text("utf-8"))
    if "error" in answer:
        raise InjectionError(str(answer["error"])[:200])
    return answer["result"]


def begin_inside(target: AttachedProcess, endpoint: str) -> str:
    """Start trackside's client in a process, with the hooks of `--auto`; return the id of its run.

    Raises:
        InjectionError: As `run_inside`, or a library of the client is missing there.
    """
    client = str(Path(str(trackside.__file__)).parent.parent)
    imported = (
        f"(sys.path.append({client!r}), __import__('trackside.auto.attach'), sys.modules['trackside.auto.attach'])[-1]"
    )
    return str(run_inside(target, f"{imported}.begin({endpoint!r})"))


def stacks_inside(target: AttachedProcess) -> dict[str, list[str]]:
    """Return the stacks of all threads of a process by name.

    Raises:
        InjectionError: As `run_inside`.
    """
    frames = "[f'{f.f_code.co_filename}:{n} {f.f_code.co_name}' for f, n in list(__import__('traceback').walk_stack(top))[::-1]]"
    names = "{t.ident: t.name for t in __import__('threading').enumerate()}"
    found: dict[str, list[str]] = run_inside(
        target,
        f"(lambda names: {{f'{{names.get(i, \"thread\")}} {{i}}': {frames} for i, top in sys._current_frames().items()}})({names})",
    )
    return found


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
