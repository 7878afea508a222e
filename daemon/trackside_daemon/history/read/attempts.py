"""Read the attempts of runs: the last one, its end, its highest step, its processes; and the sessions of clients."""

import json
import os
import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from trackside.wire import Identity
from trackside_daemon.history.clock_moves import clock_moves
from trackside_daemon.history.read.axes import push_times
from trackside_daemon.history.read.series import LogTail


def last_attempt(connection: sqlite3.Connection, uid: str) -> tuple[int, float | None] | None:
    """Return number and end of a run's last attempt, the end None while it lives; None if there is no such run."""
    row = connection.execute(
        "SELECT attempt.number, attempt.ended FROM attempt JOIN run ON run.id = attempt.run "
        "WHERE run.uid = ? AND NOT run.deleted ORDER BY attempt.number DESC LIMIT 1",
        (uid,),
    ).fetchone()
    return None if row is None else (int(row[0]), row[1])


def run_owner(connection: sqlite3.Connection, uid: str) -> str | None:
    """Return the id of a run's `Owner`, this user's if no session has opened it with one; None if there is no such run."""
    # An import hides the run, and still has its id.
    row = connection.execute(
        "SELECT coalesce(owner, ?) FROM run WHERE uid = ? AND deleted != 1", (f"uid:{os.getuid()}", uid)
    ).fetchone()
    return None if row is None else row[0]


def unended(connection: sqlite3.Connection) -> list[tuple[bytes, Identity]]:
    """Return the sessions of attempts that have not ended, with the identities of their processes."""
    rows = connection.execute(
        "SELECT session.id, run.uid, run.name, attempt.number, stream.rank, session.pid, session.start, session.boot, "
        "attempt.about FROM attempt JOIN run ON run.id = attempt.run "
        "JOIN stream ON stream.run = run.id AND stream.attempt = attempt.number "
        "JOIN session ON session.stream = stream.id WHERE attempt.ended IS NULL AND NOT run.deleted"
    )
    return [(session, _identity(fields)) for session, *fields in rows]


def _identity(fields: Sequence[Any]) -> Identity:
    uid, name, attempt, rank, pid, start, boot, about = fields
    stored = json.loads(about) if about else {}
    texts = {key: str(stored.get(key, "")) for key in ("host", "framework", "job_id", "git_commit")}
    identity = Identity(uid, name, attempt, rank, world=stored.get("world_size", 1), pid=pid, start=start, boot=boot)
    return msgspec.structs.replace(identity, **texts)


class AttemptEnd(NamedTuple):
    """End of an attempt, or of one of its ranks.

    Attributes:
        rank: None for the attempt.
        state: One of `records.ENDS`.
        time: When, in Unix seconds.
    """

    rank: int | None
    state: str
    cause: str
    time: float


def ends(connection: sqlite3.Connection, uid: str) -> list[AttemptEnd]:
    """Return how the ranks of a run's last attempt ended, and the attempt itself, as far as they have."""
    rows = connection.execute(
        "WITH last AS (SELECT attempt.run, number, attempt.state, attempt.cause, attempt.ended FROM attempt "
        "JOIN run ON run.id = attempt.run WHERE uid = ? ORDER BY number DESC LIMIT 1) "
        "SELECT rank, json_extract(fields, '$.state'), json_extract(fields, '$.cause'), time FROM last "
        "JOIN event ON event.run = last.run AND event.attempt = last.number AND kind = 'rank_ended' "
        "UNION ALL SELECT NULL, state, cause, ended FROM last WHERE ended IS NOT NULL",
        (uid,),
    )
    return [AttemptEnd(rank, str(state), str(cause or ""), float(time)) for rank, state, cause, time in rows]


def last_time(connection: sqlite3.Connection, uid: str, attempt: int) -> float:
    """Return the Unix time of the last push in an attempt, or of its start if it has none."""
    row = connection.execute(
        "SELECT run.id, attempt.started FROM run JOIN attempt ON attempt.run = run.id WHERE uid = ? AND number = ?",
        (uid, attempt),
    ).fetchone()
    streams = connection.execute("SELECT id FROM stream WHERE run = ? AND attempt = ?", (row[0], attempt)).fetchall()
    moves = clock_moves(connection, row[0], attempt)
    times = (push_times(connection, stream, LogTail(connection, stream), moves) for (stream,) in streams)
    return max((time[1] for time in times if time is not None), default=float(row[1]))


def highest(connection: sqlite3.Connection, run: int, attempt: int) -> int | None:
    """Return the highest step of a run, given by its row's id, until the end of an attempt; None without a step."""
    # The run's row has the highest packed step of all attempts, and only the last attempts are not packed yet.
    (packed,) = connection.execute("SELECT step FROM run WHERE id = ?", (run,)).fetchone()
    streams = connection.execute("SELECT id FROM stream WHERE run = ? AND attempt = ?", (run, attempt)).fetchall()
    steps = [packed, *(LogTail(connection, stream).highest() for (stream,) in streams)]
    return max((step for step in steps if step is not None), default=None)


class StoredSession(NamedTuple):
    """A client session in the history.

    Attributes:
        committed: Number of its last message that was committed.
        attempt: The attempt of its run that it belongs to.
        ended: Its rank of that attempt reported its end itself.
        owner: The id of its run's `Owner`; None if no session with one has opened the run.
        unowned: The id of its run, if that has no owner, was not imported, and its attempt has not ended; else empty.
        run: The id of its run.
    """

    committed: int
    attempt: int
    ended: bool = False
    owner: str | None = None
    unowned: str = ""
    run: str = ""


def stored_session(connection: sqlite3.Connection, session: bytes) -> StoredSession | None:
    """Return a session; None if the history does not have it."""
    row = connection.execute(
        "SELECT session.committed, stream.attempt, run.owner, run.uid, attempt.ended IS NULL AND run.imported = 0 "
        "FROM session JOIN stream ON stream.id = session.stream JOIN run ON run.id = stream.run "
        "JOIN attempt ON attempt.run = run.id AND attempt.number = stream.attempt WHERE session.id = ?",
        (session,),
    ).fetchone()
    if row is None:
        return None
    end = connection.execute(
        "SELECT event.fields FROM session JOIN stream ON stream.id = session.stream JOIN event ON event.run = stream.run "
        "AND event.attempt = stream.attempt AND event.rank = stream.rank WHERE session.id = ? "
        "AND event.kind = 'rank_ended' ORDER BY event.id DESC LIMIT 1",
        (session,),
    ).fetchone()
    committed, attempt, owner, run, goes_on = row
    ended = end is not None and json.loads(end[0]).get("state") != "lost"
    return StoredSession(committed, attempt, ended, owner, run if owner is None and goes_on else "", run)
