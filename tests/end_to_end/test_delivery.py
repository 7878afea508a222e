"""Nothing is lost and nothing comes twice, whichever side is killed, stopped or late."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from array import array
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from end_to_end.conftest import finish
from end_to_end.test_history import PATIENT, QUIET, about, counted, stored_samples
from processes import DEADLINE, eventually

from trackside.transport.spool import SegmentReader
from trackside.wire import decode_body
from trackside_daemon.history.database import Database
from trackside_daemon.history.read import reader, series

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from processes import Daemon

KEYS = ("loss", "a", "b", "c", "d")

#: Pushes five values a step, so many steps a second, until its input ends, but so many at least; prints how many.
PACED = """
import sys, threading, time, trackside
rate, least = float(sys.argv[1]), int(sys.argv[2])
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
step, began = 0, time.monotonic()
with trackside.init("paced") as run:
    while step < least or not stop.is_set():
        while step < (time.monotonic() - began) * rate:
            run.push(step=step, loss=step, a=step + 1, b=step + 2, c=step + 3, d=step + 4)
            step += 1
        time.sleep(0.005)
print(step, flush=True)
"""

#: Pushes so many steps, no faster than the sender hands them on; prints how many MiB that took, and what was dropped.
BURSTS = """
import re, sys, time, trackside
def most():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
def wait(what):
    until = time.monotonic() + 120
    while not what() and time.monotonic() < until:
        time.sleep(0.01)
run = trackside.init("bursts")
session = run.queue.session
run.push(step=0, loss=0, a=1, b=2, c=3, d=4)
wait(lambda: session.spool.last)
before = most()
for step in range(1, int(sys.argv[1])):
    run.push(step=step, loss=step, a=step + 1, b=step + 2, c=step + 3, d=step + 4)
    if step % 1000 == 0:
        wait(lambda: len(session.rows) < 5000)
