"""Migrations from each schema to the next, and kill -9 at any moment."""

from __future__ import annotations

import random
import re
import select
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from math import inf, nan
from typing import TYPE_CHECKING, Any

import processes
import pytest
from history.builders import MORE, Bench, block, check_tables, fill, filled, read, session_id, tables
from processes import DEADLINE
from session_records import batch_ingested

from trackside_daemon.history import schema, time_accounting
from trackside_daemon.history.codec import BLOCK
from trackside_daemon.history.database import FILE, Database
from trackside_daemon.history.read import attempts, summary
from trackside_daemon.history.read.series import EVERYTHING
from trackside_daemon.model.records import Account, AccountUpdated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = len(schema.MIGRATIONS)
COPY = f"{FILE}.schema-{NOW}"


@pytest.fixture
def old(place: Path) -> Path:
    """A file of the first schema."""
    bench = Bench(place)
    bench.open(session_id(1))
    bench.send(session_id(1), block(["a"], range(100), [0.5] * 100))
    bench.close()
    return place / FILE


def version(path: Path) -> int:
    """Return the schema version of a file."""
    connection = sqlite3.connect(path)
    try:
        return schema.version(connection)
    finally:
        connection.close()


def test_an_older_file_is_copied_and_changed(old: Path, place: Path) -> None:
    database = Database(place, migrations=MORE)
    assert database.connection.execute("SELECT number, name FROM migration").fetchall() == [
        (number, name) for number, (name, _) in enumerate(MORE, 1)
    ]
    assert database.connection.execute("SELECT a FROM two").fetchall() == [(2,)]
    assert len(read(database, 1, "a")) == 100
    database.close()
    assert version(place / COPY) == NOW
    assert stat.S_IMODE((place / COPY).stat().st_mode) == 0o600
    Database(place, migrations=MORE).close()
    assert not list(place.glob("*.unfinished"))


def test_a_file_from_before_accounts_and_with_infinite_values_is_read_and_continued(place: Path) -> None:
    bench = Bench(place)
    bench.open(session_id(1))
    bench.send(session_id(1), block(["a"], range(BLOCK + 9), [nan, *([0.5] * (BLOCK + 8))]))
    bench.pack(1)
    bench.apply(batch_ingested(session_id(1), 2, phases={"data": 5.0}))
    bench.connection.execute("DROP TABLE nonfinite")
    bench.connection.execute("ALTER TABLE stream DROP COLUMN account")
    bench.connection.execute("ALTER TABLE run DROP COLUMN owner")
    bench.connection.execute("ALTER TABLE run DROP COLUMN user")
    bench.connection.execute("DROP TABLE capture")
    bench.connection.execute("DROP TABLE checkpoint")
    bench.connection.execute("DROP TABLE layer_names")
    bench.connection.execute("DROP TABLE distribution")
    bench.connection.execute("ALTER TABLE run DROP COLUMN summary")
    bench.connection.execute("ALTER TABLE run DROP COLUMN notes")
    for column in ("host", "began", "steps"):
        bench.connection.execute(f"ALTER TABLE session DROP COLUMN {column}")
    bench.connection.execute("ALTER TABLE series DROP COLUMN squares")
    bench.connection.execute("DELETE FROM migration WHERE number > 3")
    bench.reopen()
    assert version(place / FILE) == NOW
    assert bench.chart(1, "a", EVERYTHING, 10).nonfinite == ()  # nobody has counted them
    (metric,) = summary.metrics(bench.connection, 1)
    assert (metric["mean"], metric["std"]) == (0.5, None)  # nobody has kept it
    bench.numbers[session_id(1)] = 2
    bench.send(session_id(1), block(["a"], range(BLOCK + 9, BLOCK + 20), [inf] * 11))
    bench.apply(AccountUpdated("run", 0, 0, Account(stall=2.0)))
    bench.end()
    bench.pack()
    bench.check()
    assert sum(bench.chart(1, "a", EVERYTHING, 10).nonfinite) == 11
    (one,) = time_accounting.rank_times(bench.connection, 1)
    assert (one.phases["data"], one.account.stall) == (5.0, 2.0)
    bench.close()


