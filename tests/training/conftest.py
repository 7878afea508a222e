"""Processes that a training's clients could be."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from wire_messages import RunsHarness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Process:
    """A process that sleeps until it is killed.

    Attributes:
        identity: The fields of an `Identity` that identify it.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sleep", "1000"])
        self.identity = {"pid": self._process.pid, "start": start_of(self._process.pid)}

    def kill(self, *, reap: bool = True) -> None:
        """End it; without *reap* it stays as a zombie."""
        self._process.kill()
        if reap:
            self._process.wait()
        else:
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)


def start_of(pid: int) -> int:
    """Return the start time of a process, in clock ticks since boot."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.fixture
def start_process() -> Iterator[Callable[[], Process]]:
    """A function that starts a process; the processes end with the test."""
    started: list[Process] = []

    def start() -> Process:
        started.append(Process())
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def house() -> RunsHarness:
    """Runs that are all well within their limits."""
    return RunsHarness()


@pytest.fixture
def process(start_process: Callable[[], Process]) -> Process:
    """A running process."""
    return start_process()
