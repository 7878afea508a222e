"""Write each record into the tables, in transactions that the `writer` begins and ends."""

import json
import sqlite3
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from trackside.wire import SUMMARY
from trackside_daemon.history import log_rows, time_accounting
from trackside_daemon.history.capture_rows import write_capture
from trackside_daemon.history.checkpoint_rows import write_checkpoint
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.layer_rows import write_frames
from trackside_daemon.history.media.store import MediaStore
from trackside_daemon.history.read.summary import update_run
from trackside_daemon.history.record.alert_rows import write_alert, write_note, write_silence
from trackside_daemon.history.record.session_rows import int64, run_id, write_session
from trackside_daemon.history.sanitize import clean, to_json
from trackside_daemon.history.schema import HOST, IMPORTED_HOST, LOG_BITS
from trackside_daemon.model.capture import Capture
from trackside_daemon.model.checkpoint import Checkpoint
from trackside_daemon.model.columns import Columns
from trackside_daemon.model.records import (
    ENDED,
    ENDS,
    LIFE_CYCLE,
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
)

MOST_BYTES = 64 * 1024  # of a run's results: each list of runs reads them
LOG_ROWS = 512  # a stream's log is packed when it has this many rows, so that a chart never reads more

# A stream's log is packed when it has this many bytes, because packing keeps them in memory.
LOG_BYTES = 16 * 1024 * 1024

# What a column of a log row needs in memory where it is read, in bytes. Rows with the same keys share it.
COLUMN_BYTES = 512

SESSIONS = 4096  # with more cached sessions, the cache is cleared


def combined_end(connection: sqlite3.Connection, run: int, attempt: int) -> tuple[str, str, float] | None:
    """Return state, cause and time of an attempt's end, from the last end of each rank; None if a rank has none yet."""
    rows = connection.execute(
        "SELECT rank, fields, time FROM event WHERE run = ? AND attempt = ? AND kind = 'rank_ended' ORDER BY id",
        (run, attempt),
    )
    ends = {rank: (json.loads(fields), time) for rank, fields, time in rows}
    ranks = connection.execute("SELECT rank FROM stream WHERE run = ? AND attempt = ?", (run, attempt))
    if any(rank not in ends for (rank,) in ranks):
        return None
    states = {fields.get("state") for fields, _ in ends.values()}
    causes = sorted({str(fields.get("cause", "")) for fields, _ in ends.values()} - {""})
    ended = max((time for _, time in ends.values()), default=0.0)
    return next((state for state in ENDS if state in states), "lost"), ", ".join(causes), ended


def add_results(connection: sqlite3.Connection, run: int, fields: Mapping[str, Any]) -> bool:
    """Replace the results of these keys, and remove those that are None; return False if there is no room for them."""
    (stored,) = connection.execute("SELECT summary FROM run WHERE id = ?", (run,)).fetchone()
    results = {key: value for key, value in {**json.loads(stored), **fields}.items() if value is not None}
    text = to_json(results)
    if len(text) > MOST_BYTES:
        return False
    connection.execute("UPDATE run SET summary = ? WHERE id = ?", (text, run))
    return True


class LogStream:
    """The log of a rank of an attempt, or of the host.

    Attributes:
        number: Number of its last log row.
        pushes: All pushes of the stream, ever.
        tail: Log rows that are not packed.
        size: Bytes of memory that reading them takes.
    """

    def __init__(self, id: int, number: int, pushes: int, tail: int, size: int) -> None:  # noqa: A002  the table's word
        self.id = id
        self.number = number
        self.pushes = pushes
        self.tail = tail
        self.size = size
        self._layouts: set[int] = set()

    def add(self, part: Sequence[Columns], data: bytes) -> None:
        """Count a log row that is appended."""
        self.pushes += sum(len(one.steps) for one in part)
        self.tail += 1
        self.size += len(data)
        for columns in part:
            layout = hash(tuple(columns.keys))
            if layout not in self._layouts:
                self._layouts.add(layout)
                self.size += COLUMN_BYTES * len(columns.keys)

    def packed(self, tail: int, size: int) -> None:
        """Count what packing has left."""
        self.tail, self.size = tail, size
        self._layouts.clear()


