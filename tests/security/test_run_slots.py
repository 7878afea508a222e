"""Runs that one user invents keep no other user's run off the page, and raise one alert together.

Users and groups are unused numbers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from ingest.conftest import SessionsHarness
from processes import DEADLINE, ROOT, clean_environ, eventually
from unprivileged_users import launcher
from wire_messages import FakeSession, RunsHarness

from trackside_daemon.ingest.connection import Connection
from trackside_daemon.model.records import RunState
from trackside_daemon.model.session import Owner
from trackside_daemon.training.admission import NEW_RUNS_BURST, OwnerRate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processes import Daemon

VICTIM, ATTACKER = 61002, 61003
SHARED = 61100
SLOTS = 16

INVENT = """
import subprocess, sys
from wire_messages import Client, FakeSession
client = Client(sys.argv[1])
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
    started = int(open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()[19])
    for number in range(200):
        who = FakeSession(f"fake-{number}", name=f"fake-{number}", pid=child.pid, start=started)
        client.send(*who.frames("hello", who.hello()))
    for _ in range(100):
        client.receive()
    sys.stdin.readline()
"""
TRAIN = """
import sys, trackside
run = trackside.init(name="real", id="real")
run.push(step=1, loss=0.5)
sys.stdin.readline()
run.finish()
"""

needs_users = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")


@needs_users
def test_a_real_run_is_shown_while_another_user_invents_runs(place: Path, start_daemon: Callable[..., Daemon]) -> None:
    os.chown(place, -1, SHARED)
    place.chmod(0o750)
    daemon = start_daemon(f"--push.group={SHARED}", environ={"TRACKSIDE_LIMITS__RUNS": str(SLOTS)})
    environ = clean_environ({"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
    environ |= {"TRACKSIDE_ENDPOINT": daemon.endpoint}

    def start(user: int, *arguments: str) -> subprocess.Popen[str]:
        command = [*launcher(user, SHARED), sys.executable, *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=ROOT, env=environ)

    def shown() -> set[str]:
        return {name.partition('run="')[2].partition('"')[0] for name in daemon.series() if "_run_info{" in name}

    attacker = start(ATTACKER, "-c", INVENT, daemon.endpoint)
    eventually(lambda: len(shown()) == SLOTS)
    victim = start(VICTIM, "-c", TRAIN)
    try:
        eventually(lambda: "real" in shown())
        attacker.communicate("\n", timeout=DEADLINE)
        summaries = eventually(lambda: found if len(found := died(daemon, ended=SLOTS - 1)) > 3 else [])
        assert summaries[-1].startswith(f"more than 3 runs of {ATTACKER} died or are lost within a minute, also fake-")
        assert len(summaries) == 4, "three with names, and one for the rest"
        assert 'trackside_training_state{run="real",state="running"}' in daemon.series()
    finally:
        attacker.kill()
        victim.communicate("\n", timeout=DEADLINE)
    stored = daemon.api("runs?limit=0").json()["runs"]
    assert NEW_RUNS_BURST <= len(stored) < 200
    assert daemon.series()['trackside_ingest_rejected_total{reason="rate"}'] > 0


def died(daemon: Daemon, ended: int) -> list[str]:
    """Return the summaries of the alerts about dead runs, in their order, once so many runs have ended; else nothing."""
    states = [
        name for name, value in daemon.series().items() if 'state="lost"' in name and "g_state{" in name and value
    ]
    alerts = [one for one in daemon.api("alerts").json()["alerts"] if one["alert"] == "TrainingProcessDied"]
    return (
        [one["summary"] for one in sorted(alerts, key=lambda one: bool(not one["run"]))] if len(states) >= ended else []
    )


def opened(house: RunsHarness, owner: Owner, *names: str) -> None:
    """Open runs of an owner, each with its name as its id."""
    for name in names:
        speaker = FakeSession(name, name=name)
        session, batches = house.runs.open(None, speaker.hello(house.after), house.now, owner=owner)
        house.accept(batches)
        if session is not None:
            house.sessions[speaker.id] = session


def shown(house: RunsHarness) -> set[str]:
    """Return the names of the runs on the page."""
    return {one.labels[0] for one in house.page() if one.family == "run_info"}


ALICE, BOB, CAROL = Owner("uid:1", "alice", True), Owner("uid:2", "bob", True), Owner("key:c", "c")


def test_each_owner_gets_the_same_share_of_the_runs() -> None:
    house = RunsHarness(runs=6)
    opened(house, ALICE, *(f"a{number}" for number in range(9)))
    assert shown(house) == {f"a{number}" for number in range(6)}
    opened(house, BOB, *(f"b{number}" for number in range(9)))
    assert shown(house) == {"a0", "a1", "a2", "b0", "b1", "b2"}
    opened(house, CAROL, *(f"c{number}" for number in range(9)))
    assert shown(house) == {"a0", "a1", "b0", "b1", "c0", "c1"}
    opened(house, ALICE, "a9")
    assert "a9" not in shown(house)
    assert house.rejected() == {"runs": 3.0 + 9.0 + 9.0 + 1.0}


def test_a_run_that_a_connection_has_verified_comes_before_one_that_is_only_claimed() -> None:
    house = RunsHarness(runs=4)
    claimed = ALICE._replace(verified=False)
    opened(house, claimed, "claimed-0")
    opened(house, ALICE, "real-0", "real-1")
    opened(house, claimed, "claimed-1", "claimed-2")
    opened(house, ALICE, "real-2")
    assert shown(house) == {"claimed-0", "real-0", "real-1", "real-2"}
    opened(house, BOB, "other")
    assert shown(house) == {"other", "real-0", "real-1", "real-2"}


def test_each_owner_gets_a_share_of_the_sessions_and_of_the_series() -> None:
    house = RunsHarness(sessions=4, series=4)
    for rank in range(6):
        speaker = FakeSession("a", name="a", rank=rank, world=6)
        session, batches = house.runs.open(None, speaker.hello(), house.now, owner=ALICE)
        house.accept(batches)
        if session is not None:
            house.sessions[speaker.id] = session
            house.push(speaker, {"x": 1.0, "y": 1.0})
    speaker = FakeSession("b", name="b")
    session, batches = house.runs.open(None, speaker.hello(), house.now, owner=BOB)
    assert session is not None
    house.sessions[speaker.id] = session
    house.accept(batches)
    house.push(speaker, {"x": 1.0, "y": 1.0, "z": 1.0})
    values = [one.labels for one in house.page() if one.family == "value"]
    assert sorted(labels for labels in values if labels[0] == "b") == [("b", "0", "x"), ("b", "0", "y")]
    assert len(values) == 6
    assert house.rejected() == {"sessions": 2.0, "series": 4.0 + 1.0}


def test_of_the_ended_runs_those_of_the_owner_with_the_most_leave_first() -> None:
    house = RunsHarness(runs=3)
    for owner, name in ((BOB, "b"), (ALICE, "a0"), (ALICE, "a1"), (ALICE, "a2")):
        opened(house, owner, name)
        (session,) = [one for one in house.sessions.values() if one.run.name == name]
        house.accept(house.runs.close(session, FakeSession().bye("failed"), house.now))
    assert shown(house) == {"b", "a1", "a2"}


@pytest.mark.parametrize("lost", [False, True])
def test_a_run_that_gave_up_its_place_is_stored_and_ends_in_the_history(*, lost: bool) -> None:
    desk = SessionsHarness(runs=2)
    alice, bob = Connection(b"a", 1), Connection(b"b", 2)
    leaving = FakeSession("a1", name="a1", pid=2**22)
    for speaker, connection in ((FakeSession("a0", name="a0"), alice), (leaving, alice), (FakeSession("b"), bob)):
        desk.pid = 4321 if speaker is leaving and not lost else None
        desk.house.accept(
            desk.sessions.receive(connection, speaker.frames("hello", speaker.hello()), desk.house.now).batches
        )
    stored = desk.sessions.receive(alice, leaving.batch(1), desk.house.now)
    assert [batch.receipt for batch in stored.batches if batch.receipt is not None]
    desk.tick()
    desk.house.after = 40.0
    if lost:
        desk.tick()
    else:
        desk.exit(leaving, -9, pid=4321)
    ends = [record for record in desk.house.records if isinstance(record, RunState) and record.run == "a1"]
    assert (ends[-1].state, ends[-1].cause) == ("lost", "unknown") if lost else ("failed", "SIGKILL")


def test_new_runs_have_a_rate_for_each_owner() -> None:
    rate = OwnerRate()
    assert sum(rate.admit("a", 0.0) for _ in range(1000)) == NEW_RUNS_BURST
    assert rate.admit("b", 0.0)
    assert [rate.admit("a", at) for at in (0.2, 0.5, 0.6, 1.0)] == [False, True, False, True]
    assert sum(rate.admit("a", 1e6) for _ in range(1000)) == NEW_RUNS_BURST
