"""`trackside run` as the real command: what it leaves alone, what it says, how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE, clean_environ, command, eventually

from trackside_daemon.commands import run_daemon
from trackside_daemon.config import load
from trackside_daemon.web.address import AddressError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from processes import Daemon

Process = subprocess.Popen[str]

TRAINING = """
import math, sys, trackside
run = trackside.init("gpt-small", total_steps=60)
for step in range(1, 61):
    run.push(step=step, loss=math.nan if step == 60 else 1 + 1 / step, tokens=512)
print("said", sys.stdin.readline().strip(), flush=True)
print("complained", file=sys.stderr, flush=True)
sys.exit(3)
"""
WAITING = """
import sys, trackside
trackside.init(sys.argv[1])
for step, _ in enumerate(sys.stdin):
    trackside.push(step=step, loss=1.0)
    print(step, flush=True)
"""
"""A step a line, until there are no more."""

COUNTING = """
import signal, sys
came = {}
def count(number, _):
    came[number] = came.get(number, 0) + 1
    print(signal.Signals(number).name, came[number], flush=True)
for number in (signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, count)
print("counts", flush=True)
while True:
    signal.pause()
"""
RANKS = """
import os, signal, sys, time, torch.distributed as dist, trackside
dist.init_process_group("gloo")
run = trackside.init("ranks")
for step in range(20):
    run.push(step=step, loss=1.0)
time.sleep(0.5)  # what is pushed in the last quarter of a second before SIGKILL is lost
dist.barrier()
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)  # until torchrun ends it
"""


class Started:
    """The command, in places of its own."""

    def __init__(self, place: Path, spool: Path) -> None:
        self.place = place
        self.history = place / "history"
        self.history.mkdir(exist_ok=True)
        self.environ = clean_environ(
            {
                "TRACKSIDE_PUSH__ENDPOINT": f"ipc://{place}/push.sock",
                "TRACKSIDE_WEB__LISTEN_ADDRESS": "127.0.0.1:0",
                "TRACKSIDE_STORAGE__PATH": str(self.history),
                "TRACKSIDE_SPOOL": str(spool),
                "OMP_NUM_THREADS": "1",
            }
        )
        self._ends = ExitStack()

    def start(self, *arguments: str, flags: Sequence[str] = (), **environ: str) -> Process:
        """Start it, in a process group of its own as a shell does."""
        process = subprocess.Popen(
            command("run", *flags, "--", *arguments),
            env={**self.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._ends.callback(_end, process)
        return process

    def run(self, *arguments: str, said: str = "", flags: Sequence[str] = (), **environ: str) -> tuple[int, str, str]:
        """The same, to its end: status, what was printed, what was complained of."""
        process = self.start(*arguments, flags=flags, **environ)
        printed, complaints = process.communicate(said, timeout=2 * DEADLINE)
        return process.returncode, printed, complaints

    def ours(self) -> list[str]:
        """What runs with these places, but for this test."""
        mark = f"TRACKSIDE_PUSH__ENDPOINT=ipc://{self.place}/push.sock".encode()
        return [
            _text(path.with_name("cmdline")) for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)
        ]

    def daemon(self) -> int:
        """The daemon's pid."""
        return int((self.place / "push.sock.lock").read_text())

    def close(self) -> None:
        """End all."""
        self._ends.close()
        eventually(lambda: not self.ours())


def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(DEADLINE)
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        with suppress(BrokenPipeError):
            stream.close()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _text(path: Path) -> str:
    return _read(path).replace(b"\0", b" ").decode()


