"""The daemon, the command, pushes, ends and forks with the Python that runs this script, in a few seconds.

It needs trackside alone. The first argument is a directory with a short path; an assertion names what is wrong.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import fork_server

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE = 120.0
"""Seconds. Generous: nothing here measures time."""

IMPORTS = """
import sys
from importlib import import_module
for name in sys.argv[1].split(","):
    sys.modules[name] = None  # a framework takes seconds
for name in sys.argv[2:]:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in {"trackside", "trackside_daemon"}:
            raise  # other packages are those of extras
"""
STARTED = "import sys; print('trackside.run' in sys.modules); sys.exit(3)"
TRAINING = """
import multiprocessing, os, sys, trackside

def train(name):
    trackside.init(name).push(loss=0.25)
    sys.exit(3)

if __name__ == "__main__":
    trackside.init("raises").push(step=1, loss=0.5)
    child = os.fork()
    if child == 0:
        trackside.init("forked").push(loss=0.125)
        sys.exit(0)
    os.waitpid(child, 0)
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=train, args=(method,))
        process.start()
        process.join()
    raise ZeroDivisionError("the learning rate")
"""
ENDS = {"raises": "failed", "forked": "finished", "fork": "failed", "spawn": "failed"}


def started(*arguments: str, **options: Any) -> Any:
    """Start a command of this Python by a fork server, which replaces a private method of `subprocess.Popen`."""
    command = [sys.executable, *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    modules = fork_server.preloaded(command)
    return fork_server.ForkedProcess(command, modules, ends_with_parent=signal.SIGTERM, **streams)


def printed(*arguments: str, status: int = 0) -> str:
    """Return what a command of this Python prints, which writes no error."""
    with started(*arguments) as process:
        output, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, errors) == (status, ""), errors
    return str(output)


def every_module_is_imported() -> None:
    names = [
        ".".join(path.relative_to(root).with_suffix("").parts)
        for root in (ROOT / "client", ROOT / "daemon")
        for path in root.rglob("*.py")
        if path.stem != "__main__"
    ]
    printed("-c", IMPORTS, ",".join(fork_server.LARGE), *names, "trackside_daemon")


def processes_are_forked_or_executed() -> None:
    assert printed("-c", STARTED, status=3) == f"{fork_server.FORKS}\n"
    fork_server.FORKS = False
    assert printed("-c", STARTED, status=3) == "False\n"


def the_command_has_help() -> None:
    for command in ((), ("runs",)):
        assert "--help" in printed("-m", "trackside_daemon", *command, "--help")


def pushes_and_ends_arrive(place: Path) -> None:
    script = place / "train.py"
    script.write_text(TRAINING, encoding="utf-8")
    endpoint = f"ipc://{place}/push.sock"
    flags = (f"--push.endpoint={endpoint}", "--web.listen-address=127.0.0.1:0", f"--storage.path={place}/history")
    daemon = started("-m", "trackside_daemon", "daemon", *flags, stdout=subprocess.DEVNULL)
    try:
        log = ""
        while not (serves := re.search(r"serves (http://\S+)", log)):
            line = daemon.stderr.readline()
            assert line, log
            log += line
        environ = {**os.environ, "TRACKSIDE_ENDPOINT": endpoint, "TRACKSIDE_SPOOL": f"{place}/spool"}
        ran = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, check=False)
        assert ran.returncode == 1, ran.stderr
        assert ran.stderr.splitlines()[-1] == "ZeroDivisionError: the learning rate", ran.stderr
        token = (place / "push.token").read_text(encoding="utf-8").strip()
        until = time.monotonic() + DEADLINE
        while (states := {one["name"]: one["state"] for one in runs(serves[1], token)}) != ENDS:
            assert time.monotonic() < until, states
            time.sleep(0.05)
        losses = {one["name"]: one["loss"] for one in runs(serves[1], token)}
        assert losses == {"raises": 0.5, "forked": 0.125, "fork": 0.25, "spawn": 0.25}
    finally:
        daemon.terminate()
        errors = daemon.communicate(timeout=DEADLINE)[1]
    assert daemon.returncode == 0, errors


def runs(url: str, token: str) -> list[dict[str, Any]]:
    asked = urllib.request.Request(f"{url}/api/v1/runs", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=DEADLINE) as answer:
        return list(json.load(answer)["runs"])


if __name__ == "__main__":
    every_module_is_imported()
    the_command_has_help()
    pushes_and_ends_arrive(Path(sys.argv[1]))
    processes_are_forked_or_executed()
