"""Write the rows of a session that begins: its run, its attempt, its stream and itself."""

import json
import logging
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

from trackside.roles import usable
from trackside_daemon.history.clock_moves import move_clock
from trackside_daemon.history.sanitize import to_json
from trackside_daemon.model.records import SessionOpened

SET_SECONDS = 1.0  # a session on this machine that has begun so much earlier or later shows that the clock was set
UNSURE_SECONDS = 60.0  # the same of another machine, whose hello may have been on the way for long
AUTO_KEYS = 16  # limit of keys that are stored as found without the training code's help

log = logging.getLogger("trackside")


def run_id(connection: sqlite3.Connection, uid: str) -> int | None:
    """Return the id of a run's row; None if there is no such run."""
    row = connection.execute("SELECT id FROM run WHERE uid = ? AND deleted != 1", (uid,)).fetchone()
    return None if row is None else int(row[0])


def write_session(
    connection: sqlite3.Connection, record: SessionOpened, hardware: Callable[[], Mapping[str, Any]]
) -> None:
    """Insert or update the rows of a session; *hardware* describes this machine."""
    identity = record.hello.identity
    _follow_clock(connection, record)
    run = _write_run(connection, record)
    _write_attempt(connection, run, record, hardware)
    place = (run, int64(record.session.attempt), int64(identity.rank))
    connection.execute("INSERT OR IGNORE INTO stream (run, attempt, rank) VALUES (?, ?, ?)", place)
    stream = connection.execute("SELECT id FROM stream WHERE run = ? AND attempt = ? AND rank = ?", place).fetchone()[0]
    connection.execute(
        "INSERT INTO session (id, stream, committed, clock_offset, pid, start, boot, host, began) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET "
        # max: the client may have missed the last ack.
        "stream = excluded.stream, committed = max(committed, excluded.committed), "
        "clock_offset = excluded.clock_offset, began = coalesce(began, excluded.began)",
        (
            record.session.id,
            stream,
            int64(record.hello.acked),
            record.offset,
            int64(identity.pid),
            int64(identity.start),
            identity.boot,
            identity.host,
            _began(record),
        ),
    )


def _began(record: SessionOpened) -> float:
    """Return when a session began, in Unix seconds by this machine's clock, as its hello has it."""
    return record.hello.started / 1e9 + record.offset


def _launched(record: SessionOpened) -> float:
    """Return when the process of a session began to start its run, in Unix seconds by this machine's clock."""
    about = record.hello.about
    return _began(record) - (0.0 if about is None else about.startup / 1e9)


def _follow_clock(connection: sqlite3.Connection, record: SessionOpened) -> None:
    """Move the run of a session that has begun at another time than before: the clock was set since its last hello."""
    row = connection.execute(
        "SELECT run, attempt, began FROM session JOIN stream ON stream.id = stream JOIN run ON run.id = run "
        "WHERE session.id = ? AND NOT deleted",
        (record.session.id,),
    ).fetchone()
    if row is None or row[2] is None or record.hello.late:
        return
    run, attempt, began = row
    seconds = _began(record) - began
    if abs(seconds) > (SET_SECONDS if record.same_clock else UNSURE_SECONDS):
        move_clock(connection, run, attempt, seconds, record.time)


def int64(number: int) -> int:
    """Return the nearest number that a column can hold: a client may send any."""
    return max(-(2**63), min(2**63 - 1, number))


