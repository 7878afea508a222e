"""Takes runs from files into the history: what `forms` reads becomes the records that a live run would have made.

Each (attempt, rank) is one made-up session whose messages are numbered from 1. A file that breaks off in the middle
leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from array import array
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from fractions import Fraction
from functools import partial
from io import SEEK_END
from itertools import chain
from math import inf
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, NamedTuple

import msgspec

from trackside.packing import pack, writable
from trackside.wire import Block, Clock, Hello, Identity, Totals
from trackside_daemon.history.files.formats import parse
from trackside_daemon.history.files.items import FAR_SECONDS, INT64, AlertItem, EventItem, FormatError, Push, RunHeader
from trackside_daemon.model.records import Alert, BatchIngested, Event, Record, RunState, SessionOpened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.history.files.items import Item
    from trackside_daemon.history.record.store import Store
    from trackside_daemon.history.record.writer import Writer

ROWS = 512
"""Pushes to a message."""

BATCH_BYTES = 2 * 1024 * 1024
"""About so much goes into a transaction, between which whatever is live has its turn."""

MARK_BYTES = 64 * 1024
PATIENCE = 600.0
"""Seconds that a transaction may take."""


class ImportingError(Exception):
    """The file was not taken; the message says in one line why and what to do."""


_Number = Annotated[int, msgspec.Meta(ge=0, le=INT64 - 1)]
_Step = Annotated[int, msgspec.Meta(ge=-INT64, le=INT64 - 1)]
_Moment = Annotated[float, msgspec.Meta(gt=-1e11, lt=1e11)]
"""What the tables hold; a time so far away can still be shown."""


class _Attempt(msgspec.Struct):
    attempt: _Number
    state: Literal["starting", "running", "stalled", "finished", "stopped", "failed", "lost"]
    started: float
    cause: str = ""
    ended: _Moment | None = None
    config: Any = None
    rank: _Number = 0


class _Run(msgspec.Struct):
    id: str
    name: str
    attempt_list: list[dict[str, Any]]
    tags: tuple[str, ...] = ()
    pinned: bool = False


class _Event(msgspec.Struct):
    attempt: _Number
    time: _Moment
    kind: str
    rank: _Number | None = None
    step: _Step | None = None
    fields: dict[str, Any] = {}


class _Alert(msgspec.Struct):
    alert: str
    severity: str
    started: _Moment
    ended: _Moment | None = None
    summary: str = ""
    description: str = ""
    labels: dict[str, str] = {}
    evidence: dict[str, Any] = {}


class _Session:
    """A rank of an attempt: gathers pushes to messages."""

    def __init__(self, run: str, attempt: int, rank: int) -> None:
        self.id = hashlib.sha256(f"{run}\0{attempt}\0{rank}".encode("utf-8", "surrogatepass")).digest()[:16]
        self._number = 0
        self._blocks: list[Block] = []
        self._rows = 0
        self._keys: list[str] = []
        self._steps, self._times, self._values = array("q"), array("q"), array("d")

    def add(self, push: Push) -> BatchIngested | None:
        """Take a push in; a message when there are enough."""
        if list(push.keys) != self._keys:
            self._close()
            self._keys = list(push.keys)
        self._steps.append(push.step)
        self._times.append(push.time * 1000)
        self._values.extend(push.values)
        self._rows += 1
        return self.take() if self._rows == ROWS else None

    def take(self) -> BatchIngested | None:
        """What was gathered."""
        self._close()
        blocks, self._blocks, self._rows = self._blocks, [], 0
        if not blocks:
            return None
        self._number += 1
        return BatchIngested(self.id, self._number, blocks)

    def _close(self) -> None:
        if len(self._steps):
            columns = pack("q", self._steps), pack("q", self._times), pack("d", self._values)
            self._blocks.append(Block(self._keys, *columns))
            self._steps, self._times, self._values = array("q"), array("q"), array("d")


class _Told(NamedTuple):
    """What a file tells of an attempt; *about* is what `reader.run` lists beside it."""

    attempt: _Attempt
    about: Mapping[str, Any] | None


class RunFile:
    """A file as records, in the order in which they are to be written.

    Args:
        stream: The file, from its beginning.
        file: Its name.
        id: The run's, over the file's own; empty for that, or else for one that the file's name always gets.
        name: The run's, likewise.
        begin: Unix seconds from which on lines are counted that have no time.

    Attributes:
        run: The run's id.
        samples: How many have come so far.
        last: When the latest of them was pushed, in Unix seconds; minus infinity before the first.
        notes: Sentences about what was guessed or left out; complete at the end.

    Raises:
        FormatError: The file begins with what cannot be read.
    """

    def __init__(self, stream: BinaryIO, file: str, *, id: str = "", name: str = "", begin: float = 0.0) -> None:  # noqa: A002  the option's name
        self.samples = 0
        self.last = -inf
        self.notes: list[str] = []
        self.file = file
        mark = _mark(stream, file)
        self._items = parse(stream, file, begin, self.notes)
        first: Item | None = next(self._items, None)
        if first is None:
            raise FormatError(f"{file}: nothing to import: there are no samples in it")
        self._told: dict[int, _Told] = {}
        self._head = _Run("", "", [])
        if isinstance(first, RunHeader):
            self._head = self._convert(first.run, _Run, first.line)
            self._told = self._attempts(first.line)
        else:
            self._items = chain([first], self._items)
        stem = writable(PurePath(file).stem) or "imported"
        self.run = writable(id) or self._head.id or mark
        self.name = writable(name) or self._head.name or stem
        self.pinned = self._head.pinned
        self._sessions: dict[tuple[int, int], _Session] = {}
        self._spans: dict[int, list[float]] = {}

    def __iter__(self) -> Iterator[Record]:
        """The records.

        Raises:
            FormatError: At the first line that cannot be read.
        """
        for told in self._told.values():
            yield self._opened(told.attempt.attempt, told.attempt.rank, told.attempt.started)
        for item in self._items:
            yield from self._records(item)
        for session in self._sessions.values():
            if (rest := session.take()) is not None:
                yield rest
        for number, (first, low, high) in sorted(self._spans.items()):
            if low < first:  # the times do not rise
                yield self._opened(number, min(rank for attempt, rank in self._sessions if attempt == number), low)
            yield RunState(self.run, number, "finished", f"imported from {PurePath(self.file).name}", high)
        for told in self._told.values():
            one = told.attempt
            yield RunState(self.run, one.attempt, one.state, one.cause, one.ended)

    def _records(self, item: Item) -> Iterator[Record]:
        if isinstance(item, Push):
            yield from self._pushed(item)
        elif isinstance(item, EventItem):
            event = self._convert(item.fields, _Event, item.line)
            yield Event(self.run, **msgspec.structs.asdict(event))
        elif isinstance(item, AlertItem):
            alert = self._convert(item.fields, _Alert, item.line)
            yield Alert(run=self.run, **msgspec.structs.asdict(alert))
        else:
            raise FormatError(f"{self.file}: line {item.line}: a second run begins; one run a file is expected")

    def _pushed(self, push: Push) -> Iterator[Record]:
        seconds = push.time / 1e6
        self.last = max(self.last, seconds)
        session = self._sessions.get((push.attempt, push.rank))
        if session is None:
            session = self._sessions[push.attempt, push.rank] = _Session(self.run, push.attempt, push.rank)
            told = self._told.get(push.attempt)
            yield self._opened(push.attempt, push.rank, seconds if told is None else told.attempt.started)
        if push.attempt not in self._told:
            span = self._spans.setdefault(push.attempt, [seconds, seconds, seconds])
            span[1:] = min(span[1], seconds), max(span[2], seconds)
        self.samples += len(push.values)
        if (message := session.add(push)) is not None:
            yield message

    def _opened(self, attempt: int, rank: int, started: float) -> SessionOpened:
        session = self._sessions.get((attempt, rank)) or _Session(self.run, attempt, rank)
        told = self._told.get(attempt)
        hello = Hello(
            identity=Identity(run=self.run, name=self.name, attempt=attempt, rank=rank),
            clock=Clock(0, 0),
            started=_nanoseconds(started),
            totals=Totals(),
            config="" if told is None or told.attempt.config is None else json.dumps(told.attempt.config),
            tags=self._head.tags,
        )
        about: Mapping[str, Any] = {"rank": rank} if told is None else told.about or {}
        return SessionOpened(session.id, hello, self.name, attempt, started, about=about)

    def _attempts(self, line: int) -> dict[int, _Told]:
        own = frozenset(field.name for field in msgspec.structs.fields(_Attempt)) - {"rank"}
        found = {}
        for one in self._head.attempt_list:
            attempt = self._convert(one, _Attempt, line)
            if not abs(attempt.started) < FAR_SECONDS:
                raise FormatError(
                    f"{self.file}: line {line}: attempt {attempt.attempt} begins at {attempt.started}, which is no Unix "
                    "time"
                )
            about = {name: value for name, value in one.items() if name not in own}
            found[attempt.attempt] = _Told(attempt, about)
        return dict(sorted(found.items()))

    def _convert(self, value: Any, kind: type[Any], line: int) -> Any:
        try:
            text = json.dumps(value, ensure_ascii=False)
            if not text.isascii():  # half a surrogate pair, which an escape can write, is no text
                value = json.loads(text.encode("utf-8", "replace"))
            return msgspec.convert(value, kind)
        except (msgspec.ValidationError, RecursionError) as error:
            why = "it is nested too deep" if isinstance(error, RecursionError) else error
            raise FormatError(f"{self.file}: line {line}: what it tells of its run: {why}") from error


def _mark(stream: BinaryIO, file: str) -> str:
    """What tells one file from another of the same name, as a run's id: its name, its size and its beginning."""
    begin, here = b"", 0
    if stream.seekable():
        begin, here = stream.read(MARK_BYTES), stream.seek(0, SEEK_END)
        stream.seek(0)
    name = PurePath(file).name.encode("utf-8", "replace")
    return hashlib.sha256(b"%b\0%d\0%b" % (name, here, begin)).hexdigest()[:12]


