"""What the history does with each record: the writing half of the tables, in transactions that the `writer` makes."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trackside.packing import pack
from trackside.wire import Block
from trackside_daemon.history import rows, time_accounting
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.read.summary import update_run
from trackside_daemon.history.record.alert_rows import write_alert, write_note, write_silence
from trackside_daemon.history.record.attempt_end import combined_end
from trackside_daemon.history.record.sanitize import clean, to_json
from trackside_daemon.history.schema import HOST, LOG_BITS
from trackside_daemon.model.records import (
    ENDED,
    AccountUpdated,
    Alert,
    AlertNote,
    BatchIngested,
    Event,
    MachineSample,
    Record,
    RunState,
    SessionOpened,
    Silence,
    bounded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

LOG_ROWS = 512
"""A stream's log is packed at so many rows, so that a chart never has more of them to read."""

LOG_BYTES = 16 * 1024 * 1024
"""And at so many bytes, since packing holds them in memory."""

SESSIONS = 4096
"""With more of them, what is remembered is forgotten, and read again."""

log = logging.getLogger("trackside")


class Stream:
    """A rank of an attempt, or the host, as far as writing needs it.

    Attributes:
        number: Of its last log row.
        pushes: How many it ever had.
        tail: Log rows that are not packed, and their bytes in *size*.
    """

    def __init__(self, id: int, number: int, pushes: int, tail: int, size: int) -> None:  # noqa: A002  the table's word
        self.id = id
        self.number = number
        self.pushes = pushes
        self.tail = tail
        self.size = size


class _Session:
    def __init__(self, stream: Stream, committed: int) -> None:
        self.stream = stream
        self.committed = committed
        self.phases: Mapping[str, float] = {}
        self._kept: Mapping[str, float] = {}

    def news(self) -> str | None:
        """The phases as they are to be kept; None when they are what is kept already."""
        if self.phases == self._kept:
            return None
        self._kept = self.phases
        return to_json(self.phases)