def test_a_step_that_fails_leaves_nothing_of_itself(old: Path, place: Path) -> None:
    connection = sqlite3.connect(old, isolation_level=None)
    with pytest.raises(sqlite3.OperationalError):
        schema.migrate(connection, (*MORE[: NOW + 1], ("three", ("UPDATE two SET a = 7", "NONSENSE"))))
    assert schema.version(connection) == NOW + 1
    assert connection.execute("SELECT a FROM two").fetchall() == [(1,)]
    connection.close()


KILLED_BETWEEN = """
import os, sqlite3, sys
from pathlib import Path
from history.builders import MORE
from trackside_daemon.history import schema
from trackside_daemon.history.database import Database

left = int(sys.argv[2])
migrations = schema.MIGRATIONS if sys.argv[3:] else MORE

class Statements(tuple):
    def __iter__(self):
        global left
        for one in super().__iter__():
            if left == 0:
                os._exit(9)
            left -= 1
            yield one
        if left == 0:
            os._exit(9)
        left -= 1

Database(Path(sys.argv[1]), migrations=[(name, Statements(steps)) for name, steps in migrations]).close()
"""


def python(code: str, *arguments: str) -> list[str]:
    """Return a command that runs code, which can import the modules of this process."""
    return [
        sys.executable,
        "-c",
        f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n{code}",
        *arguments,
    ]


@pytest.mark.parametrize("after", range(7))
def test_killed_between_two_statements_the_next_start_completes_it(after: int, old: Path, place: Path) -> None:
    died = processes.run(python(KILLED_BETWEEN, str(place), str(after)))
    assert died.returncode == 9
    assert version(old) == NOW + (after >= 4)
    test_an_older_file_is_copied_and_changed(old, place)


def older(place: Path, number: int) -> dict[str, list[tuple[Any, ...]]]:
    """Make a file of an older schema, whose tables have the rows of `fill`; return the rows that it has."""
    bench = Bench(place)
    fill(bench, runs=1)
    whole = filled(bench.connection)
    bench.close()
    (place / FILE).rename(place / "now")
    connection = sqlite3.connect(place / FILE, isolation_level=None)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    schema.migrate(connection, schema.MIGRATIONS[:number])
    connection.execute("ATTACH ? AS now", (str(place / "now"),))
    for table in tables(connection).keys() - {"migration"}:
        columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})").fetchall())
        connection.execute(f"INSERT OR REPLACE INTO main.{table} ({columns}) SELECT {columns} FROM now.{table}")
    found = tables(connection)
    connection.close()
    (place / "now").unlink()
    assert {table for table, rows in found.items() if rows} <= whole.keys()
    return found


def holds(path: Path, before: dict[str, list[tuple[Any, ...]]]) -> None:
    """Check that a file of this schema has every row of an older one: columns are only ever appended."""
    connection = sqlite3.connect(path)
    now = tables(connection)
    check_tables(connection)
    assert connection.execute("SELECT max(number) FROM migration").fetchone() == (NOW,)
    connection.close()
    for table, rows in before.items():
        width = len(rows[0]) if rows else 0
        assert repr([row[:width] for row in now[table]][: len(rows)]) == repr(rows), table


@pytest.mark.parametrize("number", range(1, NOW))
def test_every_row_of_every_table_of_every_older_schema_is_there_after_the_migration(number: int, place: Path) -> None:
    before = older(place, number)
    Database(place).close()
    holds(place / FILE, before)
    copy = sqlite3.connect(place / f"{FILE}.schema-{number}")
    assert repr(tables(copy)) == repr(before)
    copy.close()