class _Session:
    def __init__(self, stream: LogStream, committed: int, phases: str, steps: str) -> None:
        self.stream = stream
        self.committed = committed
        self.phases: Mapping[str, float] = json.loads(phases)
        self.steps = time_accounting.decode_steps(steps)
        self._stored = {"phases": phases, "steps": steps}

    def changes(self) -> dict[str, Any]:
        """Return the columns that the table does not have yet."""
        columns = {"steps": msgspec.json.encode(self.steps).decode()}
        if self.phases:
            columns["phases"] = to_json(self.phases)
        changed = {name: text for name, text in columns.items() if text != self._stored.get(name)}
        self._stored.update(changed)
        return {"committed": self.committed, **changed}


class RecordStore:
    """Writes records. Its cache can be cleared between any two transactions.

    Args:
        connection: To a file that `schema.migrate` made.
        hardware: Describes this machine, for the attempts that begin on it.
        media: Writes images, texts and tables; None to leave them out.

    Attributes:
        due: Streams whose log has to be packed.
        unknown_sessions: Sessions that sent messages and are not in the tables: their run was deleted, or the file is new.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        hardware: Callable[[], Mapping[str, Any]] = dict,
        media: MediaStore | None = None,
    ) -> None:
        self.connection = connection
        self.media = media
        self.due: dict[int, None] = {}  # an ordered set: streams are packed in the order in which they became due
        self.unknown_sessions: set[bytes] = set()
        self._hardware = hardware
        self._streams: dict[int, LogStream] = {}
        self._sessions: dict[bytes, _Session] = {}
        self._dirty: dict[bytes, _Session] = {}
        self._writers: dict[type, Callable[[Any], bool | None]] = {
            SessionOpened: self._open_session,
            BatchIngested: self._write_batch,
            RunState: self._set_state,
            Event: self._write_event,
            Alert: self._write_alert,
            AlertNote: self._write_alert,
            Silence: lambda record: write_silence(self.connection, record),
            MachineSample: self._write_machine_sample,
            AccountUpdated: lambda record: time_accounting.write_account(
                self.connection, run_id(self.connection, record.run), record
            ),
            Capture: lambda record: write_capture(self.connection, run_id(self.connection, record.run), record),
            Checkpoint: lambda record: write_checkpoint(self.connection, run_id(self.connection, record.run), record),
        }
        self.due.update((stream, None) for stream in self._unpacked())

    @property
    def backlog(self) -> int:
        """Bytes of the log rows that have to be packed."""
        return sum(self._streams[stream].size for stream in self.due if stream in self._streams)

    def apply(self, record: Record) -> Record | None:
        """Write one record, in a transaction that ends with `write_progress`.

        Returns:
            The record as it is stored, without secrets; None if it is not: a message that is stored already, or one of
            a session that is not in the tables, which is in `unknown_sessions` then.
        """
        cleaned = clean(record)
        return None if self._writers[type(record)](cleaned) is False else cleaned

    def write_progress(self) -> None:
        """Write the last message numbers of the sessions and the push counts of the streams of this transaction."""
        for id_, session in self._dirty.items():
            changes = session.changes()
            change = f"UPDATE session SET {' = ?, '.join(changes)} = ? WHERE id = ?"  # noqa: S608
            self.connection.execute(change, (*changes.values(), id_))
        streams = {session.stream.id: session.stream for session in self._dirty.values()}
        for stream in streams.values():
            self.connection.execute("UPDATE stream SET pushes = ? WHERE id = ?", (stream.pushes, stream.id))
        self._dirty.clear()
        if len(self._sessions) > SESSIONS:
            self._sessions.clear()
            self._streams.clear()

    def reset(self) -> None:
        """Clear the cache: a transaction was rolled back, or other code has changed the tables."""
        self.unknown_sessions.clear()
        self._streams.clear()
        self._sessions.clear()
        self._dirty.clear()
        self.due = {}
        with suppress(sqlite3.Error):  # the next statement of the writer fails too, and is handled there
            self.due.update(dict.fromkeys(self._unpacked()))

    def mark_packed(self, stream: int) -> None:
        """Record that the log of a stream is in blocks, and update its run's last step and loss from them."""
        self.due.pop(stream, None)
        self.due.update(dict.fromkeys(self._unpacked(stream)))  # rows that were added during packing
        update_run(self.connection, stream)
        if (cached := self._streams.get(stream)) is not None:
            fresh = self._load(stream)
            cached.packed(fresh.tail, fresh.size)

    def _open_session(self, record: SessionOpened) -> None:
        if record.session.id in self._dirty:  # it is read from its table again, which has to have what came before
            self.write_progress()
        write_session(self.connection, record, self._hardware)
        self._sessions.pop(record.session.id, None)  # it may belong to another stream now

    def _write_batch(self, record: BatchIngested) -> bool:
        session = self._session(record.session.id)
        if session is None:
            self.unknown_sessions.add(record.session.id)
        # A message that comes again after a lost acknowledgement is not stored twice. Number 0: no message, but derived samples.
        if session is None or (record.number and record.number <= session.committed):
            return False
        session.committed = max(session.committed, record.number)
        if record.columns and record.number:
            session.steps.update(record, session.phases)
        if record.phases:
            session.phases = record.phases
        self._dirty[record.session.id] = session
        if record.columns:
            self._append(session.stream, record.columns, int64(record.shift))
        write_frames(self.connection, session.stream.id, record.distributions, int64(record.shift))
        if record.media and self.media is not None:
            self.media.write(record.session, record.number, record.media, record.shift)
        return True

    def _append(self, stream: LogStream, columns: Sequence[Columns], shift: int) -> None:
        for part in log_rows.split(columns, stream.pushes, BLOCK):
            data = log_rows.encode(part)
            stream.number += 1
            self.connection.execute(
                "INSERT INTO log VALUES (?, ?, ?)", (stream.id << LOG_BITS | stream.number, shift, data)
            )
            stream.add(part, data)
            is_full = stream.pushes % BLOCK == 0 or stream.tail >= LOG_ROWS or stream.size >= LOG_BYTES
            # After the end of an attempt nothing else would pack what comes late, as from a spool.
            if is_full or (stream.tail == 1 and self._is_due(stream.id, stream.tail, stream.size)):
                self.due[stream.id] = None

    def _set_state(self, record: RunState) -> None:
        run = run_id(self.connection, record.run)
        if run is None:
            return
        reported = (record.state, record.cause, record.ended)
        state = combined_end(self.connection, run, record.attempt) if record.late else reported
        if state is None:
            return
        self.connection.execute(
            # A clock may have been set back, and the end of another machine's session may be one by a wrong clock.
            "UPDATE attempt SET state = ?, cause = ?, ended = max(?, started) WHERE run = ? AND number = ?",
            (*state, run, record.attempt),
        )
        latest = self.connection.execute("SELECT max(number) FROM attempt WHERE run = ?", (run,)).fetchone()[0]
        if latest == record.attempt:
            self.connection.execute(
                "UPDATE run SET (state, cause, ended) = (SELECT state, cause, max(ended, run.started) FROM attempt "
                "WHERE run = :run AND number = :number) WHERE id = :run",
                {"run": run, "number": latest},
            )
        if record.state in ENDED:
            streams = self.connection.execute(
                "SELECT id FROM stream WHERE run = ? AND attempt = ?", (run, record.attempt)
            )
            self.due.update((int(stream), None) for (stream,) in streams.fetchall())

    def _write_event(self, record: Event) -> None:
        run = run_id(self.connection, record.run)
        is_result = record.kind == SUMMARY and run is not None and add_results(self.connection, run, record.fields)
        if run is not None and not is_result:
            self.connection.execute(
                "INSERT INTO event (run, attempt, rank, time, step, kind, fields) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (run, record.attempt, record.rank, record.time, record.step, record.kind, to_json(dict(record.fields))),
            )

    def _write_alert(self, record: Alert | AlertNote) -> None:
        if record.alert in LIFE_CYCLE:  # the run's events have it
            return
        run = run_id(self.connection, record.run) if record.run else HOST
        if run is not None:
            if isinstance(record, Alert):
                write_alert(self.connection, run, record)
            else:
                write_note(self.connection, run, record)

    def _write_machine_sample(self, record: MachineSample) -> None:
        moment = round(record.time * 1e6) * 1000  # of a float, the nanoseconds would not give the microseconds back
        values = array("d", record.values.values())
        columns = Columns(list(record.values), array("q", [0]), array("q", [moment]), values)
        stream = self._stream(self._imported_host(record.run) if record.run else HOST)
        self._append(stream, [columns], 0)
        self.connection.execute("UPDATE stream SET pushes = ? WHERE id = ?", (stream.pushes, stream.id))

    def _imported_host(self, uid: str) -> int:
        run = run_id(self.connection, uid)
        self.connection.execute("INSERT OR IGNORE INTO stream (run, attempt, rank) VALUES (?, ?, 0)", (HOST, run))
        return int(self.connection.execute(IMPORTED_HOST, (run,)).fetchone()[0])

    def _session(self, id_: bytes) -> _Session | None:
        if id_ not in self._sessions:
            row = self.connection.execute(
                "SELECT stream, committed, phases, steps FROM session JOIN stream ON stream.id = stream JOIN run ON run.id = run "
                "WHERE session.id = ? AND deleted != 1",
                (id_,),
            ).fetchone()
            if row is None:
                return None
            self._sessions[id_] = _Session(self._stream(row[0]), *row[1:])
        return self._sessions[id_]

    def _stream(self, id_: int) -> LogStream:
        if id_ not in self._streams:
            self._streams[id_] = self._load(id_)
        return self._streams[id_]

    def _load(self, id_: int) -> LogStream:
        first, last = id_ << LOG_BITS, (id_ + 1 << LOG_BITS) - 1
        number, tail, size = self.connection.execute(
            "SELECT coalesce(max(id) - ?, 0), count(*), coalesce(sum(length(data)), 0) FROM log WHERE id BETWEEN ? AND ?",
            (first, first, last),
        ).fetchone()
        packed, pushes = self.connection.execute(
            "SELECT coalesce((SELECT max(packed) FROM series WHERE stream = ?), 0), pushes FROM stream WHERE id = ?",
            (id_, id_),
        ).fetchone()
        # With an empty log, numbers continue after those that are packed, or new rows would count as packed.
        return LogStream(id_, max(number, packed), pushes, tail, size)

    def _unpacked(self, stream: int | None = None) -> list[int]:
        """Return the streams, or only *stream*, whose log is due: of ended attempts, or with too many rows or bytes."""
        low, high = (0, 2**63 - 1) if stream is None else (stream << LOG_BITS, (stream + 1 << LOG_BITS) - 1)
        streams = self.connection.execute(
            "SELECT id >> 32 AS stream, count(*), sum(length(data)) FROM log WHERE id BETWEEN ? AND ? GROUP BY stream",
            (low, high),
        ).fetchall()
        return [int(id_) for id_, count, size in streams if self._is_due(id_, count, size)]

    def _is_due(self, stream: int, count: int, size: int) -> bool:
        row = self.connection.execute(
            "SELECT deleted = 1, attempt.ended NOT NULL FROM stream JOIN run ON run.id = stream.run "
            "JOIN attempt ON attempt.run = stream.run AND attempt.number = stream.attempt WHERE stream.id = ? "
            "UNION ALL SELECT 0, id != run FROM stream WHERE id = ? AND run = ?",
            (stream, stream, HOST),
        ).fetchone()
        deleted, ended = row or (True, False)
        return not deleted and (ended or count >= LOG_ROWS or size >= LOG_BYTES)
