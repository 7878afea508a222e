"""``--processes N``: tests in forks of the process that collected them. Without it, many tests run in two.

Collecting imports PyTorch and much else, which takes as long as a minute of tests; forks have it for nothing. Each fork runs
one test file after another from shared queues, so that fixtures of a module are set up once.

``--repeat-failed``: a few tests that failed run once more, one after another in one fork. Those that pass then are listed,
since each may have a race that shows on a busy machine. A test fails the test run if it fails twice, or if the test run
before this one also had to repeat it.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import select
import selectors
import signal
import struct
import time
from contextlib import ExitStack
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NUMBER = struct.Struct("=I")
_CHROMIUM = ("dashboard",)
_FRAMEWORKS = ("integrations", "test_public_scripts.py")
_PYTORCH = (
    "test_troubles.py",
    "kineto",
    "test_evidence.py",
    "test_slow_ranks.py",
    "test_searches.py",
    "test_dataloaders.py",
    "test_run_command.py",
    "test_alert_chain.py",
    "test_hangs.py",
    "test_torchrun.py",
    "test_captures.py",
    "test_saved_checkpoints.py",
    "test_data_waits.py",
    "test_examples.py",
    "test_watch.py",
    "test_fork.py",
    "test_device_scalars.py",
    "test_launchers.py",
)
"""Files and folders that start Chromium, or a fork server with PyTorch, or with Transformers and Lightning as well.

That takes two to seven seconds of CPU time in each process that does.
"""

_MANY = 300
"""Tests that take longer than to fork and to set up what both processes need."""

_FEW = 20
"""Failed tests that a busy machine explains. With more, something is broken, and none is repeated."""

_SECONDS = int(os.environ.get("TRACKSIDE_TEST_SECONDS", "900"))
"""A test that takes longer fails, so that one that waits for ever does not cost the whole test run."""

_REPEATED = "trackside/repeated"
"""Where pytest's cache has the tests that the test run before this one repeated."""

_WAITING = (
    "test_slurm.py",
    "test_demo.py",
    "test_alert_chain.py",
    "test_notifications.py",
    "test_remote_write.py",
    "test_delivery.py",
    "test_troubles.py",
    "test_gpu_survival.py",
    "test_compose.py",
    "test_hangs.py",
    "end_to_end",
    "test_survival.py",
    "test_soak.py",
    "test_rules.py",
    "test_trimming.py",
    "docs_commands",
    "kineto",
    "test_site.py",
    "test_http_api.py",
    "client",
    "cli",
    "deploy",
    "history",
)
"""Files and folders of tests that mostly wait, those that take longest first, else one process is left with a slow file at the end."""

_BEGINNINGS = (_CHROMIUM, _FRAMEWORKS, _CHROMIUM, _PYTORCH, _PYTORCH, (), ())
"""What the first processes begin with: two with all that no list names, which uses the processors while the others wait.

The other processes begin with what waits, and come to the rest of the files last.
"""

