"""Fixtures shared by all tests."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from client_process import client_process
from fork_server import LARGE
from hypothesis import HealthCheck, settings
from nvml.fake.library import Scenario, compile_library
from processes import Daemon

from trackside.environment import clocks, process_info

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping


ABSENT = {*LARGE, "httpx2"}
"""Frameworks without a build for some version of Python; a package of mcp, which needs newer packages than trackside."""

Report = TypeVar("Report", pytest.CollectReport, pytest.TestReport)

pytest_plugins = ["forked_runs"]

# PyTorch with a thread for each processor keeps those of a busy machine waiting, and its operations in tests are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The code of a run is that of all tests here.
os.environ["TRACKSIDE_CODE"] = "0"

# The time of this process until a test opens a run belongs to no run.
process_info.startup(clocks.read_clocks())

# Servers of the Prometheus project live for seconds and have little garbage, whose collection is a quarter of their CPU time.
os.environ.setdefault("GOGC", "400")

# How long an example takes says how busy the machine is, and nothing of the code. The examples are the same each time,
# or a change would be refused for what it has no part in; under --soak they are new ones, and more.
settings.register_profile(
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=30
)
settings.register_profile("soak", settings.get_profile("patient"), derandomize=False, max_examples=1000)
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what is now")
    parser.addoption("--soak", action="store_true", help="run at the full counts, and print what was run")


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in the background with SIGINT ignored, which all processes of the tests would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "only_soak: a case that has the fixture of this name")
    if config.getoption("--soak"):
        settings.load_profile("soak")


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and item.get_closest_marker("only_soak"):
        item.fixturenames = ["only_soak", *item.fixturenames]  # the list is that of all cases


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file that imports a framework without a build for this Python."""
    report = yield
    return _skipped_without_framework(report, report.call.excinfo if hasattr(report, "call") else None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that imports or starts one."""
    return _skipped_without_framework((yield), call.excinfo)


def _skipped_without_framework(report: Report, raised: pytest.ExceptionInfo[BaseException] | None) -> Report:
    error = raised.value if raised else None
    while report.failed and error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name in ABSENT:
            report.outcome = "skipped"
            report.longrepr = (str(report.fspath), 0, f"Skipped: {error.name} is not installed")
        error = error.__cause__
    return report


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """True if golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


_soaked: list[tuple[str, int, float]] = []


@pytest.fixture
def soaked() -> list[tuple[str, int, float]]:
    """The rows of the table that ends a run under --soak: test, count, seconds."""
    return _soaked


@pytest.fixture
def only_soak(request: pytest.FixtureRequest) -> None:
    """Skip a test that takes seconds of a processor for what other tests show in part; it runs under --soak."""
    if not request.config.getoption("--soak"):
        pytest.skip("others show most of it in less time: only under --soak")


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Iterator[Callable[[int, int], int]]:
    """A function ``count(reduced, full)`` that returns the number of repetitions.

    It is the full number under --soak, which is listed at the end.
    """
    soak = request.config.getoption("--soak")
    begun = time.monotonic()
    counted: list[int] = []

    def choose(reduced: int, full: int) -> int:
        counted.append(full if soak else reduced)
        return counted[-1]

    yield choose
    if soak:
        took = time.monotonic() - begun
        _soaked.extend((request.node.name, number, took) for number in dict.fromkeys(counted))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = Counter(str(report.longrepr[2]) for report in terminalreporter.getreports("skipped"))
    if skipped:
        reasons = (f"{number} because {reason.removeprefix('Skipped: ')}" for reason, number in skipped.most_common())
        terminalreporter.write_line(f"Skipped: {'; '.join(reasons)}.")
    if _soaked:
        terminalreporter.write_line("\n| soak test | count | seconds |\n|---|---:|---:|")
        for name, number, seconds in _soaked:
            terminalreporter.write_line(
                f"| {name.removeprefix('test_').replace('_', ' ')} | {number:,} | {seconds:.1f} |"
            )


@pytest.fixture
def place() -> Iterator[Path]:
    """A private directory whose path is short enough for a socket (108 bytes)."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture(scope="session", autouse=True)
def nothing_spooled() -> Iterator[None]:
    """An empty spool for fixtures that outlive a single test."""
    with tempfile.TemporaryDirectory(prefix="ts-") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKSIDE_SPOOL", directory)
        yield


@pytest.fixture(autouse=True)
def spool(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The spool directory of everything that the test starts."""
    monkeypatch.setenv("TRACKSIDE_SPOOL", str(place / "spool"))
    return place / "spool"


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake ``libnvidia-ml.so.1``."""
    return compile_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def scenario(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """The driver that every worker of the test sees: two busy H100 at first."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))
    scenario = Scenario(tmp_path / "scenario", gpus=2)
    for name, value in scenario.environ.items():
        monkeypatch.setenv(name, value)
    return scenario


@pytest.fixture(scope="module", autouse=True)
def own_client_process() -> Iterator[None]:
    """All that runs of one process share, made anew for each file: the senders of a file end with it."""
    with client_process():
        yield


@pytest.fixture
def restored_log() -> Iterator[None]:
    """The handlers and levels of this process's log, restored after the test."""
    loggers = [logging.getLogger(), logging.getLogger("trackside")]
    before = [(list(logger.handlers), logger.level) for logger in loggers]
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers = handlers
        logger.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def own_gpu_lock() -> Iterator[None]:
    """A separate lock, so that other workers on this machine do not keep those of the tests from the fake driver."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKSIDE_NVML_LOCK", f"trackside-tests-{os.getpid()}")
        yield


@pytest.fixture
def start_daemon(place: Path) -> Iterator[Callable[..., Daemon]]:
    """A function that starts a daemon with flags; the daemons end with the test."""
    started: list[Daemon] = []

    def start(
        *flags: str,
        directory: Path = place,
        environ: Mapping[str, str] | None = None,
        asking: Mapping[str, Any] | None = None,
    ) -> Daemon:
        started.append(Daemon(directory, *flags, environ=environ, asking=asking))
        return started[-1]

    yield start
    for daemon in started:
        daemon.stop()


@pytest.fixture
def daemon(start_daemon: Callable[..., Daemon]) -> Daemon:
    """One daemon with the default configuration."""
    return start_daemon()
