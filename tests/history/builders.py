"""Helpers of the history's tests: session messages, a store that packs step by step, and checks by query."""

from __future__ import annotations

import math
import random
import struct
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from layer_frames import frame
from session_records import batch_ingested, session_opened

from trackside.packing import pack
from trackside.wire import Block, Clock, Hello, Identity, Totals
from trackside_daemon.history import codec, schema
from trackside_daemon.history.codec import BLOCK, decode_axis
from trackside_daemon.history.database import Database
from trackside_daemon.history.read import charts, series
from trackside_daemon.history.record.packing import LIMITS, Packing
from trackside_daemon.history.record.store import RecordStore
from trackside_daemon.model.capture import Capture, ProfileOptions
from trackside_daemon.model.checkpoint import Checkpoint
from trackside_daemon.model.records import (
    Account,
    AccountUpdated,
    Alert,
    Event,
    MachineSample,
    RunState,
    SessionOpened,
    Silence,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from trackside_daemon.history.read.charts import Chart
    from trackside_daemon.history.read.series import By

WALL = 1_700_000_000
"""Unix time at which the tests begin."""

SHIFT = WALL * 1_000_000_000
"""Nanoseconds from the clients' clocks, which begin at 0 then, to Unix time."""

SECOND = 1_000_000_000

MORE = (
    *schema.MIGRATIONS,
    ("two", ("CREATE TABLE two (a INTEGER)", "INSERT INTO two VALUES (1)", "ALTER TABLE run ADD COLUMN two TEXT")),
    ("three", ("UPDATE two SET a = a + 1", "CREATE INDEX event_kind ON event (kind)")),
)
"""The migrations, and two of the future."""

Sample = tuple[int, int, float]
"""Step, time in microseconds, value."""


def session_id(number: int) -> bytes:
    """Return 16 bytes that identify a session."""
    return b"%016d" % number


def opened(session: bytes, run: str = "run", *, attempt: int = 0, rank: int = 0, **more: Any) -> SessionOpened:
    """Return the opening of a session; *more* are fields of its hello, or ``start``, ``offset`` and ``name``."""
    offset = more.pop("offset", 0.0)
    start = more.pop("start", float(WALL))
    name = more.pop("name", run)
    identity = Identity(run=run, name=name, rank=rank, pid=1, start=1, boot="boot")
    hello = Hello(identity, Clock(SHIFT, 0), round(start * SECOND), Totals(), **more)
    return session_opened(session, hello, name, attempt, start, offset=offset)


def block(
    keys: Sequence[str], steps: Sequence[int], values: Sequence[float], times: Sequence[int] | None = None
) -> Block:
    """Return pushes of *keys* at *steps*; *times* in nanoseconds of the client, else a tenth of a second per step."""
    stamps = [step * SECOND // 10 for step in steps] if times is None else times
    return Block(list(keys), pack("q", steps), pack("q", stamps), pack("d", values))


def same(left: Iterable[float], right: Iterable[float]) -> bool:
    """Return whether the numbers are equal, where NaN equals NaN."""
    return [one if one == one else "nan" for one in left] == [one if one == one else "nan" for one in right]  # noqa: PLR0124


def bits(values: Iterable[float]) -> list[bytes]:
    """Return floats as bytes, for a comparison of all bits."""
    return [struct.pack("<d", value) for value in values]


class Bench:
    """A store on a file: each message is a transaction, and the test decides when to pack.

    Attributes:
        pushed: All samples of each series, by stream (its attempt and rank, of run ``run``) and key.
        limits: What of a log is packed at once.
    """

    def __init__(self, place: Path, **more: Any) -> None:
        self.place = place
        self.more = more
        self.database = Database(place, **more)
        self.store = RecordStore(self.database.connection)
        self.pushed: dict[tuple[int, str], list[Sample]] = {}
        self.numbers: dict[bytes, int] = {}
        self.packing: Packing | None = None
        self.limits = LIMITS

    def reopen(self) -> None:
        """Open the file anew, as after a restart."""
        self.database.close()
        self.database = Database(self.place, **self.more)
        self.store = RecordStore(self.database.connection)
        self.packing = None

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The writer's connection."""
        return self.database.connection

    def apply(self, *records: Any) -> None:
        """Write records in one transaction."""
        with self.database.transaction():
            for record in records:
                self.store.apply(record)
            self.store.write_progress()

    def open(self, session: bytes, **more: Any) -> None:
        """Open a session."""
        self.apply(opened(session, **more))

    def send(self, session: bytes, *blocks: Block, shift: int = SHIFT) -> int:
        """Send the next message of a session; return its number."""
        number = self.numbers[session] = self.numbers.get(session, 0) + 1
        self.apply(batch_ingested(session, number, blocks, shift))
        stream = self.stream(session)
        for one in blocks:
            steps, times, values = one.columns()
            for column, key in enumerate(one.keys):
                added = zip(
                    steps, ((time + shift) // 1000 for time in times), values[column :: len(one.keys)], strict=True
                )
                self.pushed.setdefault((stream, key), []).extend(added)
        return number

    def stream(self, session: bytes) -> int:
        """Return the stream of a session."""
        return int(self.connection.execute("SELECT stream FROM session WHERE id = ?", (session,)).fetchone()[0])

    def end(self, run: str = "run", attempt: int = 0, when: float = WALL + 1e6) -> None:
        """End a run."""
        self.apply(RunState(run, attempt, "finished", "", when))

    def step(self, stream: int | None = None) -> bool:
        """Do one step of packing in a transaction; return whether there is more to do."""
        with self.database.transaction():
            return self._step(stream)

    def _step(self, stream: int | None) -> bool:
        if self.packing is None:
            due = stream if stream is not None else next(iter(self.store.due), None)
            if due is None:
                return False
            self.packing = Packing(self.connection, due, self.limits)
        if not self.packing.step():
            self.store.mark_packed(self.packing.stream)
            self.packing = None
            return False
        return True

    def pack(self, stream: int | None = None) -> None:
        """Pack a stream, or all streams that are due."""
        if stream is not None:
            self.packing = None
            while self.step(stream):
                pass
            return
        while self.packing is not None or self.store.due:
            self.step()

    def rolled_back(self, steps: int, stream: int | None = None) -> None:
        """Do some steps of packing and roll them back."""
        self.connection.execute("BEGIN IMMEDIATE")
        for _ in range(steps):
            if not self._step(stream):
                break
        self.connection.execute("ROLLBACK")
        self.packing = None
        self.store.reset()

    def read(self, stream: int, key: str) -> list[Sample]:
        """Return all samples of a series, as they are streamed."""
        return read(self.database, stream, key)

    def check(self) -> None:
        """Check that every pushed sample is read back in order, with all bits, and that the tables are consistent."""
        for (stream, key), expected in self.pushed.items():
            found = self.read(stream, key)
            assert [row[:2] for row in found] == [row[:2] for row in expected], (stream, key)
            assert bits(row[2] for row in found) == bits(row[2] for row in expected), (stream, key)
        check_tables(self.connection)

    def chart(self, stream: int, key: str, *arguments: Any) -> Chart:
        """Return a chart of a series."""
        with self.database.reading() as connection:
            tail = series.LogTail(connection, stream)
            (found,) = series.find(connection, stream, tail, [key])
            return charts.chart(connection, found, tail, *arguments)


def fill(bench: Bench, runs: int = 2, pushes: int = BLOCK + 600) -> None:
    """Write so many runs of two ranks, the last of which lives, so that every table of the schema has rows; see `filled`.

    The blocks of each rank have all samples but those of its last 200 pushes, which are in the log.
    """
    dice = random.Random(4711)
    for run in range(runs):
        name = f"run{run}"
        for rank in range(2):
            session = session_id(2 * run + rank)
            bench.open(session, run=name, rank=rank, config=f'{{"lr":{run}}}', tags=("t",))
            for first in range(0, pushes, 200):
                last = min(first + 200, pushes)
                values = [*(dice.gauss(0, 1) for _ in range(3 * (last - first) - 1)), math.nan]
                if last == pushes:
                    bench.pack(bench.stream(session))
                bench.send(session, block(["loss", "lr", "odd"], range(first, last), values))
            number = bench.numbers[session] = bench.numbers[session] + 1
            layers = [frame(step, {"embed": [0.1, 0.7], "head": [0.3, 0.9]}) for step in range(20)]
            bench.apply(
                batch_ingested(session, number, (), SHIFT, distributions=layers, phases={"data": 1.0}),
                AccountUpdated(name, 0, rank, Account(stall=2.0)),
                Event(name, 0, WALL + 5.0, "note", rank=rank, step=3, fields={"text": "x" * 5000}),
            )
        bench.apply(
            Alert("SlowStep", "warning", WALL + 7.0, name, {"run": name, "rank": "0"}, "slow", "it is slow"),
            Silence(f"0000000{run}", {"alert": "*"}, WALL + 1.0, WALL + 1e9, "night"),
            Capture(f"{run:012}", name, 0, "profile", "api", WALL + 3.0, (0,), ProfileOptions(3, None)),
            Checkpoint(name, f"/data/{name}/1", 0, WALL + 4.0, "event", step=100),
            MachineSample(WALL + 9.0 + run, {"trackside_cpu": float(run)}),
        )
        if run < runs - 1:
            bench.end(name)


def tables(connection: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of all tables, each with those of the first column in order."""
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for (name,) in names.fetchall()}


def filled(connection: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Return `tables`, none of which may be empty: a new table has to be filled by `fill`."""
    found = tables(connection)
    assert not [name for name, rows in found.items() if not rows], "fill() has to fill each table of the schema"
    return found


def read(database: Database, stream: int, key: str) -> list[Sample]:
    """Return all samples of a series, as they are streamed."""
    rows: list[Sample] = []
    for columns in series.samples(database, series.StoredSeries(stream, key)):
        rows += zip(*columns, strict=True)
    return rows


def instructions(connection: sqlite3.Connection, query: Callable[[], object]) -> int:
    """Return how many instructions SQLite needs for a query, to a hundred."""
    hundreds: list[None] = []
    connection.set_progress_handler(lambda: hundreds.append(None), 100)
    try:
        query()
    finally:
        connection.set_progress_handler(None, 0)
    return 100 * len(hundreds)


def check_tables(connection: sqlite3.Connection, *, deep: bool = True) -> None:
    """Check that the tables are consistent with each other; *deep*: also with the content of each block."""
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    truth = connection.execute("SELECT axis, count(*), count(data) FROM block GROUP BY axis ORDER BY axis").fetchall()
    assert connection.execute("SELECT id, blocks, untrimmed FROM axis ORDER BY id").fetchall() == truth
    for blocks, untrimmed, data in connection.execute("SELECT blocks, untrimmed, data FROM axis"):
        assert blocks > 0
        assert (untrimmed > 0) == (data is not None)
    orphans = "SELECT count(*) FROM block WHERE id >> 24 NOT IN (SELECT id FROM series)"
    assert connection.execute(orphans).fetchone()[0] == 0
    for table in ("log", "series", "session"):
        stream = "id >> 32" if table == "log" else "stream"
        query = f"SELECT count(*) FROM {table} WHERE {stream} NOT IN (SELECT id FROM stream)"
        assert connection.execute(query).fetchone()[0] == 0, table
    for id_, end in connection.execute("SELECT id, end FROM series").fetchall() if deep else ():
        _check_blocks(connection, id_, end)


def _check_blocks(connection: sqlite3.Connection, series_id: int, end: int) -> None:
    """Check that a series has full blocks, except the last of each unbroken part, with correct columns."""
    rows = connection.execute(
        "SELECT block.id & 0xFFFFFF, count, step_min, step_max, step, time_min, time_max, time, min, max, last, "
        "block.cells, block.data, axis.cells, axis.data FROM block JOIN axis ON axis.id = axis "
        "WHERE block.id >> 24 = ? ORDER BY block.id",
        (series_id,),
    ).fetchall()
    for number, count, *columns, cells, data, ends, axis in rows:
        assert 0 < count <= codec.BLOCK
        if data is None:
            continue
        assert count == codec.BLOCK or number == end // codec.BLOCK
        assert number * codec.BLOCK + count <= end
        values = codec.decode_values(data)
        steps, times = decode_axis(axis)
        assert len(values) == len(steps) == len(times) == count
        low, high = brute_extremes(values)
        extremes = [None if math.isnan(one) else one for one in (low, high, values[-1])]
        assert columns == [min(steps), max(steps), steps[-1], min(times), max(times), times[-1], *extremes]
        last = [min(at + codec.CELL, count) - 1 for at in range(0, count, codec.CELL)]
        assert list(array("q", ends)) == [*(steps[at] for at in last), *(times[at] for at in last)]
        parts = [values[at : at + codec.CELL] for at in range(0, count, codec.CELL)]
        found = codec.decode_cells(cells)
        assert same(found.mins, [brute_extremes(part)[0] for part in parts])
        assert same(found.maxs, [brute_extremes(part)[1] for part in parts])
        assert bits(found.lasts) == bits(part[-1] for part in parts)


def brute_extremes(values: Iterable[float]) -> tuple[float, float]:
    """Return minimum and maximum without NaN; NaN if there is nothing else."""
    numbers = [value for value in values if not math.isnan(value)]
    return (min(numbers), max(numbers)) if numbers else (math.nan, math.nan)


class Range(NamedTuple):
    """A window, as a filter of samples."""

    by: By
    low: float
    high: float

    def holds(self, sample: Sample) -> bool:
        """Return whether a sample is in the window, to the microsecond."""
        if self.by == "step":
            return self.low <= sample[0] <= self.high
        scaled = [one if math.isinf(one) else round(one * 1e6) for one in (self.low, self.high)]
        return scaled[0] <= sample[1] <= scaled[1]
