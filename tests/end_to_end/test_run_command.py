"""`trackside run` as the real command: its effect on the training, its messages, and its end."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import psutil
import pytest
from processes import DEADLINE, clean_environ, command, eventually, run_here

from trackside.transport.orphaned_spool import orphaned_sessions
from trackside.wire import Bye, decode_body
from trackside_daemon.cli.run import command_daemon
from trackside_daemon.config.loading import load
from trackside_daemon.service.config import Config
from trackside_daemon.web.http.address import AddressError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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

UNSENT = """
import os, time, trackside
from pathlib import Path
def spooled():
    while not list(Path(os.environ["TRACKSIDE_SPOOL"]).glob("*.spool")):
        time.sleep(0.05)
trackside.push(step=0, loss=1.0)
"""
"""A step, which no daemon gets."""

KILLED = """
import os, time, trackside
from pathlib import Path
kept = Path(os.environ["TRACKSIDE_ENDPOINT"].removeprefix("ipc://")).with_suffix(".kept")
trackside.init("killed")
step = 0
while step < 100 or not list(kept.glob("*.spool")):
    trackside.push(step=step, loss=1.0)
    step += 1
    time.sleep(0.005)
time.sleep(0.05)
os.kill(os.getpid(), 9)
"""
"""Is killed with rows that no daemon has got, but a file of its own."""

INTERVAL = "--sample.interval=2s"

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
RAISING = """
import trackside
run = trackside.init("raises")
run.push(step=1, loss=1.0)
raise RuntimeError("CUDA out of memory")
"""
RANKS = """
import os, signal, sys, time, trackside
run = trackside.init("ranks")
for step in range(20):
    run.push(step=step, loss=1.0)
while os.environ["RANK"] == "1":
    if os.path.exists(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
signal.pause()  # until torchrun ends it
"""

CTRL_C_LAST = """
import os, signal
from trackside_daemon.cli.main import app
class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)  # when Python has given up its signal handlers
last = Last()
app(["run", "--", "sh", "-c", "kill -INT $$"])
"""
FAILING = """
from trackside_daemon.cli.run import command_daemon, session
from trackside_daemon.config.loading import load
from trackside_daemon.service.config import Config
def fails(*_):
    raise KeyError("odd")