class ImportResult(NamedTuple):
    """What was taken."""

    run: str
    samples: int
    notes: list[str]


def import_run(writer: Writer, reading: RunFile) -> ImportResult:
    """Take a run in, as nothing or as a whole; what is live goes on meanwhile.

    Args:
        writer: One that has been started.
        reading: The file, not iterated over yet.

    Raises:
        FormatError: The file has a line that cannot be read.
        ImportingError: The run is there already, or cannot be written.
    """
    begun = False
    try:
        for batch in _batches(iter(reading)):
            work = partial(_apply, batch) if begun else partial(_begin, reading, batch)
            writer.call(work).result(PATIENCE)
            begun = True
        writer.call(partial(_show, reading)).result(PATIENCE)
    except BaseException as error:
        if begun:
            with suppress(sqlite3.Error, FutureTimeoutError):
                writer.call(partial(_drop, reading.run)).result(PATIENCE)
        if isinstance(error, (sqlite3.Error, FutureTimeoutError)):
            raise ImportingError(
                f"{reading.file}: the history cannot be written: {error or 'it takes too long'}"
            ) from error
        raise
    return ImportResult(reading.run, reading.samples, reading.notes)


def _batches(records: Iterator[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += 256
        if isinstance(record, BatchIngested):
            size += sum(len(block.values) + 2 * len(block.steps) for block in record.blocks)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _begin(reading: RunFile, batch: list[Record], store: Store) -> None:
    uid = reading.run
    connection = store.connection
    if connection.execute("SELECT 1 FROM run WHERE uid = ? AND deleted != 1", (uid,)).fetchone():
        raise ImportingError(
            f"{reading.file}: run {reading.name!r} ({uid}) is in the history already; to import it as another, give it an "
            "id: --id NEW"
        )
    connection.execute(  # of the run of this id that was deleted and is not cleared away yet
        "DELETE FROM session WHERE stream IN "
        "(SELECT stream.id FROM stream JOIN run ON run.id = stream.run WHERE run.uid = ?)",
        (uid,),
    )
    _apply(batch, store)
    connection.execute("UPDATE run SET deleted = 2, imported = ? WHERE uid = ? AND NOT deleted", (time.time(), uid))


def _show(reading: RunFile, store: Store) -> None:
    """The run is whole: nobody has seen it before, and nothing of it fires."""
    _end_alerts(reading, store)
    store.connection.execute(
        "UPDATE run SET deleted = 0, pinned = ? WHERE uid = ? AND deleted = 2", (int(reading.pinned), reading.run)
    )


def _end_alerts(reading: RunFile, store: Store) -> None:
    """An alert that fired when the run was exported ends with the attempt that it is of, or else with the last sample."""
    store.connection.execute(
        "UPDATE alert SET ended = max(started, coalesce((SELECT attempt.ended FROM attempt WHERE attempt.run = alert.run "
        "AND attempt.started <= alert.started ORDER BY attempt.number DESC LIMIT 1), ?)) "
        "WHERE ended IS NULL AND run = (SELECT id FROM run WHERE uid = ? AND deleted = 2)",
        (reading.last, reading.run),
    )


def _drop(uid: str, store: Store) -> None:
    store.connection.execute("UPDATE run SET deleted = 1 WHERE uid = ? AND deleted = 2", (uid,))


def _apply(batch: list[Record], store: Store) -> None:
    for record in batch:
        store.apply(record)


def _nanoseconds(seconds: float) -> int:
    """Of which the same float is made again; times a billion, a float would lose its last digits."""
    return round(Fraction(seconds) * 1_000_000_000)
