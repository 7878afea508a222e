"""Faults that hands-on use injected, with its counts under --soak: nothing is lost, and memory stays flat."""

from __future__ import annotations

import signal
import socket
import time
from contextlib import ExitStack, suppress
from math import nan
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest
from end_to_end.conftest import finish
from end_to_end.faults import HOUR, YEAR, Faults, MovedClock, compile_clock, cut, delete
from end_to_end.test_delivery import PACED, complete
from end_to_end.test_history import PATIENT, QUIET, counted, is_written, stored_samples
from processes import DEADLINE, Daemon, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from end_to_end.conftest import Process

WRITTEN = "history_samples_total"

#: Pushes 20 values ten times a second until its input ends; prints the number of steps.
WIDE = """
import sys, threading, time, trackside
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
step, began = 0, time.monotonic()
with trackside.init("wide") as run:
    while not stop.wait(max(0.0, began + step / 10 - time.monotonic())):
        run.push({"loss": step, **{f"key{more}": step + more for more in range(1, 20)}}, step=step)
        step += 1
print(step, flush=True)
"""

#: Pushes 1,000 steps at each line of its input; at the second, it has only so many file descriptors left, for so long.
WITHOUT_DESCRIPTORS = """
import os, resource, sys, time, trackside
left, seconds = int(sys.argv[1]), float(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
with trackside.init("paced") as run:
    for part in range(3):
        sys.stdin.readline()
        taken = []
        if part == 1:
            try:
                while True:
                    taken.append(os.dup(0))
            except OSError:
                pass
            for descriptor in taken[:left]:
                os.close(descriptor)
        for step in range(1000 * part, 1000 * part + 1000):
            run.push(step=step, loss=step, a=step + 1, b=step + 2, c=step + 3, d=step + 4)
        if part == 1:
            time.sleep(seconds)
        for descriptor in taken[left:]:
            os.close(descriptor)
        print(part, flush=True)
print(3000)
"""

#: Pushes so many keys, a thousand at a time, each of them once.
MANY_KEYS = """
import sys, time, trackside
with trackside.init("keys") as run:
    for step in range(int(sys.argv[1]) // 1000):
        run.push({f"loss/{step}/{number}": float(number) for number in range(1000)}, step=step)
        time.sleep(0.04)
"""


#: Pushes so many keys for so many seconds as fast as it can; prints how many MiB that took.
TIGHT = """
import re, sys, time, trackside
def most():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
values = {f"key{number}": 0.5 for number in range(int(sys.argv[1]))}
run = trackside.init("tight")
run.push(step=0, loss=0)
time.sleep(1)
before, until, step = most(), time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < until:
    step += 1
    run.push(values, step=step)
time.sleep(1)
print(most() - before, flush=True)
"""


#: Pushes 20 steps with the loss in each line of its input.
CLOCKED = """
import sys, time, trackside
step = 0
with trackside.init("clocked") as run:
    for line in sys.stdin:
        for step in range(step, step + 20):
            run.push(step=step, loss=float(line))
            time.sleep(0.01)
        step += 1
"""


def step(training: Process) -> None:
    """Let a training do its next part, and wait until it has."""
    assert training.stdin is not None
    assert training.stdout is not None
    training.stdin.write("\n")
    training.stdin.flush()
    training.stdout.readline()


def test_a_training_that_runs_out_of_descriptors_while_the_daemon_is_away_loses_nothing(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], count: Callable[[int, int], int]
) -> None:
    daemon = start_daemon(*QUIET)
    rounds = count(1, 21)
    for left in range(rounds):
        training = start_training(
            daemon, "-c", WITHOUT_DESCRIPTORS, str(left), str(count(2, 4)), TRACKSIDE_RUN_ID=f"left{left}", **PATIENT
        )
        step(training)
        eventually(lambda daemon=daemon, left=left: daemon.api(f"series?run=left{left}&key=d").status_code == 200)  # type: ignore[misc]
        daemon.stop(signal.SIGKILL)
        step(training)
        daemon = start_daemon(*QUIET)
        step(training)
        finish(training)
    eventually(lambda: all(run["state"] == "finished" for run in daemon.api("runs").json()["runs"]))
    assert daemon.stop() == 0
    for left in range(rounds):
        assert {key: rows for (_, _, key), rows in stored_samples(daemon.history, f"left{left}").items()} == complete(
            3000
        )


def _set_aside(daemon: Daemon, more_than: int = 0) -> list[Path]:
    """Return the damaged files if they are more than so many, else none."""
    files = list(daemon.history.glob("history.db.damaged-*"))
    return files if len(files) > more_than else []


