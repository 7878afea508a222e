"""A run belongs to the user or the key that opened it: no other one pushes to it, ends it or continues its sessions.

Users and groups are unused numbers.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import zmtp
from ingest.conftest import Answer, SessionsHarness, read
from msgspec.structs import replace
from processes import DEADLINE, ROOT, clean_environ, eventually
from unprivileged_users import launcher
from wire_messages import WALL, FakeSession

from trackside.transport.orphaned_spool import orphaned_sessions
from trackside.transport.spool import Spool, SpooledMessage
from trackside_daemon.history.read.attempts import StoredSession
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.recorder import HistoryRecorder
from trackside_daemon.ingest.client_sessions import ClientSessions
from trackside_daemon.ingest.connection import Connection, Peer
from trackside_daemon.ingest.orphaned_spools import OrphanedSpools
from trackside_daemon.ingest.run_owners import RunOwners
from trackside_daemon.model.families import daemon as daemon_families
from trackside_daemon.model.records import RunState, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from processes import Daemon

VICTIM, ATTACKER = 61002, 61003
SHARED = 61100

OWNED = """
import sys, trackside
run = trackside.init(name="train", id="job-7")
run.push(step=1, loss=0.5)
for line in sys.stdin:
    run.push(step=int(line), loss=0.5)
run.finish()
"""
ATTACK = """
import trackside
run = trackside.init(name="train", id="job-7")
run.push(step=100000, loss=float("nan"))
run.alert("pwned", severity="critical")
run.finish()
"""

needs_users = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")

ALICE, MALLORY = Connection(b"alice", VICTIM), Connection(b"mallory", ATTACKER)


@pytest.fixture
def shared(place: Path, start_daemon: Callable[..., Daemon]) -> Callable[[], Daemon]:
    """A function that starts a daemon to which a group may push; the next one continues its history."""
    os.chown(place, -1, SHARED)
    place.chmod(0o750)
    return lambda: start_daemon(f"--push.group={SHARED}")


@pytest.fixture
def train(place: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts a training as a user; the training ends when its input does."""
    started: list[subprocess.Popen[str]] = []

    def start(user: int, code: str, **environ: str) -> subprocess.Popen[str]:
        spool = place.parent / f"{place.name}-{user}"
        spool.mkdir(mode=0o700, exist_ok=True)
        os.chown(spool, user, user)
        more = {"TRACKSIDE_ENDPOINT": f"ipc://{place}/push.sock", "TRACKSIDE_SPOOL": str(spool), **environ}
        command = [*launcher(user, SHARED), sys.executable, "-c", code]
        one = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=ROOT, env=clean_environ(more))
        started.append(one)
        return one

    yield start
    for one in started:
        one.kill()
        one.communicate()
    for user in (VICTIM, ATTACKER):
        spool = place.parent / f"{place.name}-{user}"
        if spool.exists():
            for file in spool.iterdir():
                file.unlink()
            spool.rmdir()


def runs(daemon: Daemon) -> dict[str, tuple[str, str]]:
    """Return user and state of each run, by id."""
    return {run["id"]: (run.get("user", ""), run["state"]) for run in daemon.api("runs").json()["runs"]}


def losses(daemon: Daemon, run: str) -> dict[int, float]:
    """Return the losses of a run in the history, of all its attempts, by step; a run that lives may not be there yet."""
    series = daemon.api(f"series?run={run}&points=0&key=loss").json().get("series", ())
    return {step: float(value) for one in series for step, _, value in one["points"]}


def attempts(daemon: Daemon) -> dict[str, int]:
    """Return the last attempt of each run, by id."""
    return {run["id"]: run["attempt"] for run in daemon.api("runs").json()["runs"]}


