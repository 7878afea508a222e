"""Read the attempts of runs: the last one, its end, its highest step, its processes; and the sessions of clients."""

import json
import os
import sqlite3
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from trackside.wire import Identity
from trackside_daemon.history.clock_moves import ClockMove, clock_moves, moved, moves_of_stream
from trackside_daemon.history.codec import decode_axis
from trackside_daemon.history.read.series import LogTail, StoredSeries, find
from trackside_daemon.history.schema import BLOCK_BITS

Axis = tuple["array[int]", "array[int]"]
"""Steps of consecutive samples, and their times in Unix microseconds."""

MOST_KEYS = 4096  # most series to compare: a stream may have a million
TAIL_KEYS = 64  # the same, of the log

_BLOCKS = f"FROM block WHERE id >= series.id << {BLOCK_BITS} AND id < series.id + 1 << {BLOCK_BITS} ORDER BY id"
_ENDS = (
    f"SELECT min((SELECT time_min {_BLOCKS} LIMIT 1)), max((SELECT time_max {_BLOCKS} DESC LIMIT 1)) "  # noqa: S608
    "FROM series WHERE stream = ?"
)
_FIRST_AXES = (
    "SELECT data, cells FROM axis WHERE id IN (SELECT block.axis FROM series JOIN block "  # noqa: S608
    f"ON block.id = (SELECT id {_BLOCKS} LIMIT 1) WHERE series.stream = ?)"
)
_LAST_SAMPLES = (
    f"SELECT block.step, block.time FROM series JOIN block ON block.id = (SELECT id {_BLOCKS} DESC LIMIT 1) "  # noqa: S608
    "WHERE series.stream = ?"
)


def read_axes(connection: sqlite3.Connection, stream: int, tail: LogTail, blocks: int) -> list[Axis]:
    """Return the axes of a stream's series with the most samples: of at most *blocks* of its blocks, and of the log.

    Between two axes, samples may be missing. A block without samples has the axis of its cells. If the clock was set meanwhile, the
    times before are as by the new time.

    Raises:
        ValueError: A block is damaged.
    """
    series = longest(connection, stream, tail)
    if series is None:
        return []
    first, last = series.id << BLOCK_BITS, series.id + 1 << BLOCK_BITS
    ids = [id_ for (id_,) in connection.execute("SELECT id FROM block WHERE id >= ? AND id < ?", (first, last))]
    chosen = {ids[len(ids) * number // blocks] for number in range(blocks)} if ids else set()
    query = "SELECT axis.data, axis.cells FROM block JOIN axis ON axis.id = block.axis WHERE block.id = ?"
    rows = (connection.execute(query, (id_,)).fetchone() for id_ in sorted(chosen))
    axes = [_axis(*row) for row in rows]
    fresh = tail.read(series)[:2]
    axes += [fresh] if len(fresh[0]) else []
    moves = moves_of_stream(connection, stream)
    return [(steps, moved(moves, steps, times)) for steps, times in axes] if moves else axes


def push_times(
    connection: sqlite3.Connection, stream: int, tail: LogTail, moves: Sequence[ClockMove] = ()
) -> tuple[float, float] | None:
    """Return the Unix times of the first and the last push of a stream; None without one.

    If the clock was set meanwhile, by *moves*, they are as by the new time.
    """
    if not moves:
        packed = connection.execute(_ENDS, (stream,)).fetchone()
        known = [time for time in (*packed, tail.first_time(), tail.last_time()) if time is not None]
    else:
        first = [_axis(*row) for row in connection.execute(_FIRST_AXES, (stream,))]
        pairs = [(steps[0], times[0]) for steps, times in first]
        pairs += [*connection.execute(_LAST_SAMPLES, (stream,)), *tail.ends()]
        known = list(moved(moves, [step for step, _ in pairs], array("q", [time for _, time in pairs])))
    return (min(known) / 1e6, max(known) / 1e6) if known else None


def longest(connection: sqlite3.Connection, stream: int, tail: LogTail) -> StoredSeries | None:
    """Return the series of a stream that has the most samples; None without one."""
    among = "(SELECT key, end FROM series WHERE stream = ? LIMIT ?)"
    query = f"SELECT key FROM {among} ORDER BY end DESC LIMIT 1"  # noqa: S608
    row = connection.execute(query, (stream, MOST_KEYS)).fetchone()
    keys = tail.keys()[:TAIL_KEYS] if row is None else [str(row[0])]
    found = list(find(connection, stream, tail, keys))
    return max(found, key=lambda series: series.end + len(tail.read(series)[0]), default=None)


def _axis(data: bytes | None, cells: bytes) -> Axis:
    """Return steps and times of a block; of a trimmed one those of the last sample of each cell."""
    if data is not None:
        return decode_axis(data)
    half = len(cells) // 16 * 8
    return array("q", cells[:half]), array("q", cells[half : 2 * half])


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
    """End of an attempt, or of one of its ranks."""

    rank: int | None  # None for the attempt
    state: str  # one of `records.ENDS`
    cause: str
    time: float  # when, in Unix seconds


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
    """A client session in the history."""

    committed: int  # number of its last message that was committed
    attempt: int  # the attempt of its run that it belongs to
    ended: bool = False  # its rank of that attempt reported its end itself
    owner: str | None = None  # the id of its run's `Owner`; None if no session with one has opened the run
    # The id of its run, if that has no owner, was not imported, and its attempt has not ended; else empty.
    unowned: str = ""
    run: str = ""  # the id of its run


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
