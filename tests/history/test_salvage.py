"""Damaged files: what is left of each kind is copied to a new one, and nothing wrong, twice or inconsistent is in it."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import time
from typing import TYPE_CHECKING

import processes
import pytest
from history.builders import Bench, check_tables, fill, filled, read, tables
from history.test_schema import python

from trackside_daemon.history import schema
from trackside_daemon.history.database import FILE, SMALL_BYTES, Database
from trackside_daemon.history.directory import HistoryError, UnavailableError
from trackside_daemon.history.read import reader
from trackside_daemon.history.salvage import set_aside
from trackside_daemon.history.salvage.__main__ import find_damage
from trackside_daemon.history.salvage.pages import PAGE_BYTES, read_wal
from trackside_daemon.history.salvage.salvage import Salvaged, salvage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from history.builders import Sample

Rows = dict[tuple[str, int, str], list["Sample"]]
"""The samples of each run, rank and key."""

FRAME = 24 + PAGE_BYTES


class Original:
    """A file with rows in every table, as bytes: closed, and as a daemon leaves it that is killed."""

    def __init__(self, place: Path) -> None:
        bench = Bench(place)
        fill(bench)
        self.tables = filled(bench.connection)
        self.rows = rows(bench.database)
        self.killed = {name: (place / name).read_bytes() for name in (FILE, f"{FILE}-wal")}
        bench.close()
        self.closed = {FILE: (place / FILE).read_bytes()}

    def write(self, place: Path, files: dict[str, bytes]) -> None:
        """Write the files, and nothing else."""
        for old in place.iterdir():
            old.unlink()
        for name, data in files.items():
            (place / name).write_bytes(data)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """A file with rows in every table."""
    return Original(tmp_path_factory.mktemp("original"))


def rows(database: Database) -> Rows:
    """Return all samples of all runs."""
    query = "SELECT uid, rank, key, stream.id FROM run JOIN stream ON run = run.id JOIN "
    query += "(SELECT stream, key FROM series UNION SELECT stream, 'loss' FROM session) ON stream = stream.id"
    with database.reading() as connection:
        series = connection.execute(query).fetchall()
    return {(uid, rank, key): read(database, stream, key) for uid, rank, key, stream in series}


def same(left: list[Sample], right: list[Sample]) -> bool:
    """Return whether samples are equal to the bit."""
    return list(map(repr, left)) == list(map(repr, right))


def zeroed(data: bytes, pages: list[int]) -> bytes:
    """Return a file some of whose pages, the first of which is 0, are zeros."""
    damaged = bytearray(data)
    for page in pages:
        damaged[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
    return bytes(damaged)


def without_root(data: bytes, place: Path, table: str) -> bytes:
    """Return a file in which the first page of a table is zeros, which leads to the others, or has the rows of a small one."""
    (place / "look").write_bytes(data)
    connection = sqlite3.connect(place / "look")
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    connection.close()
    (place / "look").unlink()
    return zeroed(data, [page - 1])


def salvaged(place: Path) -> Salvaged:
    """Salvage the file into another one."""
    (place / "new").write_bytes(b"")
    return salvage(place / FILE, place / "new", time.monotonic() + processes.DEADLINE)


@pytest.mark.parametrize("state", ["closed", "killed"])
def test_of_a_sound_file_every_row_of_every_table_is_copied(original: Original, place: Path, state: str) -> None:
    original.write(place, getattr(original, state))
    found = salvaged(place)
    samples = sum(map(len, original.rows.values()))
    # The host has its samples too.
    assert (found.samples, found.lost, found.runs, found.complete) == (samples + 2, 0, 2, True)
    assert found.text() == f"salvaged all {samples + 2:,} samples of 2 runs"
    connection = sqlite3.connect(place / "new")
    copied = tables(connection)
    check_tables(connection)
    connection.close()
    assert copied.pop("migration")
    assert {name: repr(rows) for name, rows in copied.items()} == {
        name: repr(rows) for name, rows in original.tables.items() if name != "migration"
    }


HEADERS = {
    "the first bytes": lambda data, _: os.urandom(100) + data[100:],
    "the first page": lambda data, _: os.urandom(PAGE_BYTES) + data[PAGE_BYTES:],
    "the pages between root and rows": lambda data, place: without_root(data, place, "block"),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_without_header_or_inner_pages_every_row_is_found(original: Original, place: Path, kind: str) -> None:
    """SQLite's own way to the rows leads through those pages."""
    original.write(place, {FILE: HEADERS[kind](original.closed[FILE], place)})  # type: ignore[no-untyped-call]
    assert salvaged(place).lost == 0
    (place / "new").rename(place / FILE)
    database = Database(place)
    found = rows(database)
    database.close()
    assert all(same(found[name], original.rows[name]) for name in original.rows)


