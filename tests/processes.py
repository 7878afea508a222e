"""The real command as a process, and patience until something is so."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

import httpx
import psutil
import pytest
from fork_server import ForkedProcess, preloaded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
DEADLINE = 240.0
"""Seconds. Generous: tests wait for events, and never measure time."""


# Each `httpx.get` would read the authorities of this machine again, which takes 20 ms. No connection is kept open: a server
# that a test stops has none to wait for. Nor is an answer compressed: thousands of them are pages that a test waits with.
def client(**options: Any) -> httpx.Client:
    """Return a client for servers on this machine."""
    limits, plain = httpx.Limits(max_keepalive_connections=0), {"Accept-Encoding": "identity"}
    return httpx.Client(**{"trust_env": False, "timeout": DEADLINE, "limits": limits, "headers": plain, **options})


http = client()

T = TypeVar("T")


def require(library: str) -> None:
    """Skip a module whose scripts need a library that is missing; this process does not import it."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed", allow_module_level=True)


def eventually(read: Callable[[], T], deadline: float = DEADLINE, pause: float = 0.02) -> T:
    """Wait until *read* returns a true value, and return that.

    The test fails with the last value after *deadline* seconds. *pause* is the time between the first questions.
    """
    begun = time.monotonic()
    while not (found := read()):
        waited = time.monotonic() - begun
        if waited > deadline:
            pytest.fail(f"did not come true within {deadline:g} s: {read}, last {found!r}")
        # Each question costs 5 ms of CPU time here and in the daemon, so that long waits ask less often.
        time.sleep(max(pause, min(waited / 4, 0.5)))
    return found


def is_running(thread: str) -> bool:
    """Return whether a thread of that name runs in this process."""
    return any(one.name == thread for one in threading.enumerate())


class Daemon:
    """`trackside daemon` as a process, on a free port and in a given directory.

    Args:
        directory: A directory, which must exist.
        flags: Further flags; another ``--push.endpoint`` is added to the one in the directory.
        environ: Variables to set.
        launcher: A command that starts it.
        fresh: Execute Python, instead of forking a process that has its imports.
        asking: Arguments of `httpx` for access, such as ``verify`` and ``auth``.

    Attributes:
        url: ``http://127.0.0.1:PORT``, or ``https``.
        directory: The directory of the push socket and the token.
        endpoint: The endpoint for pushes.
        history: The directory of the history.
    """

    def __init__(
        self,
        directory: Path,
        *flags: str,
        environ: Mapping[str, str] | None = None,
        launcher: Sequence[str] = (),
        fresh: bool = False,
        asking: Mapping[str, Any] | None = None,
    ) -> None:
        self._client = client(**asking) if asking else http
        self.directory = directory
        self.endpoint = f"ipc://{directory}/push.sock"
        self.history = directory / "history"
        self.history.mkdir(exist_ok=True)
        self.log: list[str] = []
        self._address = threading.Event()
        self.url = ""
        arguments = command(
            "daemon",
            f"--push.endpoint={self.endpoint}",
            "--web.listen-address=127.0.0.1:0",
            f"--storage.path={self.history}",
            *flags,
        )
        options: dict[str, Any] = {
            "env": clean_environ(environ),
            "stderr": subprocess.PIPE,
            "stdout": subprocess.DEVNULL,
            "text": True,
        }
        self.process: subprocess.Popen[str]
        if launcher or fresh:
            self.process = subprocess.Popen([*launcher, *arguments], **options)
        else:
            self.process = start(arguments, **options)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._address.wait(DEADLINE) or not self.url:
            self.stop()
            pytest.fail("the daemon did not start: " + "".join(self.log))
        try:
            eventually(lambda: self.get("/-/ready").status_code == 200)
        except BaseException:
            self.stop()
            raise

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Ask for a page."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._client.get(self.url + path, headers=given)

    def api(self, path: str) -> httpx.Response:
        """Ask the API, with the token."""
        token = (self.directory / "push.token").read_text().strip()
        return self.get(f"/api/v1/{path}", authorization=f"Bearer {token}")

    def series(self, page: str | None = None) -> dict[str, float]:
        """Return every series of /metrics, as written, and its value."""
        text = page if page is not None else self.get("/metrics").text
        lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def pids(self) -> dict[str, int]:
        """Return the pids of the daemon, its ingest worker and its NVML worker, as far as they live."""
        found = {"daemon": self.process.pid}
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):  # it has just ended
                command = child.cmdline()
                for name, module in (("ingest worker", "ingest"), ("NVML worker", "nvml")):
                    if f"trackside_daemon.{module}.worker" in command:
                        found[name] = child.pid
        return found

    def values(self, run: str, key: str, rank: int = 0) -> dict[int, float]:
        """Return every value of a key in the history, by step, of a rank of the run with this id."""
        (found,) = self.api(f"series?run={run}&points=0&rank={rank}&key={key}").json()["series"]
        return {step: float(value) for step, _, value in found["points"]}

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and wait for the end; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return ended(self.process, self._reader)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if (found := re.search(r"serves (https?://\S+)", line)) is not None:
                self.url = found[1]
                self._address.set()
        self._address.set()