@pytest.mark.usefixtures("only_soak")
def test_after_a_damaged_history_is_replaced_no_answer_is_of_the_old_one(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], count: Callable[[int, int], int]
) -> None:
    daemon = start_daemon(*QUIET)
    training = start_training(daemon, "-c", PACED, "10000", "0", TRACKSIDE_RUN_ID="paced", **PATIENT)
    for _ in range(count(4, 4)):  # history/test_database has the races; this one looks for others, which takes long
        aside = len(_set_aside(daemon))
        file = daemon.history / "history.db"
        eventually(lambda file=file: file.exists() and file.stat().st_size > 2**20)  # type: ignore[misc]
        cut(daemon.history)

        until = time.monotonic() + 30
        while time.monotonic() < until and not _set_aside(daemon, aside):
            with suppress(httpx.HTTPError):  # an answer that meets the damage breaks off
                daemon.api("series?run=paced&key=loss&points=0")
        if not _set_aside(daemon, aside):  # the writer has not read what is missing
            daemon.stop()
            daemon = start_daemon(*QUIET)
        assert _set_aside(daemon, aside)
        eventually(lambda daemon=daemon: daemon.api("runs/paced").status_code == 200)  # type: ignore[misc]
        for _ in range(40):
            assert daemon.api("series?run=paced&key=loss&points=0").status_code == 200
            assert daemon.api("runs").status_code == 200
        opened = [file.path for file in psutil.Process(daemon.process.pid).open_files()]
        assert not [path for path in opened if "damaged" in path]
    finish(training)


@pytest.fixture(scope="module")
def clock_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_clock(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def clock(clock_library: Path) -> MovedClock:
    """The clock of the daemons of `start_with_clock`, which one fork server has."""
    return MovedClock(clock_library.parent, clock_library)


@pytest.fixture
def start_with_clock(place: Path, clock: MovedClock) -> Iterator[Callable[..., Daemon]]:
    """A function that starts a daemon whose clock can be moved."""
    started: list[Daemon] = []

    def start(*flags: str) -> Daemon:
        started.append(Daemon(place, *flags, environ=clock.environ))
        return started[-1]

    yield start
    for daemon in started:
        daemon.stop()


def test_a_clock_that_jumps_ahead_for_some_seconds_deletes_no_run(
    start_with_clock: Callable[..., Daemon],
    clock: MovedClock,
    run_training: Callable[..., str],
    count: Callable[[int, int], int],
) -> None:
    daemon = start_with_clock(*QUIET, "--storage.retention.age=90d")
    runs = [f"run{number}" for number in range(3)]
    for run in runs:
        run_training(daemon, "-c", "import trackside; trackside.push(loss=1)", TRACKSIDE_RUN_ID=run, **PATIENT)
    eventually(lambda: {run["state"] for run in daemon.api("runs").json()["runs"]} == {"finished"})
    for _ in range(count(1, 3)):
        clock.move(3 * YEAR)
        time.sleep(count(6, 9))  # the ages of runs are checked each 5 s
        clock.move(0.0)
    assert {run["id"] for run in daemon.api("runs").json()["runs"]} == {*runs}
    assert not any("is deleted" in line for line in daemon.log)


@pytest.mark.parametrize("moved", [("client", -HOUR), pytest.param(("machine", HOUR), marks=pytest.mark.only_soak)])
def test_a_clock_that_is_set_hides_no_step_and_no_alert_and_changes_no_duration(
    start_with_clock: Callable[..., Daemon],
    start_training: Callable[..., Process],
    clock: MovedClock,
    place: Path,
    moved: tuple[str, float],
) -> None:
    owner, by = moved
    (place / "of the client").mkdir()
    clients = MovedClock(place / "of the client", clock.library)
    daemon, began = start_with_clock(*QUIET), time.monotonic()
    training = start_training(
        daemon, "-c", CLOCKED, launcher=("env",), TRACKSIDE_RUN_ID="clocked", **clients.environ, **PATIENT
    )

    def newest() -> list[tuple[int, float]]:
        """Return step and loss of the run on the page."""
        return [(run["step"], run["loss"]) for run in daemon.api("runs").json()["runs"]]

    def push(loss: float, steps: int) -> None:
        print(loss, file=training.stdin, flush=True)
        eventually(lambda: newest() == [(steps - 1, loss)])

    push(0.5, 20)
    clients.move(by)
    clock.move(by if owner == "machine" else 0.0)
    push(0.25, 40)
    assert daemon.stop() == 0
    daemon = start_with_clock(*QUIET)
    push(0.125, 60)
    print(nan, file=training.stdin, flush=True)
    eventually(lambda: "NonFinite" in {alert["alert"] for alert in daemon.api("alerts").json()["alerts"]})
    finish(training)
    eventually(lambda: daemon.api("runs/clocked").json()["state"] == "finished")
    run = daemon.api("runs/clocked").json()
    assert 0 < run["ended"] - run["started"] <= time.monotonic() - began
    assert abs(run["ended"] - time.time() - (by if owner == "machine" else 0.0)) < time.monotonic() - began
    sets = [
        event["fields"] for event in daemon.api("events?run=clocked").json()["events"] if event["kind"] == "clock_set"
    ]
    assert [round(fields["seconds"]) for fields in sets] == ([by] if owner == "machine" else [])


@pytest.mark.usefixtures("only_soak")
def test_a_million_keys_cost_no_more_memory_than_some_thousands(
    start_daemon: Callable[..., Daemon],
    run_training: Callable[..., str],
    count: Callable[[int, int], int],
    soaked: list[tuple[str, int, float]],
) -> None:
    daemon = start_daemon("--no-collector.gpu")
    process = psutil.Process(daemon.process.pid)
    before = process.memory_info().rss
    keys = count(50_000, 1_000_000)
    run_training(daemon, "-c", MANY_KEYS, str(keys), **PATIENT)
    eventually(lambda: counted(daemon, WRITTEN) == keys)
    eventually(lambda: daemon.api("runs/keys?limit=0").json()["series"] == keys)
    used = (process.memory_info().rss - before) / 2**20
    if keys == 1_000_000:
        soaked.append((f"the same: {used:.0f} MiB more than before", keys, 0.0))
    assert used < 256, keys  # also while answers read what is not packed yet


def test_a_tight_loop_of_pushes_needs_32_mebibytes_at_most(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], count: Callable[[int, int], int]
) -> None:
    cases = [(16, False), (2, False), (20_000, False), (16, True), (2, True), (20_000, True)]
    for width, is_there in cases[: count(1, len(cases))]:
        daemon = start_daemon(*QUIET)
        if not is_there:
            daemon.stop()
        training = start_training(daemon, "-c", TIGHT, str(width), str(count(1, 20)))
        assert float(finish(training)) <= 32, (width, is_there)
        daemon.stop()


