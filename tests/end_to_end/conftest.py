"""Prometheus and trainings, as processes that end with their test."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from end_to_end.prometheus import Prometheus
from in_process_daemon import InProcessDaemon
from processes import DEADLINE, ROOT, clean_environ
from processes import start as start_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from processes import Daemon

Process = subprocess.Popen[str]


@pytest.fixture
def start_prometheus(tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    """A function that starts Prometheus with an address as its target; call it once."""
    with ExitStack() as ends:

        def start(url: str, **scrape: Any) -> Prometheus:
            return ends.enter_context(Prometheus(tmp_path, url, **scrape))

        yield start


@pytest.fixture
def whole(place: Path) -> Iterator[InProcessDaemon]:
    """All stages of a daemon between its sources and its history, with a clock that the test sets."""
    made = InProcessDaemon(place)
    yield made
    made.close()


@pytest.fixture
def start_training() -> Iterator[Callable[..., Process]]:
    """A function that runs Python with arguments as a training that pushes to a daemon.

    Environment variables are keyword arguments. A *launcher* is a command that starts the training; what a training with a
    *nursery* spawns is forked.
    """
    started: list[Process] = []

    def start(
        daemon: Daemon, *arguments: str, launcher: Sequence[str] = (), nursery: bool = False, **environ: str
    ) -> Process:
        more = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "OMP_NUM_THREADS": "1", **environ}
        options: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        options |= {"text": True, "cwd": ROOT, "env": clean_environ(more)}
        if launcher:
            started.append(subprocess.Popen([*launcher, sys.executable, *arguments], **options))
        else:
            started.append(start_process([sys.executable, *arguments], nursery=nursery, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(DEADLINE)
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()


@pytest.fixture
def run_training(start_training: Callable[..., Process]) -> Callable[..., str]:
    """A function that starts a training, waits for its exit with status 0, and returns its output."""

    def run(daemon: Daemon, *arguments: str, **environ: str) -> str:
        return finish(start_training(daemon, *arguments, **environ))

    return run


def finish(process: Process, deadline: float = DEADLINE) -> str:
    """Wait for an exit with status 0; return the output."""
    printed, complaints = process.communicate(timeout=deadline)
    assert process.returncode == 0, complaints
    return printed