@needs_users
def test_a_run_of_another_user_stays_as_it_is_also_after_a_restart(
    shared: Callable[[], Daemon], train: Callable[..., subprocess.Popen[str]]
) -> None:
    daemon = shared()
    victim = train(VICTIM, OWNED)
    eventually(lambda: "job-7" in runs(daemon) and losses(daemon, "job-7") == {1: 0.5})
    assert train(ATTACKER, ATTACK, TORCHELASTIC_RESTART_COUNT="7").wait(DEADLINE) == 0
    other = f"job-7~uid:{ATTACKER}"
    eventually(lambda: any(100000 in losses(daemon, run) for run in runs(daemon)))
    assert losses(daemon, "job-7") == {1: 0.5}
    eventually(lambda: runs(daemon).get(other) == (str(ATTACKER), "finished"))
    assert runs(daemon)["job-7"] == (str(VICTIM), "running")
    (info,) = (name for name in daemon.series() if "run_info" in name and 'run_id="job-7"' in name)
    assert 'attempt="0"' in info
    assert f'user="{VICTIM}"' in info
    alerts = daemon.api("alerts").json()["alerts"]
    assert {alert["run"] for alert in alerts if alert["alert"] in {"NonFinite", "UserAlert"}} == {other}
    eventually(lambda: daemon.series()['trackside_ingest_rejected_total{reason="owner"}'] == 1)
    assert sum("belongs to another user" in line for line in daemon.log) == 1

    daemon.stop()
    daemon = shared()
    assert victim.stdin is not None
    victim.stdin.write("2\n")
    victim.stdin.flush()
    assert train(ATTACKER, ATTACK).wait(DEADLINE) == 0
    eventually(lambda: losses(daemon, "job-7") == {1: 0.5, 2: 0.5})
    eventually(lambda: attempts(daemon) == {"job-7": 0, other: 8})
    assert runs(daemon)["job-7"] == (str(VICTIM), "running")
    victim.communicate()
    eventually(lambda: runs(daemon)["job-7"] == (str(VICTIM), "finished"))


def test_a_client_without_a_key_cannot_name_itself(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("--push.endpoint=tcp://127.0.0.1:0")
    (endpoint,) = (one for one in daemon.api("status").json()["push_endpoints"] if one.startswith("tcp://"))
    session = FakeSession("claimed")
    claims = {"User-Id": b"gpu7", "Peer-Address": b"localhost:61002:61002:1"}
    with socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2])), DEADLINE) as connection:
        zmtp.shake_hands(connection, **claims)
        zmtp.send(connection, session.frames("hello", session.hello()))
        (info,) = eventually(lambda: [name for name in daemon.series() if "_run_info{" in name])
    assert 'user=""' in info
    assert runs(daemon) == {"claimed": ("", "starting")}


def receive(desk: SessionsHarness, connection: Connection, frames: list[bytes]) -> list[Answer]:
    answers, batches = desk.sessions.receive(connection, frames, desk.house.now)
    desk.house.accept(batches)
    desk.receipts += [batch.receipt for batch in batches if batch.receipt is not None]
    return [read(one, connection.id) for one in answers]


def greet(desk: SessionsHarness, connection: Connection, session: FakeSession, **more: Any) -> list[Answer]:
    return receive(desk, connection, session.frames("hello", replace(session.hello(), **more)))


def opened(desk: SessionsHarness) -> list[str]:
    return [record.session.run for record in desk.house.records if isinstance(record, SessionOpened)]


@pytest.fixture
def desk() -> SessionsHarness:
    return SessionsHarness()


def test_only_its_owner_continues_a_session(desk: SessionsHarness) -> None:
    session = FakeSession()
    greet(desk, ALICE, session)
    for frames in (session.batch(1), session.skip(1, 3), session.frames("bye", session.bye(), 1)):
        assert receive(desk, MALLORY, frames) == [Answer("hello?")]
    assert greet(desk, MALLORY, session) == []
    assert desk.counts(daemon_families.INGEST_REJECTED) == {"owner": 1.0}
    assert receive(desk, Connection(b"again", VICTIM), session.batch(1)) == []
    assert desk.commit() == [Answer("ack", 1)]
    assert desk.house.state_of() == "running"


def test_only_its_owner_continues_a_session_of_an_earlier_daemon(desk: SessionsHarness) -> None:
    session = FakeSession()
    desk.kept[session.id] = StoredSession(5, 0, owner=ALICE.owner)
    assert greet(desk, MALLORY, session) == []
    assert greet(desk, ALICE, session) == [Answer("welcome", 5)]


