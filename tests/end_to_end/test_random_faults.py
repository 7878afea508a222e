"""Faults of both sides in random order: only a client that is killed loses anything, and of that the end."""

from __future__ import annotations

import os
import random
import signal
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from end_to_end.conftest import finish
from end_to_end.test_history import PATIENT, counted, stored_samples
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from end_to_end.conftest import Process
    from processes import Daemon

WRITTEN = "history_samples_total"
KEYS = 20
SEED = int(os.environ.get("SOAK_SEED", "20261128"))
TAIL = 1.2
"""Seconds before its end of which a client that is killed may lose what it pushed, with eight of them on one daemon."""

#: Pushes 20 values so many times a second until its input ends. Writes each step and its time to a file after the push.
NOTED = """
import os, struct, sys, threading, time, trackside
note = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
pause = 1 / float(sys.argv[2])
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
step = 0
with trackside.init("noted") as run:
    while not stop.wait(pause):
        run.push({f"key{more}": step + more for more in range(20)}, step=step)
        os.write(note, struct.pack("<qd", step, time.monotonic()))
        step += 1
"""


class Trainings:
    """Trainings that note what they push, of which one that is killed is replaced by another.

    Attributes:
        killed: The time of death of each killed run, by the monotonic clock.
    """

    def __init__(self, start: Callable[[str], Process], directory: Path, size: int) -> None:
        self._start = start
        self._directory = directory
        self.living: dict[str, Process] = {}
        self.killed: dict[str, float] = {}
        for _ in range(size):
            self._add()

    def _add(self) -> None:
        run = f"noted{len(self.living) + len(self.killed)}"
        self.living[run] = self._start(run)

    def kill(self, chosen: random.Random) -> None:
        """Kill one of them, and start another."""
        run = chosen.choice([*self.living])
        process = self.living.pop(run)
        process.kill()
        self.killed[run] = time.monotonic()
        process.wait()
        self._add()

    def pushed(self, run: str) -> list[tuple[int, float]]:
        """Return the steps that a run has pushed, each with its time."""
        file = self._directory / run
        data = file.read_bytes() if file.exists() else b""
        return list(struct.iter_unpack("<qd", data[: len(data) // 16 * 16]))


class RandomFaults:
    """A daemon and its trainings, and what can happen to them."""

    def __init__(
        self, start: Callable[..., Daemon], trainings: Trainings, chosen: random.Random, longest: float
    ) -> None:
        self._start = start
        self._flags = ("--collector.gpu.simulate=2",)
        self._trainings = trainings
        self._chosen = chosen
        self._longest = longest
        self.daemon = self._start(*self._flags)
        self.all: tuple[Callable[[], None], ...] = (
            *([lambda: self._restart(signal.SIGKILL)] * 4),
            *([lambda: self._restart(signal.SIGTERM)] * 2),
            *([lambda: self._kill("ingest worker")] * 3),
            lambda: self._kill("NVML worker"),
            lambda: self._stop("daemon"),
            lambda: self._stop("ingest worker"),
            lambda: self._stop("NVML worker"),
            self._stop_a_training,
            self._stop_all,
            self._remove_the_socket,
            *([lambda: self._trainings.kill(self._chosen)] * 2),
        )

    def happen(self) -> None:
        """Let something happen, and wait until samples are written again."""
        self._chosen.choice(self.all)()
        before = counted(self.daemon, WRITTEN)
        eventually(lambda: counted(self.daemon, WRITTEN) > before)

    def _restart(self, number: int) -> None:
        self.daemon.stop(number)
        time.sleep(self._chosen.uniform(0, self._longest))
        self.daemon = self._start(*self._flags)

    def _pids(self, name: str) -> list[int]:
        pids = self.daemon.pids()
        return [pids[name]] if name in pids else []

    def _kill(self, name: str) -> None:
        for pid in self._pids(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _pause(self, pids: list[int]) -> None:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(self._chosen.uniform(0, self._longest))

    def _stop(self, name: str) -> None:
        self._pause(self._pids(name))

    def _stop_a_training(self) -> None:
        self._pause([self._chosen.choice([*self._trainings.living.values()]).pid])

    def _stop_all(self) -> None:
        self._pause([process.pid for process in self._trainings.living.values()] + [*self.daemon.pids().values()])

    def _remove_the_socket(self) -> None:
        with suppress(FileNotFoundError):
            (self.daemon.directory / "push.sock").unlink()
        # Clients that are connected stay so. A new one needs the file.
        self._restart(signal.SIGTERM)


@pytest.mark.usefixtures("only_soak")
def test_ranks_lose_at_most_the_tail_of_a_killed_client_whatever_happens(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    place: Path,
    count: Callable[[int, int], int],
    soaked: list[tuple[str, int, float]],
) -> None:
    size, faults, rate = count(2, 8), count(6, 150), count(50, 20)
    chosen = random.Random(SEED)
    notes = place / "notes"
    notes.mkdir()
    daemon = start_daemon()  # the endpoint, which stays

    def start(run: str) -> Process:
        return start_training(
            daemon, "-c", NOTED, str(notes / run), str(rate), TRACKSIDE_RUN_ID=run, **{**PATIENT, "PYTHONHASHSEED": "0"}
        )

    daemon.stop()
    trainings = Trainings(start, notes, size)
    happening = RandomFaults(start_daemon, trainings, chosen, count(1, 10) / 2)
    eventually(lambda: counted(happening.daemon, WRITTEN) > 0)
    for _ in range(faults):
        happening.happen()
        time.sleep(chosen.uniform(0, count(0, 8)))  # any moment will do
    for process in trainings.living.values():
        finish(process)
    runs = [*trainings.living, *trainings.killed]
    opened = {run for run in runs if trainings.pushed(run)}
    eventually(lambda: _ended(happening.daemon) >= opened - _unseen(trainings))
    assert happening.daemon.stop() == 0

    values = lost = 0
    for run in opened:
        pushed = trainings.pushed(run)
        found = stored_samples(happening.daemon.history, run) if run not in _unseen(trainings) else {}
        steps = len(next(iter(found.values()), []))
        for (_, _, key), rows in found.items():
            assert rows == [(step, float(step + int(key.removeprefix("key")))) for step in range(len(rows))], (run, key)
            assert len(rows) == steps, "a row is whole"
        if run in trainings.living:
            assert steps == len(pushed), run
            assert len(found) == KEYS
        missing = [at for step, at in pushed if step >= steps]
        assert all(at > trainings.killed[run] - TAIL for at in missing), (run, trainings.killed[run] - missing[0])
        values += KEYS * len(pushed)
        lost += KEYS * len(missing)
    if faults > 6:
        soaked.append((f"the same, seed {SEED}: values, of which {lost} were the tails of killed clients", values, 0.0))


def _unseen(trainings: Trainings) -> set[str]:
    """Return the killed runs that had pushed for less than the tail that may be lost."""
    return {run for run, at in trainings.killed.items() if (found := trainings.pushed(run)) and at - found[0][1] < TAIL}


def _ended(daemon: Daemon) -> set[str]:
    runs = daemon.api("runs?limit=0").json()["runs"]
    return {run["id"] for run in runs if run["state"] not in {"starting", "running", "stalled"}}
