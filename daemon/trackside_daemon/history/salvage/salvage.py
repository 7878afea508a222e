"""Copy the rows of a damaged history to a new file, table by table, and make them consistent with each other."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trackside_daemon.history import codec, log_rows, schema
from trackside_daemon.history.codec import BLOCK, decode_axis
from trackside_daemon.history.salvage.pages import PAGE_BYTES, Pages, Value
from trackside_daemon.history.schema import BLOCK_BITS, HOST, LOG_BITS
from trackside_daemon.model.text import counted

ROWS = 256  # rows of one insertion

MODULE = "trackside_daemon.history.salvage"  # of the process that does it for a daemon
LOST = "the history was damaged"  # the cause of runs of which only the samples are left

_TYPES = {"INTEGER": (int,), "REAL": (int, float), "TEXT": (str,), "BLOB": (bytes,)}
_JSON = frozenset(
    [
        "run.tags",
        "run.summary",
        "attempt.config",
        "attempt.about",
        "stream.account",
        "session.phases",
        "session.steps",
        "event.fields",
        "alert.labels",
        "alert.evidence",
        "alert.notified",
        "silence.labels",
        "capture.record",
        "checkpoint.record",
        "layer_names.names",
    ]
)

_NOW = "CAST(strftime('%s', 'now') AS REAL)"

# Streams, runs and attempts to which rows refer, and which are missing, get rows without a name: their samples are worth more.
# Blocks need their series and their axis. A series that is older than its blocks becomes as new as they are.
_REPAIR = f"""
CREATE TEMP TABLE missing AS
    SELECT stream AS id FROM series UNION SELECT stream FROM distribution UNION SELECT id >> {LOG_BITS} FROM log
    EXCEPT SELECT id FROM stream;
INSERT INTO stream (id, run, attempt, rank)
    SELECT id, 1 + (SELECT coalesce(max(run), 0) FROM (SELECT run FROM stream UNION ALL SELECT id FROM run)), 0, id
    FROM missing;
INSERT OR IGNORE INTO run (id, uid, name, state, cause, started, ended)
    SELECT run, 'salvaged-' || run, 'salvaged-' || run, 'lost', '{LOST}', coalesce(min(began), {_NOW}), {_NOW}
    FROM (SELECT run, NULL AS began FROM stream UNION ALL SELECT run, started FROM attempt)
    WHERE run != {HOST} AND run NOT IN (SELECT id FROM run) GROUP BY run;
INSERT OR IGNORE INTO attempt (run, number, state, started, ended)
    SELECT run, attempt, state, started, ended FROM stream JOIN run ON run.id = run WHERE run != {HOST};
DELETE FROM session
    WHERE stream NOT IN (SELECT stream.id FROM stream JOIN run ON run.id = run WHERE cause != '{LOST}');
DELETE FROM layer_names WHERE stream NOT IN (SELECT id FROM stream);
DELETE FROM distribution WHERE names NOT IN (SELECT id FROM layer_names);
DELETE FROM event WHERE run != {HOST} AND run NOT IN (SELECT id FROM run);
DELETE FROM alert WHERE run != {HOST} AND run NOT IN (SELECT id FROM run);
DELETE FROM capture WHERE run NOT IN (SELECT id FROM run);
DELETE FROM checkpoint WHERE run NOT IN (SELECT id FROM run);

DELETE FROM block WHERE id >> {BLOCK_BITS} NOT IN (SELECT id FROM series) OR axis NOT IN (SELECT id FROM axis);
UPDATE block SET data = NULL WHERE data NOT NULL AND axis IN (SELECT id FROM axis WHERE data IS NULL);
DELETE FROM nonfinite WHERE id NOT IN (SELECT id FROM block);
CREATE TEMP TABLE used (axis INTEGER PRIMARY KEY, blocks, untrimmed);
INSERT INTO used SELECT axis, count(*), count(data) FROM block GROUP BY axis;
DELETE FROM axis WHERE id NOT IN (SELECT axis FROM used);
UPDATE axis SET (blocks, untrimmed) = (SELECT blocks, untrimmed FROM used WHERE axis = id);
UPDATE axis SET data = NULL WHERE untrimmed = 0;

CREATE TEMP TABLE reached (series INTEGER PRIMARY KEY, end);
INSERT INTO reached
    SELECT id >> {BLOCK_BITS}, max((id & {(1 << BLOCK_BITS) - 1}) * {BLOCK} + count) AS reach FROM block
    GROUP BY 1 HAVING reach > (SELECT end FROM series WHERE id = block.id >> {BLOCK_BITS});