@pytest.mark.parametrize("after", range(0, 12, 3))
def test_killed_in_the_middle_of_a_migration_every_row_of_every_table_is_there(after: int, place: Path) -> None:
    before = older(place, 8)
    assert processes.run(python(KILLED_BETWEEN, str(place), str(after), "now")).returncode == 9
    assert 8 <= version(place / FILE) < NOW
    Database(place).close()
    holds(place / FILE, before)
    assert not list(place.glob("*.unfinished"))


def test_columns_are_only_ever_appended() -> None:
    """Otherwise a row of an older schema cannot be salvaged from a damaged file; see `salvage._copy`."""
    changes = [statement for _, statements in schema.MIGRATIONS[1:] for statement in statements]
    assert all(
        re.match(r"ALTER TABLE \w+ ADD COLUMN |CREATE (UNIQUE )?(TABLE|INDEX) ", statement) for statement in changes
    )


WRITING = """
import os, sys
from pathlib import Path
from history.builders import SHIFT, WALL, block, opened, session_id
from session_records import batch_ingested
from trackside_daemon.history import schema
from trackside_daemon.history.database import Database
from trackside_daemon.history.directory import HistoryError
from trackside_daemon.history.record import writer as module
from trackside_daemon.history.record.trimming import Bounds

number, first = int(sys.argv[2]), int(sys.argv[3])
try:
    database = Database(Path(sys.argv[1]), migrations=schema.MIGRATIONS[:number])
except HistoryError as error:
    print(error)
    sys.exit(2)
writer = module.Writer(database, Bounds(2**33), acknowledge=lambda receipt: os.write(1, b"%d\\n" % receipt))
writer.start()
writer.put([opened(session_id(9), run="load", acked=first)])
while True:
    first += 1
    while not writer.has_room():
        pass
    writer.put([batch_ingested(session_id(9), first, [block(["n"], [first], [float(first)])], SHIFT)], first)
"""


def test_back_and_forth_between_two_versions_that_are_killed_under_load_nothing_is_lost(
    place: Path, count: Callable[[int, int], int]
) -> None:
    """The older version refuses the newer file in one line; what each has acknowledged is there in the end, once."""
    before = older(place, NOW - 1)
    dice = random.Random(4711)
    last = 0
    for turn in range(count(4, 60)):
        child = processes.start(python(WRITING, str(place), str(NOW - turn % 2), str(last)), stdout=subprocess.PIPE)
        assert child.stdout is not None
        if turn % 4 != 2:  # else it may die while it copies or migrates
            assert select.select([child.stdout], [], [], DEADLINE)[0]
        time.sleep(dice.random() * 0.2)
        child.send_signal(signal.SIGKILL)
        reported = child.stdout.read().decode()
        child.wait(DEADLINE)
        child.stdout.close()
        if turn % 2:
            assert re.search(rf"newer trackside \(schema {NOW}, this one supports {NOW - 1}\)", reported), reported
            assert len(reported.splitlines()) == 1
        elif reported:
            last = int(reported.splitlines()[-1])
        assert not list(place.glob("*.damaged-*"))
    assert last > 0
    database = Database(place)
    (stream,) = database.connection.execute("SELECT stream FROM session WHERE id = ?", (session_id(9),)).fetchone()
    values = [row[2] for row in read(database, stream, "n")]
    database.close()
    assert values[:last] == [float(number) for number in range(1, last + 1)]
    assert values == sorted({*values})
    holds(place / FILE, {table: rows for table, rows in before.items() if table not in {"series", "axis", "block"}})


