"""Floods of the push socket cost the worker at most, and no training a sample."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from end_to_end.conftest import finish, start_training  # noqa: F401  a fixture
from end_to_end.test_delivery import KEYS, PACED, complete
from end_to_end.test_history import PATIENT, QUIET, counted, stored_samples
from hostile_clients import ENDLESS_MESSAGE, LIMITED, MANY_CONNECTIONS, RANDOM_FRAMES
from processes import DEADLINE, Daemon, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from end_to_end.conftest import Process

RESTARTS = "ingest_worker_restarts_total"


@pytest.fixture
def limited(place: Path) -> Iterator[Daemon]:
    """A daemon with 1,024 descriptors and 512 MiB."""
    daemon = Daemon(place, *QUIET, launcher=LIMITED)
    yield daemon
    daemon.stop()


@pytest.fixture
def attack(place: Path) -> Iterator[Callable[..., list[str]]]:
    """A function that starts a program of `hostile_clients`, and waits until it is done."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: object, number: int = 1) -> list[str]:
        ran = [
            subprocess.Popen(
                [sys.executable, "-c", program, f"{place}/push.sock", *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(number)
        ]
        started.extend(ran)
        return [one.stdout.readline() for one in ran if one.stdout is not None]

    yield start
    for one in started:
        one.communicate()


def test_connections_messages_without_end_and_random_frames_lose_no_sample(
    limited: Daemon,
    attack: Callable[..., list[str]],
    start_training: Callable[..., Process],  # noqa: F811
    count: Callable[[int, int], int],
) -> None:
    trainings = [
        start_training(limited, "-c", PACED, "50", "100", TRACKSIDE_RUN_ID=f"honest{rank}", **PATIENT)
        for rank in range(4)
    ]
    eventually(lambda: counted(limited, "history_samples_total") > 0)
    attack(MANY_CONNECTIONS, 750, number=4)
    attack(ENDLESS_MESSAGE, 1 << 20, 700)
    attack(ENDLESS_MESSAGE, 1, 6_000_000)
    attack(RANDOM_FRAMES, count(3, 600), 7)
    steps = [int(finish(training)) for training in trainings]
    assert limited.stop() == 0
    for rank, pushed in enumerate(steps):
        found = stored_samples(limited.history, f"honest{rank}")
        assert {key: found[0, 0, key] for key in KEYS} == complete(pushed)


def test_a_worker_that_is_killed_is_replaced_and_no_sample_is_lost(
    daemon: Daemon,
    start_training: Callable[..., Process],  # noqa: F811
    count: Callable[[int, int], int],
) -> None:
    training = start_training(daemon, "-c", PACED, "200", "100", TRACKSIDE_RUN_ID="honest", **PATIENT)
    for kills in range(1, count(3, 30) + 1):
        before = counted(daemon, "history_samples_total")
        eventually(lambda: counted(daemon, "history_samples_total") > before)  # noqa: B023  called at once
        os.kill(eventually(lambda: daemon.pids().get("ingest worker", 0)), signal.SIGKILL)
        eventually(lambda: counted(daemon, RESTARTS) == kills)  # noqa: B023
    steps = int(finish(training))
    assert daemon.stop() == 0
    assert {key: rows for (_, _, key), rows in stored_samples(daemon.history, "honest").items()} == complete(steps)
    (line,) = [line for line in daemon.log if "ingest worker" in line]
    assert 'msg="the ingest worker has ended: it was killed: Killed; another one starts, and clients resend' in line


def test_a_daemon_that_is_killed_leaves_no_ingest_worker(daemon: Daemon) -> None:
    pid = daemon.pids()["ingest worker"]
    descriptor = os.pidfd_open(pid)
    try:
        daemon.stop(signal.SIGKILL)
        assert select.select([descriptor], [], [], DEADLINE)[0]
    finally:
        os.close(descriptor)
