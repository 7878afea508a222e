"""`trackside demo` as the real command: what it says, how it ends, and that nothing stays behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, clean_environ, command, eventually

from trackside_daemon.demo import troubles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processes import Daemon

SUMMARY = re.compile(
    r"(?P<steps>\d+) steps and (?P<tokens>[\d,]+) tokens in \d+ s; last loss (?P<loss>[\d.]+);"
    r" (?P<pushes>\d+) pushes, (?P<dropped>\d+) values dropped, [\d.]+ s of CPU for sending them\."
)
AS_ROOT = re.compile(r".*running as root.*\n")
"""What the daemon warns of wherever these tests run as root."""


class Demo:
    """The command, in places of its own.

    Args:
        place: Where it takes pushes.
        address: Where it serves; port 0 is one that is free.
        flags: Of the command.
    """

    def __init__(self, place: Path, *flags: str, address: str = "127.0.0.1:0") -> None:
        self.place = place
        environ = {
            "TRACKSIDE_WEB__LISTEN_ADDRESS": address,
            "TRACKSIDE_PUSH__ENDPOINT": f"ipc://{place}/push.sock",
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            command("demo", *flags),
            env=clean_environ(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._printed = ""

    def read_until(self, text: str, patience: float = DEADLINE) -> None:
        """Read what it prints until a line has *text*, for so many seconds at most."""
        assert self.process.stdout is not None
        killer = threading.Timer(patience, self.process.kill)
        killer.start()
        for line in self.process.stdout:
            self._printed += line
            if text in line:
                killer.cancel()
                return
        pytest.fail(f"it never said {text!r}, but: {self._printed}")

    def end(self) -> tuple[int, str, str]:
        """Wait for its end; the exit status, all that it printed, and what it complained of."""
        printed, complaints = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, self._printed + printed, AS_ROOT.sub("", complaints)

    def processes(self) -> list[int]:
        """It and what it started, as far as they still run."""
        mark = f"TRACKSIDE_PUSH__ENDPOINT=ipc://{self.place}/push.sock".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)]

    def left_behind(self) -> list[str]:
        """Files beside the lock, which stays."""
        return [path.name for path in self.place.iterdir() if path.name != "push.sock.lock"]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture
def start_demo(place: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def start(*flags: str, **options: str) -> Demo:
        started.append(Demo(place, *flags, **options))
        return started[-1]

    yield start
    for demo in started:
        demo.process.kill()
        demo.process.wait(DEADLINE)
        for stream in (demo.process.stdout, demo.process.stderr):
            assert stream is not None
            stream.close()
        eventually(lambda demo=demo: not demo.processes())  # type: ignore[misc]


def test_it_says_where_to_look_and_sums_up(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo("--steps", "30")
    status, printed, complaints = demo.end()
    assert (status, complaints) == (0, "")
    summary = SUMMARY.search(printed)
    assert summary is not None, printed
    assert summary["steps"] == summary["pushes"] == "30"
    assert summary["dropped"] == "0"
    assert int(summary["tokens"].replace(",", "")) % 30 == 0
    assert 0 < float(summary["loss"]) < 10
    dashboard = re.search(r"http://(127\.0\.0\.1:\d+)/#token=[\w-]{32}\n", printed)
    assert dashboard is not None, printed
    assert f"http://{dashboard[1]}/metrics" in printed
    assert f'targets: ["{dashboard[1]}"]' in printed
    assert demo.processes() == []
    assert demo.left_behind() == []


def test_ctrl_c_in_the_middle_is_a_good_end(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo()
    demo.read_until("ms a step")
    assert len(demo.processes()) >= 3
    demo.process.send_signal(signal.SIGINT)
    status, printed, complaints = demo.end()
    assert (status, complaints) == (0, "")
    summary = SUMMARY.search(printed)
    assert summary is not None, printed
    assert int(summary["steps"]) > 0
    assert demo.processes() == []
    assert demo.left_behind() == []


def test_ctrl_c_before_the_first_step_is_a_good_end_too(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo()
    demo.read_until("Ctrl-C ends it")
    demo.process.send_signal(signal.SIGINT)
    status, printed, complaints = demo.end()
    assert (status, complaints) == (0, "")
    assert re.search(r"before the first step|last loss", printed)
    assert demo.processes() == []
    assert demo.left_behind() == []


def test_when_it_is_killed_nothing_runs_on(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo()
    demo.read_until("ms a step")
    os.kill(demo.process.pid, signal.SIGKILL)
    demo.process.wait(DEADLINE)
    eventually(lambda: not demo.processes())
    assert demo.left_behind() == []


def test_a_port_that_another_daemon_has_is_one_line(daemon: Daemon, start_demo: Callable[..., Demo]) -> None:
    address = daemon.url.removeprefix("http://")
    status, printed, complaints = start_demo("--steps", "5", address=address).end()
    assert (status, printed) == (2, "")
    assert re.fullmatch(rf"trackside: web\.listen-address: {re.escape(address)} is taken by [^\n]+\n", complaints)
    assert f"(pid {daemon.process.pid})" in complaints
    assert "TRACKSIDE_WEB__LISTEN_ADDRESS=127.0.0.1:" in complaints


def test_a_port_where_nobody_answers_is_one_line(start_demo: Callable[..., Demo]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        demo = start_demo("--steps", "5", address=f"127.0.0.1:{listener.getsockname()[1]}")
        status, printed, complaints = demo.end()
    assert (status, printed, complaints.count("\n")) == (2, "", 1)
    assert f"(pid {os.getpid()})" in complaints


def test_a_push_socket_that_another_daemon_has_is_one_line(daemon: Daemon, start_demo: Callable[..., Demo]) -> None:
    status, printed, complaints = start_demo("--steps", "5").end()
    assert (status, printed, complaints.count("\n")) == (2, "", 1)
    assert f"another trackside daemon listens there (pid {daemon.process.pid})" in complaints


TROUBLES = {
    "nan": "NonFinite (critical)",
    "spike": "LossSpike (warning)",
    "stall": "TrainingStalled (warning)",
    "leak": "HostMemoryLeak (warning)",
    "straggler": "StragglerRank (warning)",
    "crash": "TrainingProcessDied (critical)",
}


def test_every_trouble_is_told(start_demo: Callable[..., Demo], count: Callable[[int, int], int]) -> None:
    for trouble in list(TROUBLES)[: count(1, len(TROUBLES))]:
        demo = start_demo("--trouble", trouble, "--after", "1")
        demo.read_until("After 1 s of training it goes wrong: ")
        demo.read_until("Now it goes wrong: ")
        demo.read_until(f"  {TROUBLES[trouble]} fires, ", 5 * DEADLINE)  # a straggler is slow in 30 windows of 20 steps
        demo.read_until("trackside alerts show ")
        demo.process.send_signal(signal.SIGINT)
        status, _, complaints = demo.end()
        assert (status, complaints) == (0, ""), trouble
        assert demo.processes() == []
        assert demo.left_behind() == []


def test_all_troubles_are_known() -> None:
    assert TROUBLES.keys() == troubles.TROUBLES.keys()


def test_a_trouble_that_there_is_not_is_one_line(start_demo: Callable[..., Demo]) -> None:
    status, printed, complaints = start_demo("--trouble", "fire").end()
    assert (status, printed) == (2, "")
    assert complaints == "trackside: --trouble fire: there are nan, spike, stall, leak, straggler, crash\n"