wait(lambda: not session.rows and session.spool.last == session._number > 10)
print(most() - before, session.totals.dropped, session.totals.spooled, flush=True)
sys.stdin.read()
"""

RATE = 1_000_000 / 4 / 5 / 120
"""Steps a second of each of four ranks, that push a million samples in two minutes, under --soak."""

RANKS = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
STATE = re.compile(r'trackside_training_rank_state\{rank="\d",run="paced",state="(\w+)"\}')

# Code of a training whose spools have other limits: bytes of all of them, and of a segment.
SPOOL_LIMITS = """
from trackside.transport import session, spool
session.Session.__init__.__kwdefaults__["limits"] = spool.SpoolLimits(spool_bytes={}, segment_bytes={})
"""


def complete(steps: int, first: int = 0) -> dict[str, list[tuple[int, float]]]:
    """Return the samples that `PACED` and `BURSTS` have pushed, by key."""
    return {key: [(step, float(step + more)) for step in range(first, steps)] for more, key in enumerate(KEYS)}


def columns(directory: Path, run: str) -> dict[str, tuple[array[int], array[float]]]:
    """Return steps and values by key of a run of one rank, in a history that no daemon writes any longer."""
    database = Database(directory)
    found = {}
    try:
        with database.reading() as connection:
            every = reader.series(connection, reader.resolve(connection, run), ranks=())
        for one in every:
            steps, values = array("q"), array("d")
            for more_steps, _, more_values in series.samples(database, one.series):
                steps.extend(more_steps)
                values.extend(more_values)
            found[one.series.key] = steps, values
    finally:
        database.close()
    return found


def states(daemon: Daemon) -> set[str]:
    """Return the states of the ranks."""
    return {found[1] for name, value in daemon.series().items() if value and (found := STATE.fullmatch(name))}


def steps_total(daemon: Daemon) -> dict[str, float]:
    """Return the number of steps by rank."""
    return {name: value for name, value in daemon.series().items() if name.startswith("trackside_training_steps_total")}


def test_a_daemon_that_is_killed_or_stopped_repeatedly_stores_every_sample_once_and_no_state_flaps(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], count: Callable[[int, int], int]
) -> None:
    ends, samples, rate = count(4, 100), count(5_000, 1_000_000), count(100, int(RATE))
    least = samples // (4 * len(KEYS))
    daemon = start_daemon(*QUIET)
    ranks = [
        start_training(daemon, "-c", PACED, str(rate), str(least), RANK=rank, LOCAL_RANK=rank, **RANKS, **PATIENT)
        for rank in "0123"
    ]
    eventually(lambda: len(steps_total(daemon)) == 4)
    moments, seen = random.Random(4), set()
    made = steps_total(daemon)
    for number in range(ends):
        time.sleep(moments.uniform(0.1, 1.0))  # any moment will do
        now = steps_total(daemon)
        assert all(now.get(name, total) >= total for name, total in made.items()), "a counter fell"
        made |= now
        seen |= states(daemon)
        daemon.stop(signal.SIGTERM if number % 4 == 3 else signal.SIGKILL)
        daemon = start_daemon(*QUIET)
    steps = [int(finish(rank)) for rank in ranks]
    assert seen <= {"starting", "running"}
    eventually(lambda: states(daemon) == {"finished"})
    assert sorted(steps_total(daemon).values()) == sorted(map(float, steps))
    assert counted(daemon, "ingest_gaps_total") == 0.0
    events = daemon.api("events?run=paced").json()["events"]
    assert sorted(one["kind"] for one in events) == ["rank_ended"] * 4 + ["run_started"]
    assert daemon.stop() == 0
    found = stored_samples(daemon.history, "paced")
    assert {(attempt, rank) for attempt, rank, _ in found} == {(0, rank) for rank in range(4)}
    for rank, pushed in enumerate(steps):
        assert {key: found[0, rank, key] for key in KEYS} == complete(pushed)


def test_a_daemon_or_a_training_that_stands_still_for_longer_than_every_timeout_loses_nothing(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    tmp_path: Path,
    count: Callable[[int, int], int],
) -> None:
    daemons = [start_daemon(*QUIET), start_daemon(*QUIET, directory=tmp_path)]
    trainings = [start_training(daemon, "-c", PACED, str(count(100, 500)), "0", **PATIENT) for daemon in daemons]
    for daemon in daemons:
        eventually(lambda daemon=daemon: counted(daemon, "history_samples_total") > 0)  # type: ignore[misc]
    still = daemons[0].process.pid, trainings[1].pid
    for pid in still:
        os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + count(8, 70)
    while time.monotonic() < until:
        assert states(daemons[1]) == {"running"}
        time.sleep(0.5)  # timeouts are what is waited for
    for pid in still:
        os.kill(pid, signal.SIGCONT)
    behind = counted(daemons[0], "history_samples_total")
    eventually(lambda: counted(daemons[0], "history_samples_total") > behind)
    assert states(daemons[0]) == {"running"}
    for daemon, training in zip(daemons, trainings, strict=True):
        steps = int(finish(training))
        eventually(lambda daemon=daemon: states(daemon) == {"finished"})  # type: ignore[misc]
        assert daemon.stop() == 0
        found = {key: rows for (_, _, key), rows in stored_samples(daemon.history, "paced").items()}
        assert found == complete(steps)


MARKS = {"run_info", "state", "end_timestamp_seconds"}


def shown(daemon: Daemon) -> set[str]:
    """Return the families of trainings that are on the page."""
    return {found[1] for name in daemon.series() if (found := re.match(r"trackside_training_(\w+){.*run=", name))}


def spooled(spool: Path) -> int:
    """Return the number of values in all spools."""
    values = 0
    for path in spool.glob("*.spool"):
        with suppress(OSError, ValueError):  # it is gone by now, or its head is still being written
            values += sum(record.values for record in SegmentReader(path))
    return values


def test_when_both_sides_are_killed_the_next_daemon_reads_the_spool(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], spool: Path
) -> None:
    daemon = start_daemon(*QUIET)
    training = start_training(daemon, "-c", PACED, "2000", "20000", **PATIENT)
    eventually(lambda: counted(daemon, "history_samples_total") > 1000)
    daemon.stop(signal.SIGKILL)
    assert training.stdin is not None
    eventually(lambda: spooled(spool) > 20_000)
    os.kill(training.pid, signal.SIGSTOP)  # so that what it has handed on is what is there
    handed = spooled(spool)
    training.kill()
    training.wait(DEADLINE)
    daemon = start_daemon(*QUIET)
    eventually(lambda: not list(spool.iterdir()))
    eventually(lambda: daemon.api("runs").json()["runs"][0]["state"] == "lost", 90)
    assert shown(daemon) <= MARKS
    assert counted(daemon, "ingest_gaps_total") == 0.0
    assert daemon.stop() == 0
    found = {key: rows for (_, _, key), rows in stored_samples(daemon.history, "paced").items()}
    steps = len(found["loss"])
    assert found == complete(steps)
    assert steps * len(KEYS) >= handed


def kept(place: Path) -> int:
    """Return the highest step in what a living training keeps in case that it is killed; 0 while there is nothing."""
    with suppress(StopIteration, IndexError, OSError, ValueError):  # it is not there yet, or is being written
        frames = [record.frames for record in SegmentReader(next(place.glob("*.spool")))]
        return max(int(max(block.columns()[0])) for block in decode_body("batch", frames[-1][2]).blocks)
    return 0


@pytest.mark.parametrize("ends", [False, True])
def test_of_a_training_that_is_killed_the_history_has_what_it_had_not_sent_though_the_daemon_ends_at_once(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], ends: bool
) -> None:
    daemon = start_daemon(*QUIET)
    place = Path(daemon.endpoint.removeprefix("ipc://")).with_suffix(".kept")
    training = start_training(daemon, "-c", PACED, "200", "0", **PATIENT)
    eventually(lambda: kept(place) > 100)
    os.kill(training.pid, signal.SIGSTOP)
    last = kept(place)
    training.kill()
    training.wait(DEADLINE)
    if not ends:
        eventually(lambda: not list(place.iterdir()))
        eventually(lambda: daemon.api("runs").json()["runs"][0]["state"] == "failed")
        assert counted(daemon, "ingest_gaps_total") == 0.0
    assert daemon.stop() == 0
    assert not list(place.iterdir())
    found = {key: rows for (_, _, key), rows in stored_samples(daemon.history, "paced").items()}
    steps = len(found["loss"])
    assert found == complete(steps)
    assert steps > last


@pytest.mark.parametrize("first", [signal.SIGSTOP, signal.SIGKILL])
def test_of_a_training_that_is_killed_soon_after_its_daemon_the_next_one_reads_all_that_is_left(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], spool: Path, first: signal.Signals
) -> None:
    daemon = start_daemon(*QUIET)
    place = Path(daemon.endpoint.removeprefix("ipc://")).with_suffix(".kept")
    training = start_training(daemon, "-c", PACED, "200", "0", **PATIENT)
    eventually(lambda: kept(place) > 100)
    os.kill(daemon.process.pid, first)
    eventually(lambda: spooled(spool) > 0)
    last = max(kept(place), handed := spooled(spool) // len(KEYS))
    os.kill(training.pid, signal.SIGKILL)
    training.wait(DEADLINE)
    daemon.stop(signal.SIGKILL)
    daemon = start_daemon(*QUIET)
    eventually(lambda: not [*spool.iterdir(), *place.iterdir()])
    eventually(lambda: daemon.api("runs").json()["runs"][0]["state"] in {"lost", "failed"}, 90)
    assert counted(daemon, "ingest_gaps_total") == 0.0
    assert daemon.stop() == 0
    found = {key: rows for (_, _, key), rows in stored_samples(daemon.history, "paced").items()}
    assert found == complete(steps := len(found["loss"]))
    assert steps >= max(last, handed)


def test_without_a_daemon_a_whole_run_is_on_disk_in_little_memory_and_a_later_daemon_reads_it(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    spool: Path,
    count: Callable[[int, int], int],
) -> None:
    absent = start_daemon(*QUIET)
    assert absent.stop() == 0
    steps = count(100_000, 2_000_000) // len(KEYS)
    training = start_training(absent, "-c", BURSTS, str(steps))
    assert training.stdout is not None
    mebibytes, dropped, batches = map(float, training.stdout.readline().split())
    assert mebibytes <= 32
    assert (dropped, batches > 10) == (0, True)
    _, complaints = training.communicate("", timeout=DEADLINE)
    assert (training.returncode, complaints.count("\n")) == (0, 1), complaints
    daemon = start_daemon(*QUIET)
    eventually(lambda: not list(spool.iterdir()))
    eventually(lambda: daemon.api("runs").json()["runs"][0]["state"] == "finished")
    assert shown(daemon) == MARKS, "of what is late the page has the end, and no more"
    assert daemon.series()['trackside_training_state{run="bursts",state="finished"}'] == 1
    assert daemon.stop() == 0
    assert {key: rows for (_, _, key), rows in stored_samples(daemon.history, "bursts").items()} == complete(steps)
    assert about(daemon.history, "bursts")["state"] == "finished"


def test_past_its_bound_a_spool_loses_the_oldest_and_counts_them_exactly(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    spool: Path,
    count: Callable[[int, int], int],
) -> None:
    absent = start_daemon(*QUIET)
    assert absent.stop() == 0
    steps, bound, segment = count(60_000, 9_000_000), count(1_000_000, 2**28), count(100_000, 2**22)
    sizes = SPOOL_LIMITS.format(bound, segment)
    training = start_training(absent, "-c", sizes + BURSTS, str(steps), **PATIENT)
    assert training.stdout is not None
    training.stdout.readline()
    assert sum(path.stat().st_size for path in spool.glob("*.spool")) <= bound + 2**18  # and a message
    daemon = start_daemon(*QUIET)

    def dropped_values() -> float:
        return counted(daemon, 'training_client_dropped_total{rank="0",run="bursts"}')

    eventually(lambda: counted(daemon, "history_samples_total") == steps * len(KEYS) - dropped_values())
    dropped = dropped_values()
    assert dropped > 0
    eventually(lambda: counted(daemon, "ingest_gaps_total") > 0)
    complaints = training.communicate("", timeout=DEADLINE)[1]
    assert daemon.stop() == 0
    found = columns(daemon.history, "bursts")
    present = found["loss"][0]
    for more, key in enumerate(KEYS):
        assert found[key] == (present, array("d", [step + more for step in present]))
    assert dropped == (steps - len(present)) * len(KEYS)
    assert complaints.count("\n") <= 1
    assert present == array("q", range(present[0], steps)), "the newest"


def test_what_a_full_spool_has_lost_of_a_run_that_ended_before_a_daemon_came_is_counted_and_named(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], spool: Path
) -> None:
    absent = start_daemon(*QUIET)
    assert absent.stop() == 0
    steps = 20_000
    sizes = SPOOL_LIMITS.format(400_000, 100_000)
    training = start_training(absent, "-c", sizes + BURSTS, str(steps), **PATIENT)
    training.communicate("", timeout=DEADLINE)
    assert sum(path.stat().st_size for path in spool.glob("*.spool")) <= 400_000 + 2**18
    daemon = start_daemon(*QUIET)
    eventually(lambda: not list(spool.iterdir()))
    dropped = eventually(lambda: counted(daemon, 'training_client_dropped_total{rank="0",run="bursts"}'))
    (run,) = daemon.api("runs").json()["runs"]
    events = daemon.api(f"events?run={run['id']}").json()["events"]
    (gap,) = [one["fields"] for one in events if one["kind"] == "gap"]
    assert daemon.stop() == 0
    present = columns(daemon.history, "bursts")["loss"][0]
    assert present == array("q", range(steps - len(present), steps))
    assert gap["values"] == dropped == (steps - len(present)) * len(KEYS)
    assert gap["steps"] == f"0 to {steps - len(present) - 1}"


NAN = """
import sys, trackside
run = trackside.init("nan")
for step in range(30):
    run.push(step=step, loss=float("nan") if step == 20 else 2.0)