UPDATE series SET
    end = (SELECT end FROM reached WHERE series = series.id),
    packed = max(packed, coalesce((SELECT min(log.id) - 1 FROM log WHERE log.id BETWEEN stream << {LOG_BITS}
        AND (stream + 1 << {LOG_BITS}) - 1) & {(1 << LOG_BITS) - 1}, 0))
    WHERE id IN (SELECT series FROM reached)"""  # noqa: S608  numbers

# Of each stream: its pushes, its series, the last row of its log that is packed, its most samples of a series, and all samples
# that its blocks should have.
_EXPECTED = f"""SELECT stream.id, pushes, count(series.id), coalesce(max(packed), 0), coalesce(max(count), 0),
    coalesce(sum(max(0, end - trimmed * {BLOCK})), 0)
    FROM stream LEFT JOIN series ON series.stream = stream.id GROUP BY stream.id"""  # noqa: S608  a number


class SalvageRequest(msgspec.Struct):
    """A request to the process `MODULE`."""

    source: str  # a file
    target: str = ""  # a new file, into which to salvage it; empty to answer with what is damaged, empty if nothing is
    seconds: float = 0.0  # the longest time of salvaging


class Salvaged(msgspec.Struct):
    """The result of a copy."""

    samples: int  # samples in the new file
    lost: int | None  # about how many samples are not in it; None if what would tell is lost too
    runs: int  # runs in it
    complete: bool  # whether all pages were read in time

    def text(self) -> str:
        """Return it as words."""
        runs = counted(self.runs, "run")
        if self.lost is None:
            return f"salvaged {self.samples:,} samples of {runs}; how many are lost is unknown"
        if not self.lost:
            return f"salvaged all {self.samples:,} samples of {runs}"
        over = "" if self.complete else ", since it took too long"
        return f"salvaged {self.samples:,} of about {self.samples + self.lost:,} samples of {runs}; {self.lost:,} are lost{over}"


class _Table(NamedTuple):
    """A table of the new file: names, types, defaults of its columns, and which may be NULL; the column of the rowid or -1."""

    name: str
    columns: list[str]
    types: list[tuple[type, ...]]
    defaults: list[str]
    optional: list[bool]
    rowid: int


class _Log:
    """The rows of the log that were copied, by stream: of each group of pushes the number of its row, its keys, its size."""

    def __init__(self) -> None:
        self._groups: dict[int, list[tuple[int, tuple[str, ...], int]]] = {}
        self._keys: dict[tuple[str, ...], tuple[str, ...]] = {}

    def add(self, row: Sequence[Any]) -> None:
        """Add a row.

        Raises:
            ValueError: It is damaged.
        """
        groups = self._groups.setdefault(row[0] >> LOG_BITS, [])
        for group in log_rows.decode(row[2], row[1]):
            keys = tuple(group.keys)
            groups.append((row[0] & (1 << LOG_BITS) - 1, self._keys.setdefault(keys, keys), len(group.steps)))

    def count(self, connection: sqlite3.Connection, *, cut: bool) -> tuple[int, int]:
        """Return how many samples are in the log and not in blocks, and about how many should be in both.

        Args:
            connection: To the new file.
            cut: The newest rows of the log may be missing.
        """
        total = expected = 0.0
        for stream, pushes, keys, last, most, in_blocks in connection.execute(_EXPECTED).fetchall():
            packed = dict(connection.execute("SELECT key, packed FROM series WHERE stream = ?", (stream,)).fetchall())
            groups = self._groups.get(stream, [])
            samples = sum(sum(number > packed.get(key, 0) for key in names) * size for number, names, size in groups)
            unpacked = [(number, size) for number, _, size in groups if number > last]
            copied, numbers = sum(size for _, size in unpacked), {number for number, _ in unpacked}
            per_push = samples / copied if copied else max(1, keys)
            lost = (max(numbers, default=last) - last - len(numbers)) * copied / max(1, len(numbers))
            if cut or not keys:  # without series nothing states how many samples there were
                lost = max(lost, pushes - (most if keys else 0) - copied)
            total += samples
            expected += (in_blocks if keys else 0) + samples + lost * per_push
        return round(total), round(expected)


def salvage(source: Path, target: Path, until: float) -> Salvaged:
    """Copy the rows of a damaged file, whose name and WAL are as SQLite made them, to an empty one.

    Args:
        source: The damaged file, which nobody writes.
        target: A file that exists.
        until: When to end, of `time.monotonic`; what was not read then is left out.

    Raises:
        ValueError: A newer trackside wrote the file.
        OSError: A file cannot be read.
        sqlite3.Error: The new file cannot be written.
    """
    pages = Pages(source)
    try:
        tables = pages.leaves(_roots(pages))
        known = len(schema.MIGRATIONS)
        numbers = [row for row, _ in _rows(pages, tables.pop("migration", ())) if row is not None]
        if max(numbers, default=0) > known:
            raise ValueError(f"a newer trackside wrote it (schema {max(numbers)}, this one supports {known})")
        with closing(sqlite3.connect(target, isolation_level=None)) as connection:
            found = _copy(pages, tables, connection, until)
    finally:
        pages.close()
    file = os.open(target, os.O_RDONLY)
    os.fsync(file)
    os.close(file)
    return found


def _roots(pages: Pages) -> dict[int, str]:
    """Return the tables by their root pages: as the file states them, else as they are in every file of these migrations."""
    with closing(_prepared(sqlite3.connect(":memory:", isolation_level=None))) as connection:
        schema.migrate(connection)
        query = "SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"
        roots = dict(connection.execute(query).fetchall())
    for _, row in _rows(pages, pages.leaves({1: "sqlite_master"}).get("sqlite_master", ())):
        with suppress(ValueError):
            kind, name, _, root, _ = row
            if kind == "table" and name in roots and isinstance(root, int):
                roots[name] = root
    return {root: name for name, root in roots.items()}


def _rows(pages: Pages, leaves: Sequence[int]) -> Any:
    return (row for page in leaves for row in pages.rows(page))


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    # Nobody reads the file before it is complete.
    for pragma in (f"page_size = {PAGE_BYTES}", "auto_vacuum = INCREMENTAL", "journal_mode = OFF", "synchronous = OFF"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _copy(
    pages: Pages,
    leaves: Mapping[str, array[int]],
    connection: sqlite3.Connection,
    until: float,
) -> Salvaged:
    # Also for a file of an older schema, whose rows get the defaults of the columns that they do not have.
    schema.migrate(_prepared(connection))
    log = _Log()
    checks: dict[str, Callable[[list[Any]], object]] = {"log": log.add, "block": _check_block, "axis": _check_axis}
    connection.execute("BEGIN")
    complete = True
    for table in sorted(_tables(connection), key=lambda table: len(leaves.get(table.name, ()))):
        copied = _copy_table(
            pages, leaves.get(table.name, ()), connection, table, check=checks.get(table.name), until=until
        )
        complete = complete and copied
    unpacked, expected = log.count(connection, cut="log" in pages.bad or not complete)
    for statement in _REPAIR.split(";"):
        connection.execute(statement)
    ((packed,),) = connection.execute("SELECT coalesce(sum(count), 0) FROM block WHERE data NOT NULL")
    ((runs,),) = connection.execute("SELECT count(*) FROM run")
    connection.execute("COMMIT")
    samples = packed + unpacked
    lost = None if {"stream", "series"} & pages.bad.keys() else max(0, expected - samples)
    return Salvaged(samples, lost, runs, complete)


def _tables(connection: sqlite3.Connection) -> list[_Table]:
    """Return the tables, with their columns in the order of a row's values."""
    found = []
    query = (
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name != 'migration'"
    )
    for name, sql in connection.execute(query).fetchall():
        columns = connection.execute(f"PRAGMA table_info({name})").fetchall()
        rowid = -1 if "WITHOUT ROWID" in sql else next((cid for cid, *_, key in columns if key), -1)
        if rowid < 0:
            columns.sort(key=lambda column: not column[5])  # the key comes first
        found.append(
            _Table(
                name,
                [column[1] for column in columns],
                [_TYPES[column[2]] for column in columns],
                [column[4] or "" for column in columns],
                [not column[3] and number != rowid for number, column in enumerate(columns)],
                rowid,
            )
        )
    return found


