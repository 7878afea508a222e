"""Run code in a process of Python 3.14 or later, by PEP 768."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trackside
from trackside_daemon.linux.child_process import output

if TYPE_CHECKING:
    from trackside_daemon.cli.attach.target import AttachedProcess

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
