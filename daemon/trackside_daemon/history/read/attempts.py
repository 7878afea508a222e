"""The attempts of runs: which was the last, when it ended, how far it came, and whose processes it had."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from trackside.wire import Identity
from trackside_daemon.history.read.series import LogTail

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence


def last_attempt(connection: sqlite3.Connection, uid: str) -> tuple[int, float | None] | None:
    """The number of a run's last attempt, and when it ended, None while it lives; None for a run that is not known."""
    found = connection.execute(
        "SELECT attempt.number, attempt.ended FROM attempt JOIN run ON run.id = attempt.run "
        "WHERE run.uid = ? AND NOT run.deleted ORDER BY attempt.number DESC LIMIT 1",
        (uid,),
    ).fetchone()
    return None if found is None else (int(found[0]), found[1])


def unended(connection: sqlite3.Connection) -> list[tuple[bytes, Identity]]:
    """The sessions of all attempts that have not ended, and the identities of their processes as far as they are kept."""
    found = connection.execute(
        "SELECT session.id, run.uid, run.name, attempt.number, stream.rank, session.pid, session.start, session.boot, "
        "attempt.about FROM attempt JOIN run ON run.id = attempt.run "
        "JOIN stream ON stream.run = run.id AND stream.attempt = attempt.number "
        "JOIN session ON session.stream = stream.id WHERE attempt.ended IS NULL AND NOT run.deleted"
    )
    return [(session, _identity(known)) for session, *known in found]


def _identity(known: Sequence[Any]) -> Identity:
    uid, name, attempt, rank, pid, start, boot, about = known
    told = json.loads(about) if about else {}
    words = {key: str(told.get(key, "")) for key in ("host", "framework", "job_id", "git_commit")}
    identity = Identity(uid, name, attempt, rank, world=told.get("world_size", 1), pid=pid, start=start, boot=boot)
    return msgspec.structs.replace(identity, **words)


def last_time(connection: sqlite3.Connection, uid: str, attempt: int) -> float:
    """When something was last pushed in an attempt; when it began, if nothing was."""
    found = connection.execute(
        "SELECT run.id, attempt.started FROM run JOIN attempt ON attempt.run = run.id WHERE uid = ? AND number = ?",
        (uid, attempt),
    ).fetchone()
    streams = connection.execute("SELECT id FROM stream WHERE run = ? AND attempt = ?", (found[0], attempt)).fetchall()
    packed = (
        "SELECT max(time_max) FROM series JOIN block ON block.id = "
        "(SELECT max(id) FROM block WHERE id >= series.id << 24 AND id < series.id + 1 << 24) WHERE series.stream = ?"
    )
    times = [connection.execute(packed, stream).fetchone()[0] for stream in streams]
    times += [LogTail(connection, stream).last_time() for (stream,) in streams]
    return max((time / 1e6 for time in times if time is not None), default=float(found[1]))


def highest(connection: sqlite3.Connection, run: int, attempt: int) -> int | None:
    """The highest step that a run, by its row, has made by the end of an attempt; None when it has made none.

    What is packed a run knows in all, and only its last attempts are not packed yet.
    """
    (packed,) = connection.execute("SELECT step FROM run WHERE id = ?", (run,)).fetchone()
    streams = connection.execute("SELECT id FROM stream WHERE run = ? AND attempt = ?", (run, attempt)).fetchall()
    steps = [packed, *(LogTail(connection, stream).highest() for (stream,) in streams)]
    return max((step for step in steps if step is not None), default=None)
