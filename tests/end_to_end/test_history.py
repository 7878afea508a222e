"""Every value exactly once in the history: real clients, and a real daemon that is killed or whose disk is full."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from end_to_end.conftest import finish
from processes import DEADLINE, LEAN, Daemon, alarms, clean_environ, command, eventually, run

from trackside_daemon.history.database import Database
from trackside_daemon.history.read import reader, series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from end_to_end.conftest import Process

QUIET = ("--no-collector.gpu", "--no-collector.process", *LEAN, "--sample.interval=250ms")
PATIENT = {"TRACKSIDE_FLUSH_TIMEOUT": "60"}
"""Only a test that fails lets a training wait for so long at its end."""

#: For each number on its input pushes so many steps, slowly enough for the sender, and prints how many it has pushed.
OBEYING = """
import sys, time, trackside
step = 0
with trackside.init("obeying") as run:
    for line in sys.stdin:
        for _ in range(int(line)):
            run.push(step=step, loss=step)
            step += 1
            if step % 5000 == 0:
                time.sleep(0.3)
        print(step, flush=True)
"""

StoredSamples = dict[tuple[int, int, str], list[tuple[int, float]]]
"""By attempt, rank and key, the steps and values of a run."""


def stored_samples(directory: Path, run: str) -> StoredSamples:
    """Return the samples of the run of this name in a history that no daemon writes any longer."""
    database = Database(directory)
    found: StoredSamples = {}
    try:
        with database.reading() as connection:
            every = reader.series(connection, reader.resolve(connection, run), ranks=())
        for one in every:
            rows = [
                row
                for steps, _, values in series.samples(database, one.series)
                for row in zip(steps, values, strict=True)
            ]
            found[one.attempt or 0, one.rank or 0, one.series.key] = rows
    finally:
        database.close()
    return found


def about(directory: Path, run: str) -> dict[str, Any]:
    """Return the description of the run of this name in a history that no daemon writes any longer."""
    database = Database(directory)
    try:
        with database.reading() as connection:
            return reader.run(connection, reader.resolve(connection, run))
    finally:
        database.close()


def counted(daemon: Daemon, series: str) -> float:
    return daemon.series().get(f"trackside_{series}", 0.0)


def is_written(daemon: Daemon) -> None:
    """Wait until something is."""
    eventually(lambda: counted(daemon, "history_samples_total") > 0)


def test_a_resumed_run_continues_as_the_next_attempt_though_the_daemon_was_started_anew(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    for steps in (3, 4):
        daemon = start_daemon(*QUIET)
        training = start_training(daemon, "-c", OBEYING, TRACKSIDE_RUN_ID="same", **PATIENT)
        obey(training, steps)
        end(training)
        assert daemon.stop() == 0
    assert stored_samples(daemon.history, "obeying") == {
        (attempt, 0, "loss"): [(step, float(step)) for step in range(steps)] for attempt, steps in ((0, 3), (1, 4))
    }


def test_a_run_that_died_without_a_daemon_is_lost_and_one_that_lives_continues(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    first = start_daemon(*QUIET)
    dies, lives = (
        start_training(first, "-c", OBEYING, TRACKSIDE_RUN_ID=run, TRACKSIDE_RUN_NAME=run, **PATIENT)
        for run in ("dies", "lives")
    )
    began = time.time()
    for training in (dies, lives):
        obey(training, 10)
    eventually(lambda: counted(first, "history_samples_total") == 20.0)
    pushed = time.time()
    first.stop(signal.SIGKILL)
    dies.kill()
    dies.wait(DEADLINE)
    second = start_daemon(*QUIET)
    reported = {one["id"]: one for one in eventually(lambda: ended(second))}
    assert (reported["dies"]["state"], reported["dies"]["attempt"]) == ("lost", 0)
    assert began <= reported["dies"]["ended"] <= pushed
    obey(lives, 10)
    end(lives)
    assert second.stop() == 0
    assert about(second.history, "lives")["state"] == "finished"
    assert stored_samples(second.history, "lives") == {(0, 0, "loss"): [(step, float(step)) for step in range(20)]}
    assert len(stored_samples(second.history, "dies")[0, 0, "loss"]) == 10


def ended(daemon: Daemon) -> list[dict[str, Any]]:
    """Return all runs of the history once one of them has ended."""
    runs: list[dict[str, Any]] = daemon.api("runs").json()["runs"]
    return runs if any(run["ended"] for run in runs) else []


def stored(daemon: Daemon, samples: int) -> bool:
    """Return whether the history has so many samples."""
    return counted(daemon, "history_samples_total") >= samples


def obey(training: Process, steps: int) -> int:
    """Have a training push so many steps; wait for that, and return their total number."""
    assert training.stdin is not None
    assert training.stdout is not None
    training.stdin.write(f"{steps}\n")
    training.stdin.flush()
    return int(training.stdout.readline())


def end(training: Process) -> str:
    """End the input of a training, and wait for its exit with status 0; return its unread output."""
    return finish(training)


class FullDisk:
    """A small file system under the history, that a ballast fills."""

    def __init__(self, directory: Path) -> None:
        self._ballast = directory / "ballast"

    def fill(self, _daemon: Daemon) -> None:
        """Leave no room."""
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def free(self, _daemon: Daemon) -> None:
        """Make room again."""
        self._ballast.unlink()


class SmallFiles:
    """A limit on the size of the daemon's files, for machines on which no file system can be mounted."""

    def fill(self, daemon: Daemon) -> None:
        """Leave no room."""
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    def free(self, daemon: Daemon) -> None:
        """Make room again."""
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.fixture(params=["a full disk", "a limit of file sizes"])
def disk(request: pytest.FixtureRequest, place: Path) -> Iterator[FullDisk | SmallFiles]:
    if request.param == "a limit of file sizes":
        if os.getuid() == 0 and not request.config.getoption("--soak"):
            pytest.skip("a full disk shows it: under --soak")
        yield SmallFiles()
        return
    directory = place / "history"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", directory], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted: {mounted.stderr.decode().strip()}")
    try:
        yield FullDisk(directory)
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def test_while_the_disk_is_full_the_page_continues_and_afterwards_nothing_is_lost(
    disk: FullDisk | SmallFiles, start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    daemon = start_daemon(*QUIET)
    training = start_training(daemon, "-c", OBEYING, **PATIENT)
    total = obey(training, 1000)
    eventually(lambda: counted(daemon, "history_samples_total") == total)
    assert counted(daemon, 'pipeline_failures_total{stage="history"}') == 0.0

    disk.fill(daemon)
    total = obey(training, 100)
    eventually(lambda: counted(daemon, 'pipeline_failures_total{stage="history"}') > 0)
    eventually(lambda: newest(daemon) == total - 1)
    total = obey(training, 64 * 512)  # more than the window holds, which is then full
    total = obey(training, 10_000)
    eventually(lambda: newest(daemon) == total - 1)
    assert counted(daemon, 'training_steps_total{rank="0",run="obeying"}') == total
    batches = counted(daemon, 'ingest_messages_total{kind="batch"}')
    assert batches < 75 < total / 512, "a window of 64 and the few before; beats carried what came later"
    assert counted(daemon, "history_samples_total") == 1000
    assert daemon.get("/-/healthy").status_code == 200

    disk.free(daemon)
    eventually(lambda: counted(daemon, "history_samples_total") == total)
    assert newest(daemon) == total - 1
    end(training)
    assert daemon.stop() == 0
    assert stored_samples(daemon.history, "obeying") == {(0, 0, "loss"): [(step, float(step)) for step in range(total)]}
    assert about(daemon.history, "obeying")["state"] == "finished"
    assert sum("the history cannot be written" in line for line in daemon.log) == 1, daemon.log
    assert sum("the history can be written again" in line for line in daemon.log) == 1, daemon.log
    assert not any("Traceback" in line for line in daemon.log)


def test_a_daemon_that_starts_while_the_disk_is_full_serves_and_afterwards_nothing_is_lost(
    disk: FullDisk | SmallFiles,
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    place: Path,
) -> None:
    first = start_daemon(*QUIET)
    training = start_training(first, "-c", OBEYING, **PATIENT)
    total = obey(training, 1000)
    eventually(lambda: counted(first, "history_samples_total") == total)
    first.stop(signal.SIGKILL)
    if isinstance(disk, FullDisk):
        disk.fill(first)
        daemon = start_daemon(*QUIET)
    else:
        daemon = Daemon(place, *QUIET, launcher=("prlimit", "--fsize=4096:unlimited"))
    try:
        total = obey(training, 1000)
        eventually(lambda: newest(daemon) == total - 1)
        eventually(lambda: any("MonitorBlind" in name for name in alarms(daemon)))
        assert counted(daemon, "history_samples_total") == 0.0
        assert "host_memory" in daemon.get("/metrics").text
        doctor = run(command("doctor"), env=clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint}))
        assert "FAIL storage: the daemon writes no history at the moment: " in doctor.stdout

        disk.free(daemon)
        end(training)
        eventually(lambda: daemon.api("runs").json()["runs"][0]["state"] == "finished")
        assert daemon.api("status").json()["storage_problem"] == ""
        assert daemon.stop() == 0
    finally:
        daemon.stop(signal.SIGKILL)
    assert stored_samples(daemon.history, "obeying") == {(0, 0, "loss"): [(step, float(step)) for step in range(total)]}
    assert sum("the history cannot be written" in line for line in daemon.log) == 1, daemon.log
    assert not any("Traceback" in line for line in daemon.log)