if sys.argv[1:]:
    print("pushed", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.only_soak), True])
def test_the_detectors_check_what_waited_in_a_spool_until_its_run_has_ended(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], spool: Path, *, killed: bool
) -> None:
    absent = start_daemon(*QUIET)
    assert absent.stop() == 0
    training = start_training(absent, "-c", NAN, *["killed"] * killed)
    if killed:
        assert training.stdout is not None
        training.stdout.readline()
        eventually(lambda: [path for path in spool.glob("*.spool") if path.stat().st_size > 1000])
        training.kill()
    training.communicate("", timeout=DEADLINE)
    daemon = start_daemon(*QUIET)

    def found() -> list[str]:
        return [
            one["summary"]
            for one in daemon.api("alerts").json()["alerts"]
            if one["alert"] == "NonFinite" and one["ended"]
        ]

    assert eventually(found) == ["nan: loss: NaN at step 20; the last finite value was 2"]


@pytest.mark.usefixtures("only_soak")
def test_a_restart_of_the_daemon_is_not_an_event_though_it_takes_long(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], spool: Path
) -> None:
    daemon = start_daemon(*QUIET)
    training = start_training(daemon, "-c", PACED, "100", "0", **PATIENT)
    eventually(lambda: counted(daemon, "history_samples_total") > 0)
    daemon.stop(signal.SIGKILL)
    eventually(lambda: spooled(spool) > 0)
    daemon = start_daemon(*QUIET)
    eventually(lambda: states(daemon) == {"running"})
    eventually(lambda: counted(daemon, 'training_client_spooled_total{rank="0",run="paced"}') > 0)
    steps = int(finish(training))
    eventually(lambda: states(daemon) == {"finished"})
    assert sorted(steps_total(daemon).values()) == [steps]
    assert daemon.stop() == 0
    assert {key: rows for (_, _, key), rows in stored_samples(daemon.history, "paced").items()} == complete(steps)