def _copy_table(
    pages: Pages,
    leaves: Sequence[int],
    connection: sqlite3.Connection,
    table: _Table,
    *,
    check: Callable[[list[Any]], object] | None,
    until: float,
) -> bool:
    """Copy the rows of a table; return False if the time was over before the end."""
    waiting: dict[int, list[list[Value]]] = {}

    def insert(rows: list[list[Value]]) -> None:
        # A row from before a column was added has fewer values.
        names = table.columns[: len(rows[0])]
        values = ", ".join("?" * len(names))
        connection.executemany(f"INSERT OR REPLACE INTO {table.name} ({', '.join(names)}) VALUES ({values})", rows)  # noqa: S608
        rows.clear()

    for page in leaves:
        if time.monotonic() > until:
            break
        for rowid, values in pages.rows(page):
            try:
                row = _checked(table, rowid, values)
                if check is not None:
                    check(row)
            except ValueError:
                pages.count_bad(table.name)
                continue
            rows = waiting.setdefault(len(row), [])
            rows.append(row)
            if len(rows) >= ROWS:
                insert(rows)
    for rows in filter(None, waiting.values()):
        insert(rows)
    return time.monotonic() <= until or not leaves


def _checked(table: _Table, rowid: int | None, values: list[Value]) -> list[Value]:
    """Return the values of a row as its table has them.

    Raises:
        ValueError: They are no row of this table.
    """
    if not 0 < len(values) <= len(table.columns):
        raise ValueError("too many values, or none")
    if table.rowid >= 0:
        values[table.rowid] = rowid
    for number, value in enumerate(values):
        if not (isinstance(value, table.types[number]) or (value is None and table.optional[number])):
            raise ValueError("a value of another type")
        if isinstance(value, str) and f"{table.name}.{table.columns[number]}" in _JSON:
            try:
                json.loads(value or "0")
            except ValueError:
                if not table.defaults[number]:
                    raise
                values[number] = table.defaults[number].strip("'")
    return values


def _check_block(row: list[Any]) -> None:
    """Leave out the samples of a block if they are damaged: its cells are worth more than nothing.

    Raises:
        ValueError: Its cells are damaged.
    """
    codec.decode_cells(row[12])
    with suppress(ValueError):
        if row[13] is not None and len(codec.decode_values(row[13])) == row[1]:
            return
    row[13] = None


def _check_axis(row: list[Any]) -> None:
    with suppress(ValueError):
        if row[4] is not None and decode_axis(row[4]):
            return
    row[4] = None