def step(process: Process) -> str:
    """Have a `WAITING` one make a step."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("on\n")
    process.stdin.flush()
    return process.stdout.readline()


@pytest.fixture
def started(place: Path, spool: Path) -> Iterator[Started]:
    made = Started(place, spool)
    yield made
    made.close()


def test_the_command_is_left_alone_and_summed_up(started: Started, spool: Path) -> None:
    status, printed, complaints = started.run(sys.executable, "-c", TRAINING, said="hello\n")
    assert (status, printed) == (3, "said hello\n")
    first, *rest = complaints.splitlines()
    assert re.fullmatch(r"trackside: http://127\.0\.0\.1:\d+", first)  # no terminal, no token
    assert rest[0] == "complained"
    assert started.ours() == []
    shown = subprocess.run(
        command("show", "gpt-small", "--json"), env=started.environ, capture_output=True, text=True, check=True
    )
    run: dict[str, Any] = json.loads(shown.stdout)
    spans = [one["last_time"] - one["first_time"] for one in run["metrics"] if one["key"] == "loss"]
    assert (run["state"], run["cause"], run["step"], run["loss"]) == ("failed", "exit status 3", 60, "nan")
    found = re.fullmatch(
        r"trackside: gpt-small: failed \(exit status 3\), step 60 after [\d.]+s, loss nan, (\S+) ms a step, (\S+) tokens a second",
        rest[1],
    )
    assert found is not None, rest
    assert float(found[1]) == pytest.approx(spans[0] / 59 * 1000, rel=0.01)
    assert float(found[2].replace(",", "")) == pytest.approx(512 * 59 / spans[0], abs=1)
    fired = {one["alert"] for one in run["alerts"] if one["severity"] != "info"}
    assert "NonFinite" in fired
    assert re.match(r"trackside: gpt-small: alerts: .*NonFinite \(critical\)", rest[2])
    assert rest[3:] == ["trackside: more: trackside show gpt-small"]
    assert [path for path in spool.rglob("*") if path.stat().st_size and path.is_file()] == []
    assert {path.name for path in started.place.iterdir() if path.is_file()} == {"push.sock.lock", "push.users"}
    assert (started.history / "daemon.log").stat().st_mode & 0o777 == 0o600


def test_signals_reach_the_command_once(started: Started, daemon: Daemon) -> None:
    """At a terminal, with a daemon that is there already."""
    pid, terminal = pty.fork()
    if not pid:
        os.execve(sys.executable, command("run", "--", sys.executable, "-c", COUNTING), started.environ)
    printed = b""

    def read_until(text: str) -> None:
        nonlocal printed
        while text.encode() not in printed:
            printed += os.read(terminal, 1024)

    read_until("counts")
    assert re.search(rf"trackside: the daemon at {daemon.url}/#token=\S+ is there already\r", printed.decode())
    for send, seen in (
        (lambda: os.write(terminal, b"\x03"), "SIGINT 1"),
        (lambda: os.kill(pid, signal.SIGINT), "SIGINT 2"),
        (lambda: os.killpg(pid, signal.SIGUSR1), "SIGUSR1 1"),
        (lambda: os.kill(pid, signal.SIGUSR1), "SIGUSR1 2"),
        (lambda: os.write(terminal, b"\x03"), "SIGINT 3"),
    ):
        send()
        read_until(seen)
    os.kill(pid, signal.SIGTERM)
    with suppress(OSError):  # EIO, at the end
        read_until("never")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGTERM
    assert re.findall(r"SIG\w+ \d", printed.decode()) == ["SIGINT 1", "SIGINT 2", "SIGUSR1 1", "SIGUSR1 2", "SIGINT 3"]
    assert b"the command has opened no run" in printed
    assert daemon.get("/-/ready").status_code == 200


def test_what_cannot_be_run_is_one_line(started: Started, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    assert started.run("no-such-program") == (127, "", "trackside: no-such-program: not found\n")
    assert started.run(str(tmp_path / "plain")) == (126, "", f"trackside: {tmp_path}/plain: not executable\n")
    status, printed, complaints = started.run()
    assert (status, printed, "COMMAND" in complaints) == (2, "", True)
    status, printed, complaints = started.run("true", flags=["--sample.interval=never"])
    assert (status, printed, complaints.count("\n")) == (2, "", 1)


def test_without_a_daemon_the_command_runs_all_the_same(started: Started, tmp_path: Path) -> None:
    missing = f"--storage.path={tmp_path}/none"
    status, printed, complaints = started.run("sh", "-c", "echo trains; kill -9 $$", flags=[missing])
    assert (status, printed, complaints.count("\n")) == (128 + signal.SIGKILL, "trains\n", 1)
    assert re.match(r"trackside: no daemon is beside the command: .*none: no such directory", complaints)
    elsewhere = {"TRACKSIDE_PUSH__ENDPOINT": "", "TRACKSIDE_ENDPOINT": "tcp://node1:21791"}
    status, printed, complaints = started.run("sh", "-c", "echo $TRACKSIDE_ENDPOINT", **elsewhere)
    assert (status, printed) == (0, "tcp://node1:21791\n")
    assert complaints.endswith("what is pushed goes to tcp://node1:21791, as $TRACKSIDE_ENDPOINT says\n")
    (started.history / "history.db").write_text("no database")
    status, printed, complaints = started.run("echo", "trains")
    assert (status, printed, complaints.count("\n")) == (0, "trains\n", 1)
    assert "history.db" in complaints


def test_commands_share_a_daemon_that_ends_with_the_last_and_may_die(started: Started, spool: Path) -> None:
    """The first is killed, and its command lives on, as that of nice does; then the daemon is."""
    first = started.start(sys.executable, "-c", WAITING, "first")
    assert step(first) == "0\n"
    daemon = started.daemon()
    second = started.start(sys.executable, "-c", WAITING, "second")
    assert step(second) == "0\n"
    os.kill(first.pid, signal.SIGKILL)
    assert step(first) == "1\n"
    assert first.stdin is not None
    first.stdin.close()
    _, complaints = second.communicate("on\n", timeout=DEADLINE)
    assert second.returncode == 0
    assert "is there already" in complaints
    assert "trackside: second: finished, step 1 " in complaints
    assert "first" not in complaints
    assert not Path(f"/proc/{daemon}").exists()
    third = started.start(sys.executable, "-c", WAITING, "third")
    assert step(third) == "0\n"
    eventually(lambda: "run third" in (started.history / "daemon.log").read_text())
    os.kill(started.daemon(), signal.SIGKILL)
    _, complaints = third.communicate("on\n" * 3, timeout=DEADLINE)
    assert third.returncode == 0
    assert "the daemon has ended by itself" in complaints
    assert f"with status -9; its log is {started.history}/daemon.log" in complaints
    assert "trackside: third: running, " in complaints  # as it was last written
    status, _, complaints = started.run(sys.executable, "-c", WAITING, "fourth", said="on\n")
    assert (status, "trackside: fourth: finished" in complaints) == (0, True)
    runs = subprocess.run(command("runs", "--json"), env=started.environ, capture_output=True, text=True, check=True)
    kept = {run["name"]: run["step"] for run in json.loads(runs.stdout)["runs"]}
    assert kept == {"first": 1, "second": 1, "third": 3, "fourth": 0}


def test_ranks_under_torchrun(started: Started, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    status, _, complaints = started.run(*torchrun, str(tmp_path / "train.py"))
    assert status == 1
    said = [line for line in complaints.splitlines() if line.startswith("trackside: ")]
    assert re.match(r"trackside: ranks: failed \(SIGKILL, SIGTERM\), step 19 after ", said[1]), complaints
    assert said[2] == "trackside: ranks: rank 0 stopped (SIGTERM), rank 1 failed (SIGKILL)"
    assert "TrainingProcessDied (critical)" in said[3]


def test_a_default_port_that_is_taken_is_another(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(address: str) -> Any:
        raise AddressError(f"web.listen-address: {address} is taken by python (pid 7); stop it, or use another port")

    monkeypatch.setattr(run_daemon, "listen", taken)
    monkeypatch.setenv("TRACKSIDE_PUSH__ENDPOINT", f"ipc://{place}/push.sock")
    monkeypatch.delenv("TRACKSIDE_WEB__LISTEN_ADDRESS", raising=False)
    listens = (["--web.listen-address=127.0.0.1:0"], " (127.0.0.1:21790 is taken by python (pid 7))")
    assert run_daemon.Place(load())._address() == listens
    monkeypatch.setenv("TRACKSIDE_WEB__LISTEN_ADDRESS", "127.0.0.1:9999")
    with pytest.raises(AddressError):
        run_daemon.Place(load())._address()
