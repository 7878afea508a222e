"""`trackside demo` as the real command: its output, its end, and that no process or file remains."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from certificate_authorities import hashed
from processes import DEADLINE, clean_environ, command, eventually, http, run_here
from processes import start as start_process

from trackside_daemon.demo import troubles
from trackside_daemon.model.families import gpu
from trackside_daemon.model.families import training as families
from trackside_daemon.model.metric import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processes import Daemon

SUMMARY = re.compile(
    r"(?P<steps>\d+) steps(?: of (?P<ranks>\d+) ranks)? and (?P<tokens>[\d,]+) tokens in \d+ s; last loss (?P<loss>[\d.]+);"
    r" (?P<pushes>\d+) pushes, (?P<dropped>\d+) values dropped, sending took [\d.e-]+ % of a CPU core per rank\."
)
AS_ROOT = re.compile(r".*running as root.*\n")
"""What the daemon warns of wherever these tests run as root."""


class Demo:
    """The command, in separate directories.

    Args:
        place: The directory of the push socket.
        address: The address for the pages; port 0 is a free one.
        flags: The flags of the command.
        more: Further variables.
    """

    def __init__(self, place: Path, *flags: str, address: str = "127.0.0.1:0", **more: str) -> None:
        self.place = place
        environ = {
            "TRACKSIDE_WEB__LISTEN_ADDRESS": address,
            "TRACKSIDE_PUSH__ENDPOINT": f"ipc://{place}/push.sock",
            "OMP_NUM_THREADS": "1",
            **more,
        }
        pipe = subprocess.PIPE
        self.process = start_process(
            command("demo", *flags), env=clean_environ(environ), stdout=pipe, stderr=pipe, text=True
        )
        self._printed = ""

    def read_until(self, text: str, patience: float = DEADLINE) -> None:
        """Read the output until a line has *text*, for *patience* seconds at most."""
        assert self.process.stdout is not None
        killer = threading.Timer(patience, self.process.kill)
        killer.start()
        for line in self.process.stdout:
            self._printed += line
            if text in line:
                killer.cancel()
                return
        pytest.fail(f"it never said {text!r}, but: {self._printed}")

    def address(self) -> str:
        """Return the address that the demo prints for its daemon."""
        self.read_until("/metrics\n")
        found = re.search(r"(http://\S+)/metrics", self._printed)
        assert found is not None
        return found[1]

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit status, all output, and the error messages."""
        printed, complaints = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, self._printed + printed, AS_ROOT.sub("", complaints)

    def processes(self) -> list[int]:
        """Return the processes that the demo started, as far as they are still running."""
        mark = f"TRACKSIDE_PUSH__ENDPOINT=ipc://{self.place}/push.sock".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)]

    def left_behind(self) -> list[str]:
        """Return the names of files other than the lock and the directories of profiles and of kept pushes, which stay."""
        return [
            path.name
            for path in self.place.iterdir()
            if path.name not in {"push.sock.lock", "push.kineto", "push.kept"}
        ]


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


def test_it_prints_the_address_and_a_summary(start_demo: Callable[..., Demo]) -> None:
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


def test_at_a_terminal_the_link_is_printed_once_and_simulated_ranks_make_their_steps_together(place: Path) -> None:
    ours, theirs = os.openpty()
    environ = {"TRACKSIDE_WEB__LISTEN_ADDRESS": "127.0.0.1:0", "TRACKSIDE_PUSH__ENDPOINT": f"ipc://{place}/push.sock"}
    flags = ("--ranks", "3", "--steps", "5")
    with start_process(command("demo", *flags), env=clean_environ(environ), stdout=theirs) as process:
        os.close(theirs)
        printed = b""
        with suppress(OSError):  # EIO, at the end
            while piece := os.read(ours, 4096):
                printed += piece
        os.close(ours)
        assert process.wait(DEADLINE) == 0
    assert printed.count(b"#token=") == 1
    summary = SUMMARY.search(printed.decode())
    assert summary is not None, printed
    assert (summary["steps"], summary["ranks"], summary["pushes"], summary["dropped"]) == ("5", "3", "15", "0")
    assert int(summary["tokens"].replace(",", "")) % 15 == 0
    assert b"3 GPUs are simulated" in printed