def test_of_some_hundred_scrapes_at_once_each_gets_a_status(
    start_daemon: Callable[..., Daemon], count: Callable[[int, int], int]
) -> None:
    host, _, port = start_daemon(*QUIET).url.removeprefix("http://").partition(":")
    for _ in range(count(1, 3)):
        with ExitStack() as ends:
            scrapes = []
            for _ in range(count(100, 500)):
                scrapes.append(ends.enter_context(socket.create_connection((host, int(port)), DEADLINE)))
                scrapes[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            statuses = {ends.enter_context(scrape.makefile("rb")).readline().split()[1] for scrape in scrapes}
        assert statuses <= {b"200", b"503"}


def test_eight_ranks_go_through_every_fault_without_a_loss_and_in_flat_memory(
    start_with_clock: Callable[..., Daemon],
    clock: MovedClock,
    start_training: Callable[..., Process],
    count: Callable[[int, int], int],
    soaked: list[tuple[str, int, float]],
) -> None:
    seconds, size = count(0, 720), count(2, 8)
    daemon = start_with_clock("--collector.gpu.simulate=8")
    group = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    ranks = [
        start_training(
            daemon, "-c", WIDE, RANK=str(rank), LOCAL_RANK=str(rank), TRACKSIDE_RUN_ID="wide", **group, **PATIENT
        )
        for rank in range(size)
    ]
    is_written(daemon)
    began = time.monotonic()
    daemons = 0
    while not daemons or time.monotonic() < began + seconds / 6:
        for damage in (cut, delete):
            before = counted(daemon, WRITTEN)
            eventually(lambda daemon=daemon, before=before: counted(daemon, WRITTEN) > before + 20)  # type: ignore[misc]
            damage(daemon.history)
            time.sleep(seconds / 72)  # what is written meanwhile may be lost with the file
            daemon.stop(signal.SIGKILL)
            daemon = start_with_clock("--collector.gpu.simulate=8")
            daemons += 1
    whole_from = 10 * (time.monotonic() - began) + 100
    faults = Faults(daemon, clock, count(1, 50) / 10)
    uses: list[tuple[float, int, int]] = []
    begun = time.monotonic()
    while not uses or time.monotonic() < begun + 5 / 6 * seconds:
        for fault in faults.all:
            fault()
            before = counted(daemon, WRITTEN)
            eventually(lambda before=before: counted(daemon, WRITTEN) > before)  # type: ignore[misc]
            assert daemon.api("runs/wide").status_code == 200
        uses.append(faults.use())
    steps = [int(finish(rank)) for rank in ranks]
    eventually(lambda: daemon.api("runs/wide").json()["state"] == "finished")
    assert not any(value for name, value in daemon.series().items() if "client_dropped_total" in name)
    cpu = sum(psutil.Process(daemon.process.pid).cpu_times()[:2])
    assert daemon.stop() == 0
    found = stored_samples(daemon.history, "wide")
    assert len(found) == size * 20
    for (_, rank, key), rows in found.items():
        first, more = rows[0][0], int(key.removeprefix("key").replace("loss", "0"))
        assert first < whole_from, "only what a damaged or deleted file had is lost"
        assert rows == [(number, float(number + more)) for number in range(first, steps[rank])]
    if len(uses) > 2:
        rounds = ", ".join(f"{use[0]:.0f}" for use in uses)
        soaked.append((f"the same: steps; MiB after each ten faults: {rounds}", sum(steps), cpu))
        soaked.append((f"the same: faults, {daemons} of them damaged or deleted files", daemons + 10 * len(uses), cpu))
    memory, descriptors, threads = zip(*uses, strict=True)
    if len(uses) > 2:
        assert memory[-1] <= 1.1 * memory[1]
        # Some more are open for a moment, as while a worker is replaced.
        assert min(descriptors[-3:]) <= min(descriptors[:3])
        assert min(threads[-3:]) <= min(threads[:3])