def cut(data: bytes, _: random.Random) -> bytes:
    return data[: len(data) // 2]


def without_a_third(data: bytes, dice: random.Random) -> bytes:
    pages = len(data) // PAGE_BYTES
    return zeroed(data, dice.sample(range(pages), pages // 3))


def with_flips(data: bytes, dice: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(len(data) // 40_000):
        damaged[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(damaged)


@pytest.mark.parametrize("damage", [cut, without_a_third, with_flips])
@pytest.mark.parametrize("state", ["closed", "killed"])
def test_what_is_salvaged_is_consistent_and_right(
    original: Original,
    place: Path,
    state: str,
    damage: Callable[[bytes, random.Random], bytes],
    count: Callable[[int, int], int],
) -> None:
    total = sum(map(len, original.rows.values())) + 2
    for seed in range(count(3, 200)):
        files = dict(getattr(original, state))
        files[FILE] = damage(files[FILE], random.Random(seed))
        original.write(place, files)
        found = salvaged(place)
        assert found.lost is None or found.samples <= total
        (place / "new").rename(place / FILE)
        for name in (f"{FILE}-wal", f"{FILE}-shm"):
            (place / name).unlink(missing_ok=True)
        database = Database(place)
        check_tables(database.connection, deep=damage is not with_flips)
        assert not list(place.glob("*.damaged-*"))
        with database.reading() as connection:
            for run in reader.runs(connection):
                reader.run(connection, run["id"])
        if damage is not with_flips:  # which no checksum finds in a row of the log
            for series, samples in rows(database).items():
                expected = {repr(sample) for sample in original.rows.get(series, ())}
                assert not expected or {*map(repr, samples)} <= expected, (seed, series)
                assert len(samples) == len({*map(repr, samples)}), (seed, series)
        database.close()


def frames(wal: bytes, damaged: list[int]) -> bytes:
    """Return a WAL with damage in some frames, the first of which is 0."""
    changed = bytearray(wal)
    for number in damaged:
        changed[32 + number * FRAME + 2000] ^= 1
    return bytes(changed)


def test_damage_in_a_wal_is_noticed_at_the_start_and_costs_no_commit_that_was_written_again(
    original: Original, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite would leave out all commits after the damage, without a word."""
    files = dict(original.killed)
    wal = files[f"{FILE}-wal"]
    headers = [wal[at : at + 24] for at in range(32, len(wal), FRAME)]
    headers = [header for header in headers if header[8:16] == wal[16:24]]  # the rest is from before the WAL began anew
    last = {header[:4]: number for number, header in enumerate(headers)}
    old = [number for number in range(len(headers)) if number not in last.values()]
    files[f"{FILE}-wal"] = frames(wal, old[::7])
    original.write(place, files)
    database = Database(place)
    assert f"({len(old[::7])} damaged parts of its WAL)" in caplog.text
    found = rows(database)
    database.close()
    assert all(same(found[name], original.rows[name]) for name in original.rows)


def test_whatever_is_damaged_in_a_wal_nothing_comes_twice(
    original: Original, place: Path, count: Callable[[int, int], int]
) -> None:
    """The version of a page before its damaged one is older than the other pages."""
    for seed in range(count(3, 200)):
        dice = random.Random(seed)
        files = dict(original.killed)
        number = (len(files[f"{FILE}-wal"]) - 32) // FRAME
        files[f"{FILE}-wal"] = frames(files[f"{FILE}-wal"], dice.sample(range(number), 1 + number // 20))
        original.write(place, files)
        database = Database(place)
        check_tables(database.connection)
        for name, samples in rows(database).items():
            found = {*map(repr, samples)}
            assert len(samples) == len(found), (seed, name)
            assert name not in original.rows or found <= {*map(repr, original.rows[name])}, (seed, name)
        database.close()


def test_a_wal_without_its_header_is_read(original: Original, place: Path) -> None:
    files = dict(original.killed)
    files[f"{FILE}-wal"] = os.urandom(32) + files[f"{FILE}-wal"][32:]
    original.write(place, files)
    database = Database(place)
    found = rows(database)
    database.close()
    assert sum(map(len, found.values())) > 0.9 * sum(map(len, original.rows.values()))


def test_what_a_killed_daemon_leaves_at_the_end_of_a_wal_is_no_damage(place: Path) -> None:
    connection = sqlite3.connect(place / FILE, isolation_level=None)
    for pragma in ("auto_vacuum = INCREMENTAL", "journal_mode = WAL", "cache_size = 5", "wal_autocheckpoint = 0"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, data BLOB)")
    rows = [(bytes([number % 256]) * 3000,) for number in range(100)]
    connection.execute("BEGIN")  # larger than the cache, so that a part of it is in the WAL without a commit
    connection.executemany("INSERT INTO a (data) VALUES (?)", rows)
    connection.execute("ROLLBACK")
    connection.execute("INSERT INTO a (data) VALUES (x'01')")  # over the begin of that part
    whole = (place / f"{FILE}-wal").read_bytes()
    for end in range(len(whole), len(whole) - 2 * FRAME, -FRAME // 3):
        (place / "cut").write_bytes(whole[:end])
        assert read_wal(place / "cut").damage == ""
    connection.close()


def test_samples_without_their_run_get_one(original: Original, place: Path) -> None:
    original.write(place, original.closed)
    connection = sqlite3.connect(place / FILE)
    connection.execute("DELETE FROM run WHERE uid = 'run1'")
    connection.execute("DELETE FROM stream WHERE run = 1 AND rank = 1")
    connection.commit()
    connection.close()
    assert salvaged(place).runs == 3
    (place / "new").rename(place / FILE)
    database = Database(place)
    check_tables(database.connection)
    with database.reading() as connection:
        found = {run["id"]: (run["state"], run["cause"]) for run in reader.runs(connection)}
    samples = rows(database)
    database.close()
    lost = ("lost", "the history was damaged")
    assert found == {"run0": ("finished", ""), "salvaged-2": lost, "salvaged-3": lost}
    assert {name[0] for name in samples} == {*found}
    assert sum(map(len, samples.values())) == sum(map(len, original.rows.values()))


def test_a_row_that_is_damaged_costs_only_itself_and_one_that_comes_again_no_endless_loop(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(place)
    fill(bench)
    bench.connection.execute("UPDATE log SET data = x'91' WHERE id = (SELECT min(id) FROM log WHERE id >> 32 = 1)")
    bench.connection.execute("UPDATE run SET tags = '[\"t'")
    bench.database.report("a damaged row", rows=True)
    bench.database.reopen()
    with bench.database.reading() as connection:
        assert [run["tags"] for run in reader.runs(connection)] == [[], []]
    assert "288 are lost" in caplog.text
    bench.database.report("a damaged row", rows=True)
    bench.database.reopen()
    assert "its rows are damaged again" in caplog.text
    assert bench.connection.execute("SELECT count(*) FROM run").fetchone() == (0,)
    bench.close()


def test_a_file_of_an_older_schema_is_salvaged_as_one_of_this(original: Original, place: Path) -> None:
    original.write(place, original.closed)
    connection = sqlite3.connect(place / FILE)
    connection.execute("ALTER TABLE run DROP COLUMN notes")
    connection.execute("DROP TABLE distribution")
    connection.execute("DROP TABLE layer_names")
    connection.execute("DELETE FROM migration WHERE number > 10")
    connection.commit()
    connection.close()
    assert salvaged(place).lost == 0
    connection = sqlite3.connect(place / "new")
    assert schema.version(connection) == len(schema.MIGRATIONS)
    assert connection.execute("SELECT uid, notes FROM run").fetchall() == [("run0", ""), ("run1", "")]
    connection.close()


def test_a_file_of_a_newer_schema_is_retained_and_not_salvaged(
    original: Original, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    original.write(place, original.closed)
    connection = sqlite3.connect(place / FILE)
    connection.execute("INSERT INTO migration VALUES (99, 'the future', 1.0)")
    connection.commit()
    connection.close()
    (place / FILE).write_bytes(os.urandom(100) + (place / FILE).read_bytes()[100:])
    Database(place).close()
    assert "a newer trackside wrote it (schema 99, this one supports" in caplog.text
    assert not list(place.glob(f"*{set_aside.TARGET}"))


KILLED = """
import os, sys
from pathlib import Path
from trackside_daemon.history import database
database.salvage = lambda *_: os._exit(9)
database.Database(Path(sys.argv[1]))
"""


def test_what_a_killed_daemon_was_salvaging_the_next_one_salvages(original: Original, place: Path) -> None:
    original.write(place, {FILE: os.urandom(100) + original.closed[FILE][100:]})
    assert processes.run(python(KILLED, str(place))).returncode == 9
    assert not (place / FILE).exists()
    database = Database(place)
    assert {name: len(one) for name, one in rows(database).items()} == {
        name: len(one) for name, one in original.rows.items()
    }
    database.close()
    (left,) = place.glob("*.damaged-*")
    left.rename(place / f"{left.name}-older")
    (place / f"{left.name}-older{set_aside.TARGET}").touch()
    Database(place).close()  # a history has begun meanwhile
    assert not list(place.glob(f"*{set_aside.TARGET}"))


def test_where_there_is_no_room_a_new_history_begins_empty(
    original: Original, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = shutil.disk_usage(place)._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    original.write(place, {FILE: os.urandom(100) + original.closed[FILE][100:]})
    database = Database(place)
    assert database.connection.execute("SELECT count(*) FROM run").fetchone() == (0,)
    database.close()
    assert re.search(r"that needs [\d.]+ MiB", caplog.text)


def test_a_daemon_salvages_in_a_process_of_its_own_and_waits_for_it(original: Original, place: Path) -> None:
    original.write(place, {FILE: os.urandom(100) + original.closed[FILE][100:]})
    database = Database(place, serves=True)
    while not database.is_open:
        with pytest.raises(sqlite3.OperationalError, match="are being copied to a new one"), database.reading():
            pass
        try:
            database.reopen(processes.DEADLINE)
        except UnavailableError:
            continue
    assert {name: len(one) for name, one in rows(database).items()} == {
        name: len(one) for name, one in original.rows.items()
    }
    database.close()


def test_a_file_that_cannot_be_set_aside_is_not_used(
    original: Original, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original.write(place, original.closed)
    database = Database(place)

    def fail(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(set_aside, "set_aside", fail)
        database.report("malformed")
        for _ in range(2):
            with pytest.raises(HistoryError, match=r"malformed\), and cannot be set aside: read-only file system"):
                database.reopen()
        assert not database.is_open
    database.reopen()
    assert database.is_open
    database.close()


@pytest.mark.parametrize("table", ["block", "series"])
def test_the_check_of_a_file_in_use_finds_damage(original: Original, place: Path, table: str) -> None:
    original.write(place, original.closed)
    assert find_damage(place / FILE) == ""
    original.write(place, {FILE: without_root(original.closed[FILE], place, table)})
    assert find_damage(place / FILE)


def test_a_large_file_is_checked_while_it_is_used(original: Original, place: Path) -> None:
    original.write(place, original.closed)
    connection = sqlite3.connect(place / FILE)
    connection.execute(
        "INSERT INTO event SELECT NULL, run, attempt, rank, step, time, kind, zeroblob(?) FROM event", (SMALL_BYTES,)
    )
    connection.commit()
    connection.close()
    original.write(place, {FILE: without_root((place / FILE).read_bytes(), place, "block")})
    database = Database(place, serves=True)
    assert database.is_open

    def damage() -> str:
        database.poll()
        return database.damage

    processes.eventually(damage)
    database.reopen(processes.DEADLINE)
    assert {name: len(one) for name, one in rows(database).items()} == {
        name: len(one) for name, one in original.rows.items()
    }
    database.close()