def test_a_web_configuration_is_the_other_daemons_and_a_flag_sets_how_many_gpus_have_faults(
    start_demo: Callable[..., Demo], tmp_path: Path
) -> None:
    file = tmp_path / "web.yml"
    file.write_text(json.dumps({"basic_auth_users": {"ada": hashed("lovelace")}}))
    given = {"TRACKSIDE_WEB__CONFIG__FILE": str(file)}
    ill = {"TRACKSIDE_COLLECTOR__GPU__TROUBLE": "hot:5,throttled:6,xid:7"}
    status, printed, complaints = start_demo("--ranks", "1", "--gpus", "8", "--steps", "1", **given, **ill).end()
    assert (status, "8 GPUs are simulated" in printed) == (0, True), complaints
    assert SUMMARY.search(printed) is not None, printed
    status, printed, complaints = start_demo("--ranks", "1", "--steps", "1", **ill).end()
    assert (status, printed, complaints.count("\n")) == (2, "", 1)
    status, printed, complaints = start_demo("--ranks", "1", address="0.0.0.0:0", **given).end()
    assert (status, printed, complaints.count("\n")) == (2, "", 1)
    assert "TRACKSIDE_WEB__CONFIG__FILE would not protect it" in complaints


def test_ctrl_c_in_the_middle_is_a_good_end(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo()
    demo.read_until("ms per step")
    assert len(demo.processes()) >= 2
    demo.process.send_signal(signal.SIGINT)
    status, printed, complaints = demo.end()
    assert (status, complaints) == (0, "")
    summary = SUMMARY.search(printed)
    assert summary is not None, printed
    assert int(summary["steps"]) > 0
    assert demo.processes() == []
    assert demo.left_behind() == []


@pytest.mark.usefixtures("only_soak")
def test_ctrl_c_before_the_first_step_is_a_good_end_too(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo()
    demo.read_until("Press Ctrl-C to end")
    demo.process.send_signal(signal.SIGINT)
    status, printed, complaints = demo.end()
    assert (status, complaints) == (0, "")
    assert re.search(r"before the first step|last loss", printed)
    assert demo.processes() == []
    assert demo.left_behind() == []


def test_when_it_is_killed_nothing_runs_on(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo()
    demo.read_until("ms per step")
    os.kill(demo.process.pid, signal.SIGKILL)
    demo.process.wait(DEADLINE)
    eventually(lambda: not demo.processes())
    assert demo.left_behind() == []


def test_a_port_and_a_push_socket_that_another_has_are_one_line(
    daemon: Daemon, start_demo: Callable[..., Demo]
) -> None:
    address = daemon.url.removeprefix("http://")
    status, printed, complaints = start_demo("--steps", "5", address=address).end()
    assert (status, printed) == (2, "")
    assert re.fullmatch(rf"trackside: web\.listen-address: {re.escape(address)} is in use by [^\n]+\n", complaints)
    assert f"(pid {daemon.process.pid})" in complaints
    assert "TRACKSIDE_WEB__LISTEN_ADDRESS=127.0.0.1:" in complaints
    status, printed, complaints = start_demo("--steps", "5").end()
    assert (status, printed, complaints.count("\n")) == (2, "", 1)
    assert f"another trackside daemon listens there (pid {daemon.process.pid})" in complaints


TROUBLES = {
    "nan": "NonFinite (critical)",
    "spike": "LossSpike (info)",
    "stall": "TrainingStalled (warning)",
    "leak": "HostMemoryLeak (warning)",
    "straggler": "StragglerRank (warning)",
    "crash": "TrainingProcessDied (critical)",
}


@pytest.mark.parametrize(
    "simulated", [(), pytest.param(("--ranks", "2"), marks=pytest.mark.only_soak)], ids=["real", "simulated"]
)
def test_every_trouble_is_notified(
    start_demo: Callable[..., Demo], count: Callable[[int, int], int], simulated: tuple[str, ...]
) -> None:
    for trouble in list(TROUBLES)[: count(1, len(TROUBLES))]:
        demo = start_demo("--trouble", trouble, "--after", "1", *simulated)
        demo.read_until("After 1 s of training it goes wrong")
        demo.read_until("Now it goes wrong")
        demo.read_until(f"  Alert {TROUBLES[trouble]}, ", 5 * DEADLINE)  # a straggler is slow in 30 windows of 20 steps
        demo.read_until("trackside alerts show ")
        demo.process.send_signal(signal.SIGINT)
        status, _, complaints = demo.end()
        assert (status, complaints) == (0, ""), trouble
        assert demo.processes() == []
        assert demo.left_behind() == []


def test_all_troubles_are_known() -> None:
    assert TROUBLES.keys() == troubles.TROUBLES.keys()


RANKS = 2
OF_A_TRAINING = {metric.name for metric in vars(families).values() if isinstance(metric, Metric)}
OF_A_TRAINING -= {metric.name for metric, _ in families.MODEL_SERIES.values()}
OF_A_TRAINING |= {metric.name for one in (families.KNOWN, families.ROOM) for metric in one.values()}
"""Without those of a run that has ended, of a sharded model, of series over a limit, and of checkpoints in files."""
OF_A_TRAINING -= {families.ENDED_AT.name, families.KNOWN["grad_norm_local_squared"].name, families.SERIES_REJECTED.name}
OF_A_TRAINING -= {families.STORED_CHECKPOINTS.name, families.LAST_GOOD_CHECKPOINT.name, families.LAST_GOOD_STEP.name}
OF_A_TRAINING -= {families.NEXT_CHECKPOINT_BYTES.name, families.CHECKPOINT_ROOM.name}
PHASES = {"data", "forward", "backward", "optimizer", "sync", "eval", "checkpoint", "other"}


def series_of(page: str, family: str) -> dict[str, float]:
    """Return the series of a family, including those of a histogram, and their values."""
    found = re.findall(rf"^({family}(?:_count|_sum|_bucket)?(?:{{.*}})?) (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


@pytest.mark.usefixtures("only_soak")
def test_simulated_ranks_fill_every_family_of_a_training(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo("--ranks", str(RANKS), "--gpus", "3", TRACKSIDE_COST__GPU_HOUR="*=2")
    address = demo.address()
    page = ""

    def missing() -> set[str]:
        nonlocal page
        page = http.get(f"{address}/metrics").text
        shown = set(re.findall(r"^(\w+?)(?:_count|_sum|_bucket)?[{ ]", page, re.MULTILINE))
        phases = set(re.findall(rf'^{families.PHASE_SECONDS.name}{{phase="(\w+)"', page, re.MULTILINE))
        return (OF_A_TRAINING - shown) | (PHASES - phases)

    demo.read_until("ms per step")
    eventually(lambda: not missing() or demo.process.poll())
    assert missing() == set()
    joined = re.findall(rf'^{gpu.RANK_INFO.name}{{gpu="(\d)",rank="(\d)",run="demo"', page, re.MULTILINE)
    assert sorted(joined) == [(str(rank), str(rank)) for rank in range(RANKS)]
    assert len(series_of(page, "trackside_gpu_info")) == 3
    assert set(series_of(page, "trackside_dataloader_workers").values()) == {2.0}
    assert sum(series_of(page, "trackside_dataloader_deaths_total").values()) == 0
    demo.process.send_signal(signal.SIGINT)
    status, printed, complaints = demo.end()
    assert (status, complaints) == (0, "")
    assert "2 simulated ranks train" in printed
    assert "3 GPUs are simulated" in printed
    assert demo.processes() == []
    assert demo.left_behind() == []


def test_a_simulated_rank_that_is_killed_ends_the_demo(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo("--ranks", "2")
    demo.read_until("ms per step")
    # Its workers have its environment too, and are younger.
    rank = min(pid for pid in demo.processes() if b"\0RANK=1\0" in _read(Path(f"/proc/{pid}/environ")))
    os.kill(rank, signal.SIGKILL)
    status, printed, complaints = demo.end()
    assert status == 1
    assert "rank 1 of run demo" in complaints
    assert "was killed by SIGKILL" in complaints
    assert SUMMARY.search(printed) is not None
    eventually(lambda: not demo.processes())
    assert demo.left_behind() == []


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--ranks", "0"), "--ranks 0: must be from 1 to 64"),
        (("--gpus", "65"), "--gpus 65: must be from 1 to 64"),
        (("--gpus", "1", "--ranks", "4"), "--gpus 1: each of the 4 ranks needs one; use --gpus 4"),
        (("--ranks", "1", "--trouble", "stall"), "--ranks 1: --trouble stall needs at least 2"),
        (("--trouble", "fire"), "--trouble fire: must be one of nan, spike, stall, leak, straggler, crash"),
    ],
)
def test_what_cannot_be_shown_is_one_line(flags: tuple[str, ...], complaint: str) -> None:
    done = run_here("demo", *flags)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"trackside: {complaint}\n")