class Store:
    """Writes records. What it remembers between transactions can be forgotten at any time.

    Args:
        connection: To a file that `schema.migrate` has made.
        hardware: Tells what this machine has, for the attempts that begin on it.

    Attributes:
        due: Streams whose log is to be packed.
        strange: Sessions that sent messages and are not known: their run was deleted, or the file is a new one.
    """

    def __init__(self, connection: sqlite3.Connection, hardware: Callable[[], Mapping[str, Any]] = dict) -> None:
        self.connection = connection
        self.due: dict[int, None] = {}
        self.unknown_sessions: set[bytes] = set()
        self._hardware = hardware
        self._streams: dict[int, Stream] = {}
        self._sessions: dict[bytes, _Session] = {}
        self._dirty: dict[bytes, _Session] = {}
        self._take: dict[type, Callable[[Any], bool | None]] = {
            SessionOpened: self._opened,
            BatchIngested: self._taken,
            RunState: self._standing,
            Event: self._event,
            Alert: self._alert,
            AlertNote: self._alert,
            Silence: lambda record: write_silence(self.connection, record),
            MachineSample: self._sampled,
            AccountUpdated: lambda record: time_accounting.write_account(
                self.connection, self.run_id(record.run), record
            ),
        }
        self.due.update((stream, None) for stream in self._unpacked())

    @property
    def backlog(self) -> int:
        """Bytes of the log rows that are to be packed."""
        return sum(self._streams[stream].size for stream in self.due if stream in self._streams)

    def apply(self, record: Record) -> Record | None:
        """Write one record. It must be in a transaction, at whose end stands `settle`.

        Returns:
            The record as it is kept, without its secrets; None when it is not: a message that was taken before, or one
            of a session that nobody opened here, which is in `strange` then.
        """
        kept = clean(record)
        return None if self._take[type(record)](kept) is False else kept

    def write_progress(self) -> None:
        """Write how far the sessions and streams of this transaction have come."""
        for id_, session in self._dirty.items():
            if (phases := session.news()) is None:
                self.connection.execute("UPDATE session SET committed = ? WHERE id = ?", (session.committed, id_))
            else:
                change = "UPDATE session SET committed = ?, phases = ? WHERE id = ?"
                self.connection.execute(change, (session.committed, phases, id_))
        streams = {session.stream.id: session.stream for session in self._dirty.values()}
        for stream in streams.values():
            self.connection.execute("UPDATE stream SET pushes = ? WHERE id = ?", (stream.pushes, stream.id))
        self._dirty.clear()
        if len(self._sessions) > SESSIONS:
            self._sessions.clear()
            self._streams.clear()

    def reset(self) -> None:
        """Remember nothing of before: a transaction was rolled back, or somebody else has changed the tables."""
        self.unknown_sessions.clear()
        self._streams.clear()
        self._sessions.clear()
        self._dirty.clear()
        self.due = {}
        with suppress(sqlite3.Error):  # whoever works with the file next meets it, and knows what to do
            self.due.update(dict.fromkeys(self._unpacked()))

    def mark_packed(self, stream: int) -> None:
        """The log of a stream is in blocks: its run's last step and loss are told from them."""
        self.due.pop(stream, None)
        self.due.update(dict.fromkeys(self._unpacked(stream)))  # what came meanwhile
        update_run(self.connection, stream)
        if (known := self._streams.get(stream)) is not None:
            fresh = self._load(stream)
            known.tail, known.size = fresh.tail, fresh.size

    def run_id(self, uid: str) -> int | None:
        """The row of a run; None when there is none."""
        found = self.connection.execute("SELECT id FROM run WHERE uid = ? AND deleted != 1", (uid,)).fetchone()
        return None if found is None else int(found[0])

    def _opened(self, record: SessionOpened) -> None:
        identity = record.hello.identity
        run = self._run(record)
        self._attempt(run, record)
        place = (run, _int64(record.attempt), _int64(identity.rank))
        self.connection.execute("INSERT OR IGNORE INTO stream (run, attempt, rank) VALUES (?, ?, ?)", place)
        stream = self.connection.execute(
            "SELECT id FROM stream WHERE run = ? AND attempt = ? AND rank = ?", place
        ).fetchone()[0]
        self.connection.execute(
            "INSERT INTO session (id, stream, committed, clock_offset, pid, start, boot) VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET "
            "stream = excluded.stream, committed = max(committed, excluded.committed), "
            "clock_offset = excluded.clock_offset",
            (
                *(record.session, stream, _int64(record.hello.acked), record.offset),
                *(_int64(identity.pid), _int64(identity.start), identity.boot),
            ),
        )
        self._sessions.pop(record.session, None)

    def _run(self, record: SessionOpened) -> int:
        """The run's row, made anew or brought up to date."""
        hello, uid = record.hello, record.hello.identity.run
        started = hello.started / 1e9 + record.offset
        self.connection.execute("UPDATE run SET uid = uid || '/deleted/' || id WHERE uid = ? AND deleted = 1", (uid,))
        run = self.run_id(uid)
        if run is None:
            inserted = self.connection.execute(
                "INSERT INTO run (uid, name, state, started) VALUES (?, ?, ?, ?)",
                (uid, record.name, _state(record), started),
            )
            run = int(inserted.lastrowid or 0)
        self.connection.execute(
            "UPDATE run SET name = ?, started = min(started, ?) WHERE id = ?", (record.name, started, run)
        )
        if hello.tags:
            self.connection.execute("UPDATE run SET tags = ? WHERE id = ?", (to_json(list(hello.tags)), run))
        return run

    def _attempt(self, run: int, record: SessionOpened) -> None:
        """The attempt's row: the configuration and what else is told of it are the lowest rank's that brings them."""
        hello = record.hello
        started = hello.started / 1e9 + record.offset
        known = self.connection.execute(
            "SELECT about, config_rank FROM attempt WHERE run = ? AND number = ?", (run, record.attempt)
        ).fetchone()
        if known is None:
            self.connection.execute(
                "INSERT INTO attempt (run, number, state, started) VALUES (?, ?, ?, ?)",
                (run, record.attempt, _state(record), started),
            )
            self.connection.execute(
                "UPDATE run SET state = ?, cause = '', ended = NULL WHERE id = ?", (_state(record), run)
            )
        about = json.loads(known[0]) if known else {}
        if hello.identity.rank <= about.get("rank", hello.identity.rank):
            before = about.get("hardware", {})
            about = self._about(record) if record.about is None else dict(record.about)
            if before.get("gpus") and not about.get("hardware", {}).get("gpus"):
                about["hardware"] = before  # a daemon that has just started knows of no GPUs yet
        self.connection.execute(
            "UPDATE attempt SET about = ?, started = min(started, ?) WHERE run = ? AND number = ?",
            (to_json(about), started, run, record.attempt),
        )
        if hello.config and (known is None or known[1] is None or hello.identity.rank <= known[1]):
            self.connection.execute(
                "UPDATE attempt SET config = ?, config_rank = ? WHERE run = ? AND number = ?",
                (hello.config, hello.identity.rank, run, record.attempt),
            )

    def _about(self, record: SessionOpened) -> dict[str, Any]:
        """What is kept of a process and its machine; what is empty is left out."""
        hello, identity = record.hello, record.hello.identity
        said = hello.about
        shm = None if hello.room is None else hello.room.shm_size
        texts = {name: getattr(identity, name) for name in ("host", "framework", "job_id", "git_commit")}
        if said is not None:
            texts |= {name: getattr(said, name) for name in ("directory", "python", "platform", "launch")}
        return {
            "rank": identity.rank,
            "world_size": identity.world,
            **{name: text for name, text in texts.items() if text},
            **({"total_steps": hello.total_steps} if hello.total_steps is not None else {}),
            **({} if said is None or said.git_dirty is None else {"git_dirty": said.git_dirty}),
            **({} if said is None else {"command": list(said.command), "packages": said.packages}),
            **({"clock_offset": record.offset} if record.offset else {}),
            "hardware": {**self._hardware_here(), **({} if shm is None else {"shm_bytes": shm})},
        }

    def _hardware_here(self) -> dict[str, Any]:
        try:
            return dict(self._hardware())
        except Exception as error:  # noqa: BLE001  a run without it is better than none
            log.warning("this machine's hardware is not told of a run: %s: %s", type(error).__name__, error)
            return {}

    def _taken(self, record: BatchIngested) -> bool:
        session = self._session(record.session)
        if session is None:
            self.unknown_sessions.add(record.session)
        if session is None or (record.number and record.number <= session.committed):
            return False
        session.committed = max(session.committed, record.number)
        if record.phases:
            session.phases = bounded(record.phases)
        self._dirty[record.session] = session
        if record.blocks:
            self._append(session.stream, record.blocks, _int64(record.shift))
        return True

    def _append(self, stream: Stream, blocks: Sequence[Block], shift: int) -> None:
        for part in rows.split(blocks, stream.pushes, BLOCK):
            data = rows.encode(part)
            stream.number += 1
            self.connection.execute(
                "INSERT INTO log VALUES (?, ?, ?)", (stream.id << LOG_BITS | stream.number, shift, data)
            )
            stream.pushes += sum(len(block.steps) // 8 for block in part)
            stream.tail += 1
            stream.size += len(data)
            if stream.pushes % BLOCK == 0 or stream.tail >= LOG_ROWS or stream.size >= LOG_BYTES:
                self.due[stream.id] = None

    def _standing(self, record: RunState) -> None:
        run = self.run_id(record.run)
        if run is None:
            return
        said = (record.state, record.cause, record.ended)
        state = combined_end(self.connection, run, record.attempt) if record.late else said
        if state is None:
            return
        self.connection.execute(
            "UPDATE attempt SET state = ?, cause = ?, ended = ? WHERE run = ? AND number = ?",
            (*state, run, record.attempt),
        )
        latest = self.connection.execute("SELECT max(number) FROM attempt WHERE run = ?", (run,)).fetchone()[0]
        if latest == record.attempt:
            self.connection.execute("UPDATE run SET state = ?, cause = ?, ended = ? WHERE id = ?", (*state, run))
        if record.state in ENDED:
            streams = self.connection.execute(
                "SELECT id FROM stream WHERE run = ? AND attempt = ?", (run, record.attempt)
            )
            self.due.update((int(stream), None) for (stream,) in streams.fetchall())

    def _event(self, record: Event) -> None:
        run = self.run_id(record.run)
        if run is not None:
            self.connection.execute(
                "INSERT INTO event (run, attempt, rank, time, step, kind, fields) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    *(run, record.attempt, record.rank, record.time, record.step, record.kind),
                    to_json(dict(record.fields)),
                ),
            )

    def _alert(self, record: Alert | AlertNote) -> None:
        run = self.run_id(record.run) if record.run else HOST
        if run is not None:
            if isinstance(record, Alert):
                write_alert(self.connection, run, record)
            else:
                write_note(self.connection, run, record)

    def _sampled(self, record: MachineSample) -> None:
        moment = round(record.time * 1e9)
        values = pack("d", record.values.values())
        block = Block(list(record.values), pack("q", [0]), pack("q", [moment]), values)
        stream = self._stream(HOST)
        self._append(stream, [block], 0)
        self.connection.execute("UPDATE stream SET pushes = ? WHERE id = ?", (stream.pushes, HOST))

    def _session(self, id_: bytes) -> _Session | None:
        if id_ not in self._sessions:
            found = self.connection.execute(
                "SELECT stream, committed FROM session JOIN stream ON stream.id = stream JOIN run ON run.id = run "
                "WHERE session.id = ? AND deleted != 1",
                (id_,),
            ).fetchone()
            if found is None:
                return None
            self._sessions[id_] = _Session(self._stream(found[0]), found[1])
        return self._sessions[id_]

    def _stream(self, id_: int) -> Stream:
        if id_ not in self._streams:
            self._streams[id_] = self._load(id_)
        return self._streams[id_]

    def _load(self, id_: int) -> Stream:
        first, last = id_ << LOG_BITS, (id_ + 1 << LOG_BITS) - 1
        number, tail, size = self.connection.execute(
            "SELECT coalesce(max(id) - ?, 0), count(*), coalesce(sum(length(data)), 0) FROM log WHERE id BETWEEN ? AND ?",
            (first, first, last),
        ).fetchone()
        packed, pushes = self.connection.execute(
            "SELECT coalesce((SELECT max(packed) FROM series WHERE stream = ?), 0), pushes FROM stream WHERE id = ?",
            (id_, id_),
        ).fetchone()
        return Stream(id_, max(number, packed), pushes, tail, size)

    def _unpacked(self, stream: int | None = None) -> list[int]:
        """Streams of ended attempts with rows in the log, and those that have too many of them; of *stream* alone if given."""
        low, high = (0, 2**63 - 1) if stream is None else (stream << LOG_BITS, (stream + 1 << LOG_BITS) - 1)
        found = self.connection.execute(
            "SELECT id >> 32 AS stream, count(*), sum(length(data)) FROM log WHERE id BETWEEN ? AND ? GROUP BY stream",
            (low, high),
        ).fetchall()
        return [int(one) for one, count, size in found if self._is_due(one, count, size)]

    def _is_due(self, stream: int, count: int, size: int) -> bool:
        known = self.connection.execute(
            "SELECT deleted = 1, attempt.ended NOT NULL FROM stream JOIN run ON run.id = stream.run "
            "JOIN attempt ON attempt.run = stream.run AND attempt.number = stream.attempt WHERE stream.id = ?",
            (stream,),
        ).fetchone()
        deleted, ended = known or (stream != HOST, False)
        return not deleted and (ended or count >= LOG_ROWS or size >= LOG_BYTES)


def _int64(number: int) -> int:
    """The nearest that the file can hold: a client may say any number."""
    return max(-(2**63), min(2**63 - 1, number))


def _state(record: SessionOpened) -> str:
    return "starting" if record.hello.step is None else "running"