def test_a_history_that_is_deleted_begins_anew_and_gets_all_that_was_not_acknowledged(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    daemon = start_daemon(*QUIET)
    training = start_training(daemon, "-c", OBEYING, **PATIENT)
    before = obey(training, 1000)
    eventually(lambda: counted(daemon, "history_samples_total") == before)
    shutil.rmtree(daemon.history)
    total = obey(training, 1000)
    end(training)
    eventually(lambda: daemon.api("runs").json()["runs"][0]["state"] == "finished")
    assert daemon.stop() == 0
    assert stored_samples(daemon.history, "obeying") == {
        (0, 0, "loss"): [(step, float(step)) for step in range(before, total)]
    }
    assert sum("was deleted or replaced" in line for line in daemon.log) == 1, daemon.log


def test_what_a_damaged_history_has_is_in_the_next_one_while_the_daemon_serves(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    daemon = start_daemon(*QUIET)
    training = start_training(daemon, "-c", OBEYING, **PATIENT)
    for before in range(5000, 80_000, 5000):  # all at once fills the queue of a training on a busy machine
        assert obey(training, 5000) == before
        eventually(partial(stored, daemon, before))
    file = daemon.history / "history.db"
    other = sqlite3.connect(file, timeout=DEADLINE)
    eventually(lambda: other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0))
    other.close()
    pages = file.stat().st_size // 4096
    with file.open("r+b") as damaged:
        for page in random.Random(4711).sample(range(64, pages), (pages - 64) // 2):  # the run itself is before them
            damaged.seek(4096 * page)
            damaged.write(bytes(4096))
    eventually(lambda: set_aside(daemon))
    total = obey(training, 1000)
    end(training)
    eventually(lambda: daemon.api("runs").status_code == 200)
    eventually(lambda: daemon.api("runs").json()["runs"][0]["state"] == "finished")
    assert daemon.stop() == 0
    rows = stored_samples(daemon.history, "obeying")[0, 0, "loss"]
    assert rows == sorted({*rows})
    assert all(step == value for step, value in rows)
    assert rows[-1000:] == [(step, float(step)) for step in range(before, total)]
    (line,) = [line for line in daemon.log if "salvaged" in line]
    salvaged = int(re.search(r"salvaged (?:all )?([\d,]+) ", line)[1].replace(",", ""))  # type: ignore[index]
    assert 0 <= salvaged - (len(rows) - 1000) < 5000, "those of the host count too"
    assert not list(daemon.history.glob("*.salvage")), "nothing is left half done"


def set_aside(daemon: Daemon) -> list[Path]:
    """Read all samples, and return the damaged files that were set aside."""
    with suppress(httpx.HTTPError):  # an answer that meets the damage breaks off
        daemon.api("series?run=obeying&key=loss&points=0")
    return list(daemon.history.glob("history.db.damaged-*"))


def newest(daemon: Daemon) -> float | None:
    """Return the step on the page, if the page shows that step's loss too."""
    page = daemon.series()
    step, loss = (page.get(f'trackside_training_{one}{{rank="0",run="obeying"}}') for one in ("step", "loss"))
    return step if step == loss else None


def test_a_daemon_can_be_stopped_while_the_disk_is_full_and_the_next_one_gets_the_rest(
    disk: FullDisk | SmallFiles, start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    daemon = start_daemon(*QUIET)
    training = start_training(daemon, "-c", OBEYING, **PATIENT)
    total = obey(training, 1000)
    eventually(lambda: counted(daemon, "history_samples_total") == total)
    disk.fill(daemon)
    total = obey(training, 1000)
    eventually(lambda: counted(daemon, 'pipeline_failures_total{stage="history"}') > 0)
    assert daemon.stop() == 0
    if isinstance(disk, FullDisk):
        disk.free(daemon)
    daemon = start_daemon(*QUIET)
    end(training)
    assert daemon.stop() == 0
    assert stored_samples(daemon.history, "obeying") == {(0, 0, "loss"): [(step, float(step)) for step in range(total)]}