CHILD = """
import os, random, sys, threading
from array import array
from pathlib import Path
from history.builders import SHIFT, block, opened, session_id
from history.builders import MORE
from trackside_daemon.history.record import maintenance, store, writer as module
from trackside_daemon.history.database import Database
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.model.records import RunState
from session_records import batch_ingested

place, seed, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sessions = [int(one) for one in sys.argv[4].split(",")]
store.LOG_ROWS = 20
dice = random.Random(seed)

def acknowledge(receipt):
    os.write(1, b"%d %d\\n" % receipt)

database = Database(place, migrations=MORE[:steps])
writer = module.Writer(
    database, Bounds(6_000_000), acknowledge=acknowledge, intervals=maintenance.WriterIntervals(trim=0.02)
)
writer.start()
numbers = []
for one in range(4):
    # the last stream is another run, that ends at once and is what is trimmed
    writer.put([opened(session_id(one), run="run" if one < 3 else "other", rank=one % 3)])
    numbers.append(sessions[one])
while True:
    for one in range(4):
        while not writer.has_room():
            pass
        first = numbers[one]
        for number in range(first + 1, first + 1 + dice.randint(1, 4)):
            count = 1 + (number * 37) % 300
            steps = range(count)
            values = [float(number)] * count + [dice.random() for _ in range(count * 2)]
            keys = ["id", "x", "y"]
            rows = [values[at] for row in range(count) for at in (row, count + row, 2 * count + row)]
            writer.put([batch_ingested(session_id(one), number, [block(keys, steps, rows)], SHIFT)], (one, number))
            numbers[one] = number
    if dice.random() < 0.05:
        writer.put([RunState("other", 0, "finished", "", 1e9 + numbers[0])])
"""


PARTS = [pytest.param(part, marks=[pytest.mark.only_soak] if part % 4 else []) for part in range(10)]


@pytest.mark.parametrize("part", PARTS)
def test_killed_at_any_moment_everything_acknowledged_is_there_once(
    part: int, place: Path, count: Callable[[int, int], int]
) -> None:
    dice = random.Random(part)
    steps = NOW
    acknowledged = [0, 0, 0, 0]
    for number in range(count(2, 20)):
        if number % 2:
            steps = min(steps + 1, len(MORE))
        committed = ",".join(map(str, acknowledged))
        child = processes.start(python(CHILD, str(place), str(number), str(steps), committed), stdout=subprocess.PIPE)
        assert child.stdout is not None
        if not number % 2 or dice.random() < 0.5:  # else it may die while it migrates
            assert select.select([child.stdout], [], [], 60)[0]
        time.sleep(dice.random() * 0.12)
        child.send_signal(signal.SIGKILL)
        reported = child.stdout.read().decode()
        assert child.wait(DEADLINE) == -signal.SIGKILL, reported
        child.stdout.close()
        for line in reported.splitlines():
            one, last = map(int, line.split())
            assert last == acknowledged[one] + 1
            acknowledged[one] = last
        acknowledged = reopened(place, steps, acknowledged)
    assert sum(acknowledged) > 0


def reopened(place: Path, steps: int, acknowledged: list[int]) -> list[int]:
    """Open the file as the next start does, and find each message once; how far each session has come."""
    database = Database(place, migrations=MORE[:steps])
    assert not list(place.glob("*.damaged-*"))
    check_tables(database.connection, deep=False)
    found = []
    for one in range(4):
        with database.reading() as connection:
            known = attempts.stored_session(connection, session_id(one))
        committed = 0 if known is None else known.committed
        found.append(max(committed, acknowledged[one]))
        if known is None:
            assert one == 3 or not acknowledged[one]
            continue
        assert committed >= acknowledged[one]
        stream = database.connection.execute("SELECT stream FROM session WHERE id = ?", (session_id(one),)).fetchone()[
            0
        ]
        query = "SELECT coalesce(max(trimmed), 0) FROM series WHERE stream = ? AND key = 'id'"
        gone = database.connection.execute(query, (stream,)).fetchone()[0]
        rows = read(database, stream, "id")
        values = [(round(row[2]), row[0]) for row in rows]
        first = values[0][0] if gone and values else 1
        whole = [(number, step) for number in range(first, committed + 1) for step in range(1 + (number * 37) % 300)]
        if gone or one == 3:  # the oldest were trimmed: the rest is whole
            assert values == whole[len(whole) - len(values) :], (one, len(values), len(whole))
        else:
            assert values == whole, (one, len(values), len(whole))
    database.close()
    return found