#: Pushes three steps, says so, and waits to be told to go on to its end.
THREE = """
import sys, trackside
run = trackside.init("again")
for step in range(3):
    run.push(step=step, loss=step)
print("pushed", flush=True)
sys.stdin.readline()
"""


def attempts(daemon: Daemon) -> list[tuple[int, str]]:
    """Return number and state of each attempt of the resumed run."""
    reported = daemon.api("runs/same").json().get("attempt_list", [])
    return [(one["attempt"], one["state"]) for one in reported]


def test_a_run_that_is_resumed_before_the_daemon_is_back_is_another_attempt(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    daemon = start_daemon(*QUIET)
    first = start_training(daemon, "-c", THREE, TRACKSIDE_RUN_ID="same", **PATIENT)
    eventually(lambda: counted(daemon, "history_samples_total") == 3)
    daemon.stop(signal.SIGKILL)
    first.kill()
    first.wait(DEADLINE)
    second = start_training(daemon, "-c", THREE, TRACKSIDE_RUN_ID="same", **PATIENT)
    assert second.stdout is not None
    assert second.stdout.readline() == "pushed\n"
    daemon = start_daemon(*QUIET)
    eventually(lambda: counted(daemon, "history_samples_total") == 3)
    assert attempts(daemon) == [(0, "lost"), (1, "running")]
    assert daemon.series()['trackside_training_state{run="again",state="running"}'] == 1
    # A slow start of the daemon may have cost a warning on standard error, which is not the subject here.
    second.communicate("\n", timeout=DEADLINE)
    assert second.returncode == 0
    eventually(lambda: attempts(daemon) == [(0, "lost"), (1, "finished")])


def test_what_several_attempts_have_left_and_one_that_lives_are_not_mixed(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], spool: Path
) -> None:
    daemon = start_daemon(*QUIET)
    assert daemon.stop() == 0
    for end in ("kill", "end"):
        before = spooled(spool)
        training = start_training(daemon, "-c", THREE, TRACKSIDE_RUN_ID="same")
        eventually(lambda before=before: spooled(spool) == before + 3)  # type: ignore[misc]
        if end == "kill":
            training.kill()
        training.communicate("\n", timeout=DEADLINE)
    last = start_training(daemon, "-c", THREE, TRACKSIDE_RUN_ID="same", **PATIENT)
    eventually(lambda: spooled(spool) == 9)
    daemon = start_daemon(*QUIET)
    eventually(lambda: attempts(daemon) == [(0, "lost"), (1, "finished"), (2, "running")])
    last.communicate("\n", timeout=DEADLINE)
    eventually(lambda: attempts(daemon)[2] == (2, "finished"))
    assert daemon.stop() == 0
    assert stored_samples(daemon.history, "again") == {
        (attempt, 0, "loss"): [(step, float(step)) for step in range(3)] for attempt in range(3)
    }


def test_the_leftovers_of_many_are_read_at_once(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], spool: Path
) -> None:
    daemon = start_daemon(*QUIET)
    assert daemon.stop() == 0
    several = "import trackside\nfor n in range(30): trackside.init(f'left-{n}').push(loss=n)"
    assert start_training(daemon, "-c", several).wait(DEADLINE) == 0
    assert len(list(spool.glob("*.lock"))) == 30
    daemon = start_daemon(*QUIET)
    eventually(lambda: not list(spool.iterdir()))  # one after the other at each look would take minutes
    eventually(lambda: {one["state"] for one in daemon.api("runs").json()["runs"]} == {"finished"})
    assert len(daemon.api("runs").json()["runs"]) == 30
    assert not any("no daemon found" in line for line in daemon.log)