def _write_run(connection: sqlite3.Connection, record: SessionOpened) -> int:
    """Insert or update the run's row; return its id."""
    hello, uid, started = record.hello, record.hello.identity.run, _launched(record)
    # The column is UNIQUE, and the rows of a deleted run disappear only step by step.
    connection.execute("UPDATE run SET uid = uid || '/deleted/' || id WHERE uid = ? AND deleted = 1", (uid,))
    run = run_id(connection, uid)
    if run is None:
        inserted = connection.execute(
            "INSERT INTO run (uid, name, state, started) VALUES (?, ?, ?, ?)",
            (uid, record.session.name, _state(record), started),
        )
        run = int(inserted.lastrowid or 0)
    connection.execute(
        "UPDATE run SET name = ?, started = min(started, ?) WHERE id = ?", (record.session.name, started, run)
    )
    if record.owner is not None:
        # The name may have been looked up since the session before.
        connection.execute(
            "UPDATE run SET owner = :owner, user = :user WHERE id = :run AND coalesce(owner, :owner) = :owner",
            {"owner": record.owner.id, "user": record.owner.user, "run": run},
        )
    if hello.tags:
        connection.execute("UPDATE run SET tags = ? WHERE id = ?", (to_json(list(hello.tags)), run))
    return run


def _write_attempt(
    connection: sqlite3.Connection, run: int, record: SessionOpened, hardware: Callable[[], Mapping[str, Any]]
) -> None:
    """Insert or update the attempt's row; configuration and process information are those of the lowest rank."""
    hello, started = record.hello, _launched(record)
    stored = connection.execute(
        "SELECT about, config_rank FROM attempt WHERE run = ? AND number = ?", (run, record.session.attempt)
    ).fetchone()
    if stored is None:
        connection.execute(
            "INSERT INTO attempt (run, number, state, started) VALUES (?, ?, ?, ?)",
            (run, record.session.attempt, _state(record), started),
        )
        connection.execute("UPDATE run SET state = ?, cause = '', ended = NULL WHERE id = ?", (_state(record), run))
    about = json.loads(stored[0]) if stored else {}
    if hello.identity.rank <= about.get("rank", hello.identity.rank):
        before = about.get("hardware", {})
        about = _about(record, hardware) if record.about is None else dict(record.about)
        if before.get("gpus") and not about.get("hardware", {}).get("gpus"):
            about["hardware"] = before  # a daemon that has just started has found no GPUs yet
    connection.execute(
        "UPDATE attempt SET about = ?, started = min(started, ?) WHERE run = ? AND number = ?",
        (to_json(about), started, run, record.session.attempt),
    )
    if hello.config and (stored is None or stored[1] is None or hello.identity.rank <= stored[1]):
        connection.execute(
            "UPDATE attempt SET config = ?, config_rank = ? WHERE run = ? AND number = ?",
            (hello.config, hello.identity.rank, run, record.session.attempt),
        )


def _about(record: SessionOpened, hardware: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the history stores of a process and its machine, without empty values."""
    hello, identity, process = record.hello, record.hello.identity, record.hello.about
    texts = {name: getattr(identity, name) for name in ("host", "framework", "job_id", "git_commit")}
    if process is not None:
        texts |= {name: getattr(process, name) for name in ("directory", "python", "platform", "launch", "correlation")}
    about = {
        "rank": identity.rank,
        "world_size": identity.world,
        **{name: text for name, text in texts.items() if text},
    }
    if hello.total_steps is not None:
        about["total_steps"] = hello.total_steps
    if process is not None:
        if process.git_dirty is not None:
            about["git_dirty"] = process.git_dirty
        about["command"] = list(process.command)
        about["packages"] = process.packages
        if process.environ:
            about["environ"] = process.environ
        if roles := usable(process.roles):
            about["roles"] = roles
        if process.auto:
            about["auto"] = list(process.auto[:AUTO_KEYS])
    if record.offset:
        about["clock_offset"] = record.offset
    about["hardware"] = _read_hardware(hardware)
    if hello.room is not None and hello.room.shm_size is not None:
        about["hardware"]["shm_bytes"] = hello.room.shm_size
    return about


def _read_hardware(hardware: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    try:
        return dict(hardware())
    except Exception as error:  # noqa: BLE001  a run without it is better than none
        log.warning("the run is stored without this machine's hardware: %s: %s", type(error).__name__, error)
        return {}


def _state(record: SessionOpened) -> str:
    return "starting" if record.hello.step is None else "running"