_DEAR = 5
"""The first processes, which alone take files that start Chromium or PyTorch."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processes", type=int, default=0, help="run test files in this many processes (default: 2 for many)"
    )
    parser.addoption(
        "--repeat-failed",
        action="store_true",
        help=f"with processes: run up to {_FEW} failed tests once more, alone; list those that pass then",
    )


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected: a quarter of that time
    # The table of --soak, the debugger and a terminal are those of one process.
    alone = config.getoption("--soak", default=False) or config.option.usepdb or config.option.capture == "no"
    count = config.getoption("--processes") or (1 if alone else 0)
    if count != 1 and not config.option.collectonly:
        config.pluginmanager.register(_Runs(count), "forked-runs")


def pytest_collection_finish() -> None:
    gc.set_threshold(10_000)  # in place of 700: a twelfth of the CPU time of tests in this process
    gc.enable()


class _Runs:
    """The test run of the process that collected the tests; it prints what the forks report."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._running: dict[int, tuple[str, float]] = {}
        self._repeats = False
        self._failed: dict[str, list[pytest.TestReport]] = {}
        self._again: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        self._count = self._count or (2 if len(session.items) > _MANY else 1)
        if self._count == 1:
            return None
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        files = _by_file(session.items)
        session.config.pluginmanager.getplugin("terminalreporter").showfspath = False
        gc.freeze()
        self._repeats = session.config.getoption("--repeat-failed") and not session.config.getvalue("maxfail")
        self._run(session, files, range(min(self._count, len(files))))
        self._repeat(session)
        return True

    def _run(self, session: pytest.Session, files: list[list[pytest.Item]], numbers: range) -> None:
        """Run files in forks with these numbers."""
        queues = _queues(files)
        forks = dict(_fork(session, number, files, queues, numbers[:_DEAR]) for number in numbers)
        try:
            self._read(session, forks)
        finally:
            for end, pid in forks.items():
                _end(pid)
                os.close(end)
            for queue in queues.values():
                os.close(queue)

    def _repeat(self, session: pytest.Session) -> None:
        """Run failed tests once more if they are few; otherwise log their reports."""
        if not self._repeats:
            return
        self._repeats = False
        if len(self._failed) > _FEW:
            for report in (report for reports in self._failed.values() for report in reports):
                session.config.hook.pytest_runtest_logreport(report=report)
            return
        if self._failed:
            items = [item for item in session.items if item.nodeid in self._failed]
            self._run(session, _by_file(items), range(self._count, self._count + 1))
        if (cache := getattr(session.config, "cache", None)) is not None:
            before = set(cache.get(_REPEATED, []))
            self._again = self._failed.keys() & before
            session.testsfailed += len(self._again)
            cache.set(_REPEATED, sorted(before - {item.nodeid for item in session.items} | self._failed.keys()))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print how many tests were repeated, and what those had reported that passed then."""
        stats = terminalreporter.stats
        twice = {report.nodeid for outcome in ("failed", "error") for report in stats.get(outcome, ())}
        for test in self._failed.keys() - twice:
            times = "in two test runs, one after the other" if test in self._again else "once"
            terminalreporter.section(f"failed {times}, passed alone: {test}", sep="_")
            for report in self._failed[test]:
                terminalreporter.write_line(report.longreprtext)
        if self._failed:
            again = f"{len(self._again)} of them in the run before as well"
            terminalreporter.write_line(f"{len(self._failed)} tests needed a second try, {again}")

    def _read(self, session: pytest.Session, forks: dict[int, int]) -> None:
        """Log the reports until every fork has ended; stop where pytest would.

        The end of its pipe does not show that a fork has ended: a process that a test left behind may hold the pipe open.
        """
        partial, alive = dict.fromkeys(forks, b""), set(forks)
        with selectors.DefaultSelector() as readable, ExitStack() as opened:
            for end, pid in forks.items():
                os.set_blocking(end, False)
                readable.register(end, selectors.EVENT_READ)
                ended = opened.enter_context(os.fdopen(os.pidfd_open(pid), "rb", buffering=0))
                readable.register(ended, selectors.EVENT_READ, data=end)
            while alive:
                self._end_late(forks)
                for key, _ in readable.select(timeout=_SECONDS):
                    end = key.fd if key.data is None else key.data
                    *lines, partial[end] = (partial[end] + (chunk := _chunk(end))).split(b"\n")
                    for line in lines:
                        self._log(session, end, json.loads(line))
                    if not chunk:
                        readable.unregister(key.fileobj)
                        if key.data is not None:
                            alive.remove(end)
                            if test := self._running.pop(end, ("", 0))[0]:
                                session.shouldfail = f"a process ended while it ran {test}"
                    if session.shouldfail:
                        raise session.Failed(session.shouldfail)

    def _end_late(self, forks: dict[int, int]) -> None:
        """End forks whose test runs in code in C that the alarm does not interrupt."""
        for end, (test, began) in self._running.items():
            if test and time.monotonic() > began + 2 * _SECONDS:
                os.kill(forks[end], signal.SIGKILL)

    def _log(self, session: pytest.Session, end: int, message: Any) -> None:
        if isinstance(message, str):
            self._running[end] = (message, time.monotonic())
            return
        hook = session.config.hook
        report = hook.pytest_report_from_serializable(config=session.config, data=message)
        if isinstance(report.longrepr, list):  # the place and reason of a skipped test, which JSON made a list
            report.longrepr = tuple(report.longrepr)
        if report.failed and self._repeats:
            self._failed.setdefault(report.nodeid, []).append(report)
            return
        hook.pytest_runtest_logreport(report=report)


def _end(pid: int) -> None:
    """End a fork, at the latest after a minute."""
    os.kill(pid, signal.SIGINT)
    with os.fdopen(os.pidfd_open(pid), "rb", buffering=0) as ended:
        if not select.select([ended], [], [], 60)[0]:
            os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _chunk(end: int) -> bytes:
    """Return what can be read at once from a pipe; nothing at its end, too."""
    try:
        return os.read(end, 65536)
    except BlockingIOError:
        return b""


def _by_file(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """Return the tests of each file, slow files first."""
    files = [list(group) for _, group in groupby(items, lambda item: item.path)]
    return sorted(files, key=lambda file: _place(file, _WAITING))


def _place(file: list[pytest.Item], names: Sequence[str]) -> int:
    """Return the place of the first of the names that is the file or a folder of it; their number if none is."""
    parts = file[0].path.parts
    return next((number for number, name in enumerate(names) if name in parts), len(names))


def _queues(files: list[list[pytest.Item]]) -> dict[tuple[str, ...], int]:
    """Return pipes with the numbers of files: for those that a constant names, and for the others."""
    queues: dict[tuple[str, ...], int] = {}
    rest = set(range(len(files)))
    for names in (_CHROMIUM, _FRAMEWORKS, _PYTORCH, _WAITING, ()):
        chosen = {number for number in rest if not names or _place(files[number], names) < len(names)}
        rest -= chosen
        queues[names], numbers = os.pipe()
        os.write(numbers, b"".join(_NUMBER.pack(number) for number in sorted(chosen)))
        os.close(numbers)
    return queues


def _fork(
    session: pytest.Session,
    number: int,
    files: list[list[pytest.Item]],
    queues: dict[tuple[str, ...], int],
    dear: range,
) -> tuple[int, int]:
    """Fork a process that runs files from the queues; return the end of the pipe with its reports, and its pid."""
    reports, written = os.pipe()
    if (pid := os.fork()) == 0:
        begins = _BEGINNINGS[number : number + 1]
        last = (_PYTORCH, _CHROMIUM, _FRAMEWORKS) if number in dear else ()
        _run(session, number, _following(files, [queues[names] for names in (*begins, _WAITING, (), *last)]), written)
    os.close(written)
    return reports, pid


def _following(files: list[list[pytest.Item]], queues: list[int]) -> Iterator[pytest.Item]:
    for queue in queues:
        while answer := os.read(queue, _NUMBER.size):
            yield from files[_NUMBER.unpack(answer)[0]]


def _run(session: pytest.Session, number: int, items: Iterator[pytest.Item], written: int) -> NoReturn:
    config = session.config
    plugins = config.pluginmanager
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are those of all the forks
    capture.start_global_capturing()
    plugins.unregister(name="forked-runs")
    plugins.unregister(plugins.getplugin("terminalreporter"))
    plugins.register(_Reporter(config, written))
    temporary = config._tmp_path_factory  # type: ignore[attr-defined]
    temporary._basetemp = temporary.getbasetemp() / f"process{number}"
    temporary._basetemp.mkdir()
    signal.signal(signal.SIGALRM, _give_up)
    status = 1
    try:
        item = next(items, None)
        while item is not None:
            # The next file is taken before the last test of a file ends: fixtures of the session stay for it.
            following = next(items, None)
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        status = 0
    except KeyboardInterrupt:
        session._setupstate.teardown_exact(None)  # processes that fixtures started end with the test run
    finally:
        os._exit(status)


def _give_up(*_: object) -> NoReturn:
    signal.alarm(_SECONDS)  # the test's fixtures may wait for ever, too
    faulthandler.dump_traceback(2)
    pytest.fail(f"it ran for {_SECONDS} seconds; what it wrote to standard error ends with what each thread did")


class _Reporter:
    """Sends a fork's reports to the process that prints them, as lines of JSON; ends a test that takes too long."""

    def __init__(self, config: pytest.Config, written: int) -> None:
        self._config = config
        self._written = written

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._send(nodeid)
        signal.alarm(_SECONDS)

    def pytest_runtest_logfinish(self) -> None:
        signal.alarm(0)
        self._send("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def _send(self, message: Any) -> None:
        line = memoryview(json.dumps(message, default=str).encode() + b"\n")
        while line:
            line = line[os.write(self._written, line) :]