@contextmanager
def lasting_daemon(*flags: str, **options: Any) -> Iterator[Daemon]:
    """Yield a daemon with a directory of its own, for all tests of a file."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        daemon = Daemon(Path(directory), *flags, **options)
        try:
            yield daemon
        finally:
            daemon.stop()


LEAN = tuple(f"--no-collector.{name}" for name in ("cgroup", "filesystem", "disk", "network"))
"""Flags of a daemon that samples often: these collectors cost most, and few tests read them."""


def alarms(daemon: Daemon, label: str = "") -> dict[str, float]:
    """Return the alerts so far with a severity of warning or critical, and with a label such as ``run="mnist"``."""
    found = {name: value for name, value in daemon.series().items() if name.startswith("trackside_alerts_total{")}
    return {name: value for name, value in found.items() if value and 'severity="info"' not in name and label in name}


OURS = {"TRACKSIDE_SPOOL", "TRACKSIDE_NVML_LOCK", "TRACKSIDE_CODE"}
"""What a test's daemon shares with nothing else on this machine, and what its trainings leave out."""

STRANGE = ("TRACKSIDE_", "SLURM_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "TEXTUAL")


def command(*arguments: str) -> list[str]:
    """Return the `trackside` command, run by this Python."""
    return [sys.executable, "-m", "trackside_daemon", *arguments]


def start(arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a command of this Python as `subprocess.Popen` does, by forking a process that has its imports."""
    return ForkedProcess(arguments, preloaded(arguments), **options)


def run(
    arguments: Sequence[str],
    *,
    input: Any = None,  # noqa: A002  as `subprocess.run` calls it
    timeout: float = DEADLINE,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a command of this Python as `subprocess.run` does, with its output as text, by `start`."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": clean_environ(), **options}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with start(arguments, **options) as process:
        try:
            printed, complaints = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(arguments, process.returncode, printed, complaints)
    if check:
        done.check_returncode()
    return done


def run_here(
    *arguments: str, environ: Mapping[str, str] | None = None, answer: str = "", text: bool = True
) -> subprocess.CompletedProcess[Any]:
    """Run a command of trackside in this process, with its output as text or bytes: a fork takes several times as much CPU time.

    *environ* is set beside `clean_environ`; *answer* is on standard input, which is no terminal.
    """
    from click.testing import CliRunner

    from trackside_daemon.cli import main

    argv = patch.object(sys, "argv", ["trackside", *arguments])
    with patch.dict(os.environ, clean_environ(environ), clear=True), patch.object(main, "load", _command()), argv:
        done = CliRunner().invoke(_command()(""), arguments, input=answer, prog_name="trackside")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    printed = [one.decode() if text else one for one in (done.stdout_bytes, done.stderr_bytes)]
    return subprocess.CompletedProcess(arguments, done.exit_code, *printed)


@cache
def _command() -> Callable[[str], Any]:
    """Return a function that returns a command by its name, or all by an empty one; to read the options takes 40 ms."""
    from typer.main import get_command

    from trackside_daemon.cli import main

    load = main.load
    return cache(lambda name: load(name) if name else get_command(main.app))


def ended(process: subprocess.Popen[str], reader: threading.Thread) -> int:
    """Wait for a process whose standard error a thread reads; return the exit status."""
    status = process.wait(DEADLINE)
    reader.join(DEADLINE)
    assert process.stderr is not None
    process.stderr.close()
    return status


def terminated(process: subprocess.Popen[Any]) -> None:
    """Ask a process to end, and kill it if it does not."""
    process.terminate()
    try:
        process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def clean_environ(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment without variables that affect a daemon or a client, except `OURS`, plus *more*.

    Variables of the terminal's size and colours are removed too: CI may set NO_COLOR.
    """
    strange = {name for name in os.environ if name.startswith(STRANGE)} - OURS
    return {**{name: value for name, value in os.environ.items() if name not in strange}, **(more or {})}