@pytest.mark.parametrize(
    ("other", "id_"),
    [
        (Connection(b"b", ATTACKER), f"id-1~uid:{ATTACKER}"),
        (Connection(b"b", key="gpu8"), "id-1~key:gpu8"),
        (Connection(b"b"), "id-1~unknown"),
    ],
)
def test_another_owner_gets_a_run_of_its_own(desk: SessionsHarness, other: Connection, id_: str) -> None:
    greet(desk, Connection(b"a", key="gpu7"), FakeSession(rank=0, world=2, local_world=1))
    greet(desk, Connection(b"c", key="gpu7"), FakeSession(rank=1, world=2, local_world=1, host="node-2"))
    greet(desk, other, FakeSession())
    greet(desk, other, FakeSession(rank=1))
    assert opened(desk) == ["id-1", "id-1", id_, id_]
    assert desk.counts(daemon_families.INGEST_REJECTED) == {"owner": 2.0}


def test_an_id_that_names_an_owner_is_only_that_owners(desk: SessionsHarness) -> None:
    greet(desk, MALLORY, FakeSession(f"id-1~{ALICE.owner}"))
    greet(desk, MALLORY, FakeSession("id-1"))
    greet(desk, ALICE, FakeSession("id-1"))
    assert opened(desk) == [f"id-1~{ALICE.owner}~{MALLORY.owner}", "id-1", f"id-1~{ALICE.owner}"]


def test_of_long_ids_the_end_stays(desk: SessionsHarness) -> None:
    greet(desk, ALICE, FakeSession("x" * 300))
    greet(desk, MALLORY, FakeSession("x" * 300))
    assert opened(desk) == ["x" * 256, "x" * (256 - len(f"~{MALLORY.owner}")) + f"~{MALLORY.owner}"]


def stored(directory: Path, session: FakeSession, *more: RunState, **columns: Any) -> HistoryRecorder:
    """Return a history, to be closed, with a session of a run from before owners."""
    history = HistoryRecorder(directory, Bounds(0))
    history.start()
    desk = SessionsHarness()
    greet(desk, ALICE, session)
    history.writer.put([*map(replace_owner, desk.house.records), *more])
    values = ", ".join(f"{name} = {value}" for name, value in columns.items())
    history.writer.call(lambda store: store.connection.execute(f"UPDATE run SET {values or 'name = name'}")).result()
    history.stop()
    return history


def test_a_training_from_before_owners_goes_on_and_no_other_user_gets_its_run(tmp_path: Path) -> None:
    session = FakeSession()
    with closing(stored(tmp_path, session)) as history:
        assert history.session(session.id) == StoredSession(0, 0, unowned="id-1", run="id-1")
        desk = SessionsHarness()
        desk.sessions = ClientSessions(desk.house.runs, history.session, owners=RunOwners(history.run_owner))
        greet(desk, MALLORY, FakeSession())
        greet(desk, ALICE, session)
        greet(desk, ALICE, FakeSession(rank=1))
        assert opened(desk) == [f"id-1~{MALLORY.owner}", "id-1", "id-1"]


@pytest.mark.parametrize("columns", [{}, {"imported": 1.0}, {"imported": 1.0, "deleted": 2}])
def test_an_ended_or_imported_run_without_an_owner_is_the_users_of_the_daemon(
    tmp_path: Path, columns: dict[str, float]
) -> None:
    session = FakeSession()
    ended = [] if columns else [RunState("id-1", 0, "finished", "", WALL)]
    with closing(stored(tmp_path, session, *ended, **columns)) as history:
        desk = SessionsHarness()
        desk.sessions = ClientSessions(desk.house.runs, history.session, owners=RunOwners(history.run_owner))
        greet(desk, MALLORY, FakeSession())
        greet(desk, MALLORY, session)
        greet(desk, Connection(b"own", os.getuid()), FakeSession())
        assert opened(desk) == [f"id-1~{MALLORY.owner}", f"id-1~{MALLORY.owner}", "id-1"]


