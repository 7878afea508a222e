"""The tables of the history, and the numbered migrations that create them. Only ever append migrations.

The way of a sample: the rows of a message are appended to ``log`` as they came, one log row per message, in the
transaction that also raises the message number of its session. Later they are packed, key by key, into ``block`` rows of
`codec.BLOCK` samples. A sample of log row *n* is in the blocks exactly if the ``packed`` of its series is at least *n*.

``series.end`` is the place of a series' next sample; the block of that place has number ``end // BLOCK``. The blocks
before number ``series.trimmed`` have lost their samples and kept their cells. ``axis`` counts the blocks that refer to
it, and those of them that still have samples. A block with NaN or infinities has a row with its id in ``nonfinite``:
their number, and the number in each cell, one byte per cell.

``run.deleted`` is 1 from the deletion of a run until its rows are gone, and 2, which hides the run, during its import.
The age of a run counts from its end, or from ``imported``. ``run.owner`` is NULL until a session of a known or unknown
(empty) owner has opened it.

A block's id is its series' id times 2^24 plus its number, so the table is sorted by series and needs no index. A log
row's id is its stream's id times 2^32 plus its number. Times are Unix seconds in REAL columns and microseconds in blocks.
"""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from trackside_daemon.history.directory import HistoryError

BLOCK_BITS = 24
LOG_BITS = 32

HOST = 0  # the stream of GPU and host series, which belong to no run

# The stream of the GPU and host series that came with an imported run, by the run's row: its own run is HOST too.
IMPORTED_HOST = f"SELECT id FROM stream WHERE run = {HOST} AND attempt = ? AND id != {HOST}"  # noqa: S608

