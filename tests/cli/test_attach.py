"""trackside attach: a run on behalf of a process, and code inside of one whose Python accepts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, clean_environ, command, eventually, start
from processes import run as run_process

import trackside_daemon.cli.attach.target as target_module
from trackside_daemon.cli.attach.injection import InjectionError, kernel_view, run_inside, stacks_inside
from trackside_daemon.cli.attach.target import AttachedProcess, read_target
from trackside_daemon.cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processes import Daemon

SLEEPING = "import sys; print('runs', flush=True); sys.stdin.read(); sys.exit(3)"
ACCEPTING = """
import signal, sys
def accept(*_):
    exec(compile(open(sys.argv[1]).read(), "code", "exec"), {})  # as sys.remote_exec does between two instructions
signal.signal(signal.SIGUSR1, accept)
print("runs", flush=True)
while True:
    signal.pause()
"""
"""A process of any Python that behaves as one of 3.14 does, if the interpreter below sends it the code."""

SENDING = """#!/bin/sh
# python -I -c CODE PID SCRIPT
cp "$5" {there} && kill -USR1 "$4" && echo sent
"""


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", SLEEPING], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_program_that_is_only_named_like_python_has_no_version(tmp_path: Path) -> None:
    program = tmp_path / "python-like"
    program.write_text("#!/bin/sh\necho usage: none")
    program.chmod(0o755)
    assert target_module._version(str(program)) == ()


def test_a_process_has_a_run_until_it_ends(daemon: Daemon, sleeping: subprocess.Popen[str]) -> None:
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint, "PATH": "/nowhere"})  # without a py-spy
    attached = start(command("attach", str(sleeping.pid), "--name=old"), env=environ, stdout=subprocess.PIPE, text=True)
    [run] = eventually(lambda: daemon.api("runs").json()["runs"])
    assert run["name"] == "old"
    processes = eventually(lambda: daemon.api("processes").json()["processes"])
    assert [(one["pid"], one["run"]) for one in processes] == [(sleeping.pid, "old")]
    eventually(lambda: any(f'pid="{sleeping.pid}"' in series for series in daemon.series()))
    [rank] = daemon.api(f"runs/{run['id']}/stacks").json()["ranks"]
    assert list(rank["threads"]) == [f"python {sleeping.pid}"]
    again = run_process(command("attach", str(sleeping.pid)), env=environ)
    assert (again.returncode, again.stderr) == (
        2,
        f"trackside: process {sleeping.pid} belongs to run old already: trackside show old\n",
    )
    sleeping.communicate("")
    printed, _ = attached.communicate(timeout=DEADLINE)
    assert attached.returncode == 0
    lines = printed.splitlines()
    assert lines[0] == f"run old: process {sleeping.pid}, until it ends; Ctrl-C stops this command alone"
    version = ".".join(map(str, sys.version_info[:2]))
    assert (
        f"steps and losses: not possible: it runs Python {version}, and this needs Python 3.14" in printed
        or version >= "3.14"
    )
    run = eventually(lambda: (one := daemon.api(f"runs/{run['id']}").json())["ended"] and one)
    assert (run["state"], run["cause"]) in {
        ("failed", "exit status 3"),
        ("stopped", "its exit status is unknown to trackside attach"),
    }
    attempt = run["attempt_list"][0]
    assert attempt["command"][1:] == ["-c", SLEEPING]
    assert attempt["directory"] == str(Path.cwd())


def test_what_cannot_be_attached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="there is no process 4194304"):
        read_target(4194304)
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(CommandError, match="run trackside attach as that user"):
        read_target(os.getpid())


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (("python3", "-u", "-X", "dev", "dir/train.py", "x.py"), "dir/train.py"),
        (("python3", "-m", "package.train"), "train"),
        (("python3", "-c", "1"), "python3"),
        (("/bin/trainer", "--fast"), "trainer"),
    ],
)
def test_the_script_of_a_process(words: tuple[str, ...], script: str) -> None:
    version = (3, 11) if words[0] == "python3" else ()
    assert AttachedProcess(1, 1, words, "/", {}, "/bin/x", version).script == script


def test_code_runs_inside_of_a_process_when_its_python_accepts_it(tmp_path: Path) -> None:
    """Python 3.14 is not everywhere: the process and its interpreter are stand-ins for its sys.remote_exec."""
    there, program = tmp_path / "code.py", tmp_path / "python3.14"
    program.write_text(SENDING.format(there=there))
    program.chmod(0o700)
    process = subprocess.Popen([sys.executable, "-c", ACCEPTING, str(there)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        target = AttachedProcess(process.pid, 1, ("python3.14", "train.py"), "/", {}, str(program), (3, 14))
        assert run_inside(target, "__import__('os').getpid()") == process.pid
        [(name, calls)] = stacks_inside(target).items()
        assert name.startswith("MainThread ")
        assert any(call.endswith(" <module>") for call in calls)
        with pytest.raises(InjectionError, match="ZeroDivisionError: division by zero"):
            run_inside(target, "1 / 0")
        with pytest.raises(InjectionError, match=re.escape("it runs Python 3.11, and this needs Python 3.14")):
            run_inside(target._replace(version=(3, 11)), "1")
        program.write_text("#!/bin/sh\nexit 1\n")
        with pytest.raises(InjectionError, match="accepts no code from outside"):
            run_inside(target, "1")
    finally:
        process.kill()
        process.communicate()


def test_the_kernel_s_view_has_each_thread() -> None:
    threads = kernel_view(target_module.PROC / str(os.getpid()))
    assert any(name.endswith(f" {os.getpid()}") for name in threads)
    assert all(line.startswith("state ") for lines in threads.values() for line in lines)


def test_ctrl_c_stops_the_command_alone(daemon: Daemon, sleeping: subprocess.Popen[str]) -> None:
    environ = clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint})
    attached = start(command("attach", str(sleeping.pid)), env=environ, stdout=subprocess.PIPE, text=True)
    eventually(lambda: daemon.api("runs").json()["runs"])
    attached.send_signal(signal.SIGINT)
    attached.communicate(timeout=DEADLINE)
    run = eventually(lambda: (one := daemon.api("runs").json()["runs"][0])["ended"] and one)
    assert (run["state"], sleeping.poll()) == ("stopped", None)