starts, command_daemon.SharedDaemon._start = command_daemon.SharedDaemon._start, fails
ended = [session.run(["sh", "-c", "exit 5"], load(Config), [])]
command_daemon.SharedDaemon._start, session.CommandSummary.report = starts, fails
print([*ended, session.run(["sh", "-c", "exit 6"], load(Config), [])])
"""


class Started:
    """The command, in separate directories."""

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

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command about this history, whatever other daemons this machine has."""
        return run_here(*arguments, f"--storage.path={self.history}", environ=self.environ)

    def start(self, *arguments: str, flags: Sequence[str] = (), **environ: str) -> Process:
        """Start the command in a new process group, as a shell does."""
        process = processes.start(
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

    def at(self, terminal: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the command at a terminal, which becomes that of its session."""
        opening = ["sh", "-c", 'exec "$@" <>"$0" >&0 2>&0', terminal]
        process = subprocess.Popen(
            [*opening, *command("run", "--", *arguments)], env=self.environ, start_new_session=True
        )
        self._ends.callback(_killed, process)
        return process

    def run(self, *arguments: str, lines: str = "", flags: Sequence[str] = (), **environ: str) -> tuple[int, str, str]:
        """Run the command to its end; return its status, output and error messages."""
        process = self.start(*arguments, flags=flags, **environ)
        printed, complaints = process.communicate(lines, timeout=2 * DEADLINE)
        return process.returncode, printed, complaints

    def ours(self) -> list[str]:
        """Return the command lines of the processes with this environment, without this test."""
        mark = f"TRACKSIDE_PUSH__ENDPOINT=ipc://{self.place}/push.sock".encode()
        return [
            _text(path.with_name("cmdline")) for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)
        ]

    def daemon(self) -> int:
        """Return the daemon's pid."""
        return int((self.place / "push.sock.lock").read_text())

    def log(self) -> str:
        """Return the log of the daemons."""
        return (self.history / "daemon.log").read_text()

    def close(self) -> None:
        """End all."""
        self._ends.close()
        eventually(lambda: not self.ours())


class Terminal:
    """The other end of a terminal."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._printed = ""

    def until(self, text: str) -> str:
        """Read until the output contains *text*, or until the terminal closes if *text* is empty; return all output."""
        while not text or text not in self._printed:
            assert select.select([self.file], [], [], DEADLINE)[0], self._printed
            try:
                self._printed += os.read(self.file, 1024).decode()
            except OSError:  # EIO, at the end
                break
        return self._printed


def _killed(process: subprocess.Popen[Any]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(DEADLINE)


def _end(process: Process) -> None:
    _killed(process)
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
    status, printed, complaints = started.run(sys.executable, "-c", TRAINING, lines="hello\n")
    assert (status, printed) == (3, "said hello\n")
    first, *rest = complaints.splitlines()
    assert re.fullmatch(r"trackside: http://127\.0\.0\.1:\d+", first)  # no terminal, no token
    assert rest[0] == "complained"
    assert started.ours() == []
    shown = started.command("show", "gpt-small", "--json")
    run: dict[str, Any] = json.loads(shown.stdout)
    spans = [one["last_time"] - one["first_time"] for one in run["metrics"] if one["key"] == "loss"]
    assert (run["state"], run["cause"], run["step"], run["loss"]) == ("failed", "exit status 3", 60, "nan")
    found = re.fullmatch(
        r"trackside: gpt-small: failed \(exit status 3\), step 60 after [\d.]+ m?s, loss NaN, (\S+) ([mµ])s per step, (\S+) tokens per second",
        rest[1],
    )
    assert found is not None, rest
    assert float(found[1]) * {"m": 1e-3, "µ": 1e-6}[found[2]] == pytest.approx(spans[0] / 59, rel=0.05)
    assert float(found[3].replace(",", "")) == pytest.approx(512 * 59 / spans[0], rel=1e-3)
    fired = {one["alert"] for one in run["alerts"] if one["severity"] != "info"}
    assert "NonFinite" in fired
    assert re.match(r"trackside: gpt-small: alerts: .*NonFinite \(critical\)", rest[2])
    died = "rank 0 of run gpt-small, at step 60, died: exit status 3"
    assert rest[3:] == [
        f"trackside: gpt-small: {died}; trackside why {run['id']} has the advice",
        "trackside: details: trackside show gpt-small",
    ]
    assert [path for path in spool.rglob("*") if path.stat().st_size and path.is_file()] == []
    assert {path.name for path in started.place.iterdir() if path.is_file()} == {"push.sock.lock", "push.users"}
    assert (started.history / "daemon.log").stat().st_mode & 0o777 == 0o600


def test_an_exception_is_in_the_summary_and_in_the_history(started: Started) -> None:
    """The daemon ends right after the command, and nothing is lost by that."""
    status, _, complaints = started.run(sys.executable, "-c", RAISING, flags=["--console"])
    (kept,) = (started.history / "console").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.read_text().splitlines()[-1] == "RuntimeError: CUDA out of memory"
    described = started.command("show", "raises").stdout
    assert "exception of rank 0, innermost call last:\n  Traceback (most recent call last):" in described
    assert status == 1
    assert "trackside: raises: alerts: TrainingProcessDied (critical)" in complaints.splitlines()
    shown = started.command("show", "raises", "--json")
    (died,) = [one for one in json.loads(shown.stdout)["alerts"] if one["severity"] == "critical"]
    assert (died["alert"], "died: RuntimeError: CUDA out of memory" in died["summary"]) == ("TrainingProcessDied", True)


def test_the_last_line_the_alert_and_the_history_have_the_same_last_step_of_a_command_that_is_killed(
    started: Started,
) -> None:
    status, _, complaints = started.run(sys.executable, "-c", KILLED)
    assert status == 128 + signal.SIGKILL
    assert list((started.place / "push.kept").iterdir()) == [], "a later daemon would show the run again"
    run: dict[str, Any] = json.loads(started.command("show", "killed", "--json").stdout)
    (died,) = [one["summary"] for one in run["alerts"] if one["alert"] == "TrainingProcessDied"]
    line, alerts, why, _ = complaints.splitlines()[1:]
    assert line.startswith(f"trackside: killed: failed (SIGKILL), step {run['step']} after ")
    assert died == f"rank 0 of run killed, at step {run['step']} or later, was killed by SIGKILL"
    assert died in why, (line, alerts, why)


def test_signals_reach_the_command_once(started: Started, daemon: Daemon) -> None:
    """The command runs at a terminal, with a daemon that is already running."""
    ours, theirs = os.openpty()
    terminal = Terminal(ours)
    process = started.at(os.ttyname(theirs), sys.executable, "-c", COUNTING)
    assert re.search(
        rf"trackside: using the daemon at {daemon.url}/#token=\S+, which is already running\r", terminal.until("counts")
    )

    os.close(theirs)

    def ctrl_c() -> None:
        os.write(terminal.file, b"\x03")

    sent: list[tuple[Callable[[], None], str]] = [
        (ctrl_c, "SIGINT 1"),
        (
            lambda: process.send_signal(signal.SIGUSR1),
            "SIGUSR1 1",
        ),  # which is handed on when all before it is done with
        (lambda: os.killpg(process.pid, signal.SIGINT), "SIGINT 2"),
        (lambda: process.send_signal(signal.SIGUSR1), "SIGUSR1 2"),
        (lambda: process.send_signal(signal.SIGINT), "SIGINT 3"),
        (ctrl_c, "SIGINT 4"),
    ]
    for send, seen in sent:
        send()
        terminal.until(seen)
    process.send_signal(signal.SIGTERM)
    printed = terminal.until("")
    os.close(ours)
    assert process.wait(DEADLINE) == 128 + signal.SIGTERM
    assert re.findall(r"SIG\w+ \d", printed) == [seen for _, seen in sent]
    assert "the command opened no run" in printed
    assert daemon.get("/-/ready").status_code == 200


def test_the_status_is_the_commands_however_late_another_ctrl_c_comes(started: Started) -> None:
    late = [sys.executable, "-c", CTRL_C_LAST]
    done = subprocess.run(late, env=started.environ, capture_output=True, text=True, check=False, timeout=DEADLINE)
    way_out = "the command opened no run: nothing was pushed; call trackside.push, or give --auto"
    assert (done.returncode, way_out in done.stderr) == (130, True), done.stderr


def test_with_auto_the_command_is_watched_and_what_hides_it_is_named(started: Started, tmp_path: Path) -> None:
    report = "import os, sys; print(os.environ['TRACKSIDE_AUTO'], type(sys.meta_path[0]).__name__)\n"
    script = tmp_path / "train.py"
    for flags, more, printed, reason in (
        ([], "", "1 Finder", ": no optimizer of PyTorch made a step, and no framework or tracker got a number\n"),
        (
            [],
            "if 0:\n    import jax.numpy as jnp",
            "1 Finder",
            "; jax is imported: add trackside.push(step=step, loss=loss)",
        ),
        (["-I"], "", "1 ", ": Python with -I ignores $PYTHONPATH, by which --auto finds the training"),
        ([], "os.kill(os.getpid(), 9)", "", "got a number, until at most a second before SIGKILL ended it\n"),
    ):
        script.write_text(report + more)
        status, out, complaints = started.run(sys.executable, *flags, str(script), flags=["--auto"])
        assert (status, out.startswith(printed)) == (137 if "kill" in more else 0, True), out
        assert "trackside: the command opened no run: " in complaints
        assert reason in complaints
    script.write_text("if 0:\n    import torch\n    import xgboost as xgb\n")
    _, _, complaints = started.run(sys.executable, str(script))
    assert "; xgboost is imported: add callbacks=[TracksideCallback()], with from" in complaints


def test_what_cannot_be_run_is_one_line(started: Started, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    plain = str(tmp_path / "plain")
    for arguments, flags, status, complaint in (
        (["no-such-program"], [], 127, r"trackside: no-such-program: not found\n"),
        ([plain], [], 126, rf"trackside: {plain}: not executable\n"),
        ([], [], 2, r"Usage: (.*\n)+.*COMMAND.*\n"),
        (["true"], ["--sample.interval=never"], 2, r"trackside: --sample.interval: [^\n]*\n"),
    ):
        ended, printed, complaints = started.run(*arguments, flags=flags)
        assert (ended, printed) == (status, "")
        assert re.fullmatch(complaint, complaints), complaints


def test_without_a_daemon_the_command_runs_all_the_same(started: Started, tmp_path: Path) -> None:
    missing = f"--storage.path={tmp_path}/none/none"
    status, printed, complaints = started.run("sh", "-c", "echo trains; kill -9 $$", flags=[missing])
    assert (status, printed, complaints.count("\n")) == (128 + signal.SIGKILL, "trains\n", 1)
    assert re.match(r"trackside: the command runs without a daemon: .*none: no such directory", complaints)
    elsewhere = {"TRACKSIDE_PUSH__ENDPOINT": "", "TRACKSIDE_ENDPOINT": "tcp://node1:21791"}
    status, printed, complaints = started.run("sh", "-c", "echo $TRACKSIDE_ENDPOINT", **elsewhere)
    assert (status, printed) == (0, "tcp://node1:21791\n")
    assert complaints.endswith("$TRACKSIDE_ENDPOINT sends pushes to tcp://node1:21791\n")
    quiet = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command("run", missing, "--", "sh", "-c", "echo trains; exit 5")]
    done = subprocess.run(quiet, env=started.environ, stdout=subprocess.PIPE, text=True, check=False, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (5, "trains\n")
    status, printed, complaints = started.run("echo", "trains", flags=[f"--web.config.file={tmp_path}/none"])
    assert (status, printed, complaints.count("\n")) == (0, "trains\n", 1)
    assert re.match(rf"trackside: the command runs without a daemon: .*{tmp_path}/none", complaints)


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("raise SystemExit(3)", ("failed", "exit status 3")),
        ("spooled(); os._exit(4)", ("failed", "exit status 4")),
        ("spooled(); os.kill(os.getpid(), 9)", ("failed", "SIGKILL")),
        ("raise KeyError('x')", ("failed", "KeyError: 'x'")),
        ("pass", ("finished", "")),
    ],
)
def test_the_status_of_the_command_is_in_what_waits_for_the_next_daemon(
    started: Started, spool: Path, tmp_path: Path, code: str, end: tuple[str, str]
) -> None:
    missing = f"--storage.path={tmp_path}/none/none"
    started.run(sys.executable, "-c", UNSENT + code, flags=[missing], TRACKSIDE_FLUSH_TIMEOUT="0.1")
    (orphan,) = orphaned_sessions([spool], None)
    last = orphan.spool.next_after(orphan.spool.last - 1)
    orphan.spool.close()
    assert last is not None
    bye: Bye = decode_body("bye", last.frames[2])
    assert (bye.status, bye.cause) == end


def test_commands_share_a_daemon_that_may_die(started: Started) -> None:
    """The second command uses the daemon of the first.

    After that daemon is killed, the next one reads the spool.
    """
    first = started.start(sys.executable, "-c", WAITING, "first")
    assert step(first) == "0\n"
    status, printed, complaints = started.run(sys.executable, "-c", WAITING, "second", lines="on\n", flags=[INTERVAL])
    assert (status, printed) == (0, "0\n")
    lines = complaints.splitlines()
    assert lines[0].endswith(f", which is already running; it keeps its settings, so these have no effect: {INTERVAL}")
    assert lines[1].startswith("trackside: second: finished, step 0 after ")
    assert lines[2:] == ["trackside: details: trackside show second"]
    assert _text(Path(f"/proc/{started.daemon()}/cmdline")) != ""
    profiler = started.place / "push.kineto" / "dynolog"
    assert profiler.is_socket()
    children = psutil.Process(started.daemon()).children()
    for child in children:  # one of which would remove the socket
        child.suspend()
    os.kill(started.daemon(), signal.SIGKILL)
    for child in children:
        child.kill()
    eventually(lambda: not profiler.exists())
    _, complaints = first.communicate("on\n" * 3, timeout=DEADLINE)
    assert first.returncode == 0
    assert f"with status -9; see its log {started.history}/daemon.log" in complaints
    assert re.search(r"trackside: first: (starting|running), ", complaints)  # as it was last written
    third = started.start(sys.executable, "-c", WAITING, "third")
    _, _, complaints = started.run("true")  # at the same moment; one of the two starts the daemon
    assert step(third) == "0\n"
    assert third.stderr is not None
    lines = [third.stderr.readline(), complaints.partition("\n")[0]]
    assert [line.rstrip().endswith("which is already running") for line in lines].count(True) == 1, lines
    eventually(lambda: "run first rank 0: reading the spool that its process left" in started.log())
    third.kill()
    assert step(third) == "1\n"  # the command lives on, as that of nice does
    eventually(lambda: not _text(Path(f"/proc/{started.daemon()}/cmdline")))
    runs = started.command("runs", "--json")
    kept = {run["name"]: run["step"] for run in json.loads(runs.stdout)["runs"]}
    assert (kept["first"], kept["second"]) == (3, 0)


@pytest.mark.usefixtures("only_soak")
def test_ranks_under_torchrun(started: Started, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = started.start(*torchrun, str(tmp_path / "train.py"), str(tmp_path / "dies"))
    assert process.stderr is not None
    page = process.stderr.readline().split()[1] + "/metrics"
    last = re.compile(r'^trackside_training_step\{rank="\d",run="ranks"\} 19(?:\.0)?$', re.MULTILINE)
    eventually(lambda: len(last.findall(processes.http.get(page).text)) == 2)
    (tmp_path / "dies").touch()
    _, complaints = process.communicate(timeout=2 * DEADLINE)
    assert process.returncode == 1
    lines = [line for line in complaints.splitlines() if line.startswith("trackside: ")]
    assert re.match(r"trackside: ranks: failed \(SIGKILL, SIGTERM\), step 19 after ", lines[0]), complaints
    assert lines[1] == "trackside: ranks: rank 0 stopped (SIGTERM), rank 1 failed (SIGKILL)"
    assert "TrainingProcessDied (critical)" in lines[2]


def test_what_fails_of_ours_costs_the_command_nothing(started: Started) -> None:
    done = processes.run([sys.executable, "-c", FAILING], env=started.environ, check=True)
    assert done.stdout == "[5, 6]\n"
    assert "trackside: the command runs without a daemon: KeyError: 'odd'\n" in done.stderr
    assert done.stderr.endswith("trackside: no summary: KeyError: 'odd'\n")


def test_a_daemon_that_this_user_may_not_read_is_not_waited_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "push.address").write_text("http://127.0.0.1:1")
    monkeypatch.setattr(command_daemon, "endpoint_of", lambda _: None)  # as of a service's own user
    assert command_daemon._query(place / "push.sock", 1e9) is None


def test_an_occupied_default_port_is_replaced(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_address(address: str) -> Any:
        raise AddressError(f"web.listen-address: {address} is in use by python (pid 7); stop it, or use another port")

    monkeypatch.setattr(command_daemon, "listen", refuse_address)
    monkeypatch.setenv("TRACKSIDE_PUSH__ENDPOINT", f"ipc://{place}/push.sock")
    monkeypatch.delenv("TRACKSIDE_WEB__LISTEN_ADDRESS", raising=False)
    listens = (["--web.listen-address=127.0.0.1:0"], " (127.0.0.1:21790 is in use by python (pid 7))")
    assert command_daemon.SharedDaemon(load(Config))._address() == listens
    monkeypatch.setenv("TRACKSIDE_WEB__LISTEN_ADDRESS", "127.0.0.1:9999")
    with pytest.raises(AddressError):
        command_daemon.SharedDaemon(load(Config))._address()