MIGRATIONS: Sequence[tuple[str, Sequence[str]]] = (
    (
        "the beginning",
        (
            """CREATE TABLE run (
                id INTEGER PRIMARY KEY,
                uid TEXT NOT NULL UNIQUE,
                name TEXT NOT NULL,
                state TEXT NOT NULL,
                cause TEXT NOT NULL DEFAULT '',
                started REAL NOT NULL,
                ended REAL,
                tags TEXT NOT NULL DEFAULT '[]',
                step INTEGER,
                loss REAL,
                pinned INTEGER NOT NULL DEFAULT 0,
                trimmed INTEGER NOT NULL DEFAULT 0,
                deleted INTEGER NOT NULL DEFAULT 0,
                imported REAL NOT NULL DEFAULT 0
            )""",
            "CREATE INDEX run_started ON run (started)",
            "CREATE INDEX run_name ON run (name)",
            """CREATE TABLE attempt (
                id INTEGER PRIMARY KEY,
                run INTEGER NOT NULL,
                number INTEGER NOT NULL,
                state TEXT NOT NULL,
                cause TEXT NOT NULL DEFAULT '',
                started REAL NOT NULL,
                ended REAL,
                config TEXT NOT NULL DEFAULT '',
                config_rank INTEGER,
                about TEXT NOT NULL DEFAULT '{}',
                UNIQUE (run, number)
            )""",
            """CREATE TABLE stream (
                id INTEGER PRIMARY KEY,
                run INTEGER NOT NULL,
                attempt INTEGER NOT NULL,
                rank INTEGER NOT NULL,
                pushes INTEGER NOT NULL DEFAULT 0,
                UNIQUE (run, attempt, rank)
            )""",
            "INSERT INTO stream (id, run, attempt, rank) VALUES (0, 0, 0, 0)",
            """CREATE TABLE session (
                id BLOB PRIMARY KEY,
                stream INTEGER NOT NULL,
                committed INTEGER NOT NULL,
                clock_offset REAL NOT NULL,
                pid INTEGER NOT NULL,
                start INTEGER NOT NULL,
                boot TEXT NOT NULL
            ) WITHOUT ROWID""",
            "CREATE INDEX session_stream ON session (stream)",
            """CREATE TABLE series (
                id INTEGER PRIMARY KEY,
                stream INTEGER NOT NULL,
                key TEXT NOT NULL,
                packed INTEGER NOT NULL DEFAULT 0,
                end INTEGER NOT NULL DEFAULT 0,
                trimmed INTEGER NOT NULL DEFAULT 0,
                count INTEGER NOT NULL DEFAULT 0,
                finite INTEGER NOT NULL DEFAULT 0,
                sum REAL NOT NULL DEFAULT 0,
                min REAL,
                max REAL,
                UNIQUE (stream, key)
            )""",
            "CREATE TABLE log (id INTEGER PRIMARY KEY, shift INTEGER NOT NULL, data BLOB NOT NULL)",
            """CREATE TABLE axis (
                id INTEGER PRIMARY KEY,
                blocks INTEGER NOT NULL,
                untrimmed INTEGER NOT NULL,
                cells BLOB NOT NULL,
                data BLOB
            )""",
            """CREATE TABLE block (
                id INTEGER PRIMARY KEY,
                count INTEGER NOT NULL,
                axis INTEGER NOT NULL,
                step_min INTEGER NOT NULL,
                step_max INTEGER NOT NULL,
                step INTEGER NOT NULL,
                time_min INTEGER NOT NULL,
                time_max INTEGER NOT NULL,
                time INTEGER NOT NULL,
                min REAL,
                max REAL,
                last REAL,
                cells BLOB NOT NULL,
                data BLOB
            )""",
            """CREATE TABLE event (
                id INTEGER PRIMARY KEY,
                run INTEGER NOT NULL,
                attempt INTEGER NOT NULL,
                rank INTEGER,
                time REAL NOT NULL,
                step INTEGER,
                kind TEXT NOT NULL,
                fields TEXT NOT NULL
            )""",
            "CREATE INDEX event_run ON event (run, time)",
            """CREATE TABLE alert (
                id INTEGER PRIMARY KEY,
                run INTEGER NOT NULL,
                alert TEXT NOT NULL,
                severity TEXT NOT NULL,
                labels TEXT NOT NULL,
                started REAL NOT NULL,
                ended REAL,
                summary TEXT NOT NULL,
                description TEXT NOT NULL,
                UNIQUE (run, alert, labels, started)
            )""",
        ),
    ),
    (
        "what alerts are understood by, who was told of them, and silences",
        (
            "ALTER TABLE alert ADD COLUMN evidence TEXT NOT NULL DEFAULT '{}'",
            "ALTER TABLE alert ADD COLUMN notified TEXT NOT NULL DEFAULT '{}'",
            """CREATE TABLE silence (
                id TEXT PRIMARY KEY,
                labels TEXT NOT NULL,
                started REAL NOT NULL,
                until REAL NOT NULL,
                comment TEXT NOT NULL
            ) WITHOUT ROWID""",
        ),
    ),
    (
        "what the time of each session was spent on",
        ("ALTER TABLE session ADD COLUMN phases TEXT NOT NULL DEFAULT '{}'",),
    ),
    (
        "where in a block its NaN and infinities are; of blocks that stand already nobody has counted them",
        ("CREATE TABLE nonfinite (id INTEGER PRIMARY KEY, samples INTEGER NOT NULL, cells BLOB NOT NULL)",),
    ),
    (
        "what of each rank's time and work only the daemon knows",
        ("ALTER TABLE stream ADD COLUMN account TEXT NOT NULL DEFAULT ''",),
    ),
    (
        "the owner of each run, and the name that people see",
        ("ALTER TABLE run ADD COLUMN owner TEXT", "ALTER TABLE run ADD COLUMN user TEXT NOT NULL DEFAULT ''"),
    ),
    (
        "captures, as JSON",
        (
            """CREATE TABLE capture (
                id INTEGER PRIMARY KEY,
                run INTEGER NOT NULL,
                uid TEXT NOT NULL UNIQUE,
                asked REAL NOT NULL,
                record TEXT NOT NULL
            )""",
            "CREATE INDEX capture_run ON capture (run, asked)",
        ),
    ),
    (
        "results that runs state of themselves, as a JSON object",
        ("ALTER TABLE run ADD COLUMN summary TEXT NOT NULL DEFAULT '{}'",),
    ),
    ("the host of each session", ("ALTER TABLE session ADD COLUMN host TEXT NOT NULL DEFAULT ''",)),
    (
        "checkpoints, as JSON",
        (
            """CREATE TABLE checkpoint (
                id INTEGER PRIMARY KEY,
                run INTEGER NOT NULL,
                path TEXT NOT NULL,
                time REAL NOT NULL,
                record TEXT NOT NULL,
                UNIQUE (run, path)
            )""",
        ),
    ),
    (
        "distributions of layers, in levels of merged steps",
        (
            "CREATE TABLE layer_names (id INTEGER PRIMARY KEY, stream INTEGER NOT NULL, names TEXT NOT NULL, UNIQUE (stream, names))",
            """CREATE TABLE distribution (
                id INTEGER PRIMARY KEY,
                stream INTEGER NOT NULL,
                kind TEXT NOT NULL,
                level INTEGER NOT NULL,
                number INTEGER NOT NULL,
                first INTEGER NOT NULL,
                step INTEGER NOT NULL,
                time INTEGER NOT NULL,
                names INTEGER NOT NULL,
                numbers BLOB NOT NULL,
                buckets BLOB NOT NULL
            )""",
            "CREATE UNIQUE INDEX distribution_place ON distribution (stream, kind, level, number, step)",
        ),
    ),
    ("what people note about a run", ("ALTER TABLE run ADD COLUMN notes TEXT NOT NULL DEFAULT ''",)),
    (
        "when each session began, and the time of its steps",
        ("ALTER TABLE session ADD COLUMN began REAL", "ALTER TABLE session ADD COLUMN steps TEXT NOT NULL DEFAULT ''"),
    ),
    (
        "the sum of squared deviations of each series from its mean; NULL where it stands already and nobody has added them",
        ("ALTER TABLE series ADD COLUMN squares REAL",),
    ),
)


def version(connection: sqlite3.Connection) -> int:
    """Return the number of the last migration; 0 for a new file. Write nothing."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'migration'").fetchone():
        return 0
    number, steps = connection.execute("SELECT coalesce(max(number), 0), count(*) FROM migration").fetchone()
    if number != steps:
        raise sqlite3.DatabaseError(f"malformed: {steps} migrations ran, the last has number {number}")
    return int(number)


def check(connection: sqlite3.Connection, path: Path, migrations: Sequence[tuple[str, Sequence[str]]]) -> int:
    """Return the file's `version`.

    Raises:
        HistoryError: A newer trackside wrote the file.
    """
    number = version(connection)
    if number > len(migrations):
        raise HistoryError(
            f"{path}: written by a newer trackside (schema {number}, this one supports {len(migrations)}); "
            "install that one, or name another directory with --storage.path"
        )
    return number


def migrate(connection: sqlite3.Connection, migrations: Sequence[tuple[str, Sequence[str]]] = MIGRATIONS) -> None:
    """Run the migrations that have not run, each in one transaction that also records it."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS migration (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied REAL NOT NULL)"
    )
    for number, (name, statements) in enumerate(migrations, 1):
        if number <= version(connection):
            continue
        connection.execute("BEGIN IMMEDIATE")  # SQLite rolls back new tables as well
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute("INSERT INTO migration VALUES (?, ?, ?)", (number, name, time.time()))
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