def replace_owner(record: Any) -> Any:
    """Return a record as it was before runs had owners."""
    return dataclasses.replace(record, owner=None) if isinstance(record, SessionOpened) else record


@pytest.mark.parametrize("world", [1, 8])
def test_a_run_of_the_same_name_removes_no_run_of_another_user(desk: SessionsHarness, world: int) -> None:
    session = FakeSession()
    greet(desk, ALICE, session)
    greet(desk, MALLORY, FakeSession("id-2", world=world, local_world=1))
    assert desk.house.state_of("train") == "starting"
    receive(desk, ALICE, session.frames("bye", session.bye("failed"), 1))
    greet(desk, MALLORY, FakeSession("id-3", world=world, local_world=1))
    assert desk.house.state_of("train") == "failed"
    assert {name for name in ("train", "train-2", "train-3") if desk.house.has(name)} >= {"train", "train-2"}


@needs_users
def test_a_spool_that_the_daemon_reads_belongs_to_the_user_that_wrote_it(desk: SessionsHarness, spool: Path) -> None:
    spools = OrphanedSpools(["ipc:///nowhere"])
    desk.sessions = ClientSessions(desk.house.runs, desk.kept.get, owners=RunOwners(spooled=spools.writer))
    own = Connection(b"self", os.getuid())
    greet(desk, ALICE, FakeSession())
    forged = FakeSession()
    leave(spool, forged, ATTACKER)
    assert list(spools.hellos()) == [forged.id]
    greet(desk, own, forged, late=True)
    assert opened(desk) == ["id-1", f"id-1~{MALLORY.owner}"]
    # Only what the daemon itself sends can be of another user.
    greet(desk, MALLORY, FakeSession("id-2"), late=True)
    greet(desk, own._replace(peer=Peer(os.getppid(), -1)), FakeSession("id-2"), late=True)
    assert opened(desk)[2:] == ["id-2", f"id-2~uid:{os.getuid()}"]


def leave(spool: Path, session: FakeSession, user: int) -> None:
    """Leave the spool of an ended process of a user, with one message."""
    left = Spool(session.id, spool)
    left.append(SpooledMessage(1, 1, 1, session.batch(1)), lambda: session.frames("hello", session.hello()))
    left.close()
    for file in spool.glob(f"{session.id.hex()}.*"):
        os.chown(file, user, -1)


@pytest.mark.parametrize("name", ["zzzz", "0000000000000002", "0000000000000000"])
@needs_users
def test_a_file_of_another_user_in_a_spool_is_not_read(spool: Path, name: str) -> None:
    session, other = FakeSession(), FakeSession()
    leave(spool, session, VICTIM)
    leave(spool, other, ATTACKER)
    (segment,) = spool.glob(f"{other.id.hex()}.*.spool")
    segment.rename(spool / f"{session.id.hex()}.{name}.spool")
    spools = OrphanedSpools(["ipc:///nowhere"])
    assert (list(spools.hellos()), spools.writer(session.id)) == ([session.id], VICTIM)
    (orphan,) = orphaned_sessions([spool], None)
    assert (orphan.id, orphan.spool.user) == (session.id, VICTIM)
    assert orphan.spool.next_after(0) is not None
    assert orphan.spool.next_after(1) is None
    # After the restore, too.
    os.chown(spool / f"{session.id.hex()}.0000000000000001.spool", ATTACKER, -1)
    assert orphan.spool.next_after(0) is None
    orphan.spool.close()


def test_the_writer_of_a_spool_that_the_daemon_has_not_opened_is_unknown(desk: SessionsHarness) -> None:
    desk.sessions = ClientSessions(desk.house.runs, desk.kept.get)
    own = Connection(b"self", os.getuid())
    greet(desk, own, FakeSession())
    greet(desk, own, FakeSession(), late=True)
    for batch in desk.sessions.open_spooled({bytes(16): FakeSession().hello()}, desk.house.now):
        desk.house.accept([batch])
    assert opened(desk) == ["id-1", "id-1~unknown", "id-1~unknown"]
