"""The database file: damage, migration, reading during writes, and file systems without shared memory."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from history.builders import Bench, block, check_tables, read, session_id

from trackside_daemon.history import schema
from trackside_daemon.history.database import FILE, ClosedError, Database, is_damage
from trackside_daemon.history.directory import HistoryError
from trackside_daemon.history.read import charts, reader, series
from trackside_daemon.history.record.store import RecordStore
from trackside_daemon.history.salvage import set_aside

if TYPE_CHECKING:
    from collections.abc import Callable

ONE = session_id(1)
NEXT = (*schema.MIGRATIONS, ("the next", ["CREATE TABLE next (id INTEGER PRIMARY KEY)"]))


@pytest.fixture
def written(place: Path, with_everything: bytes) -> Path:
    """A file with some of everything."""
    (place / FILE).touch(0o600)
    (place / FILE).write_bytes(with_everything)
    return place / FILE


@pytest.fixture(scope="module")
def with_everything(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a file with some of everything."""
    place = tmp_path_factory.mktemp("history")
    bench = Bench(place)
    for rank in range(3):
        bench.open(session_id(rank), rank=rank, config='{"a": 1}')
        for number in range(20):
            keys = [f"k{key}" for key in range(8)]
            values = [random.Random(number).random() for _ in range(8 * 100)]
            bench.send(session_id(rank), block(keys, range(100 * number, 100 * number + 100), values))
        bench.pack(bench.stream(session_id(rank)))
        bench.send(session_id(rank), block(["k1", "k2"], [1, 2], [1.0, 2.0, 3.0, 4.0]))
    bench.close()
    return (place / FILE).read_bytes()


def aside(place: Path) -> list[Path]:
    """Return the damaged files that were set aside."""
    return sorted(place.glob(f"{FILE}.damaged-*"))


@pytest.mark.parametrize("content", [b"x" * 100, b"SQLite format 3\0" + b"\xff" * 5000, bytes(8192)])
def test_a_file_that_is_no_database_is_retained_and_a_new_one_begun(
    content: bytes, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (place / FILE).write_bytes(content)
    bench = Bench(place)
    bench.open(ONE)
    bench.close()
    (kept,) = [one for one in aside(place) if not one.name.endswith(("-wal", "-shm"))]
    assert kept.read_bytes()[:16] == content[:16]
    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert kept.name in line
    assert "\n" not in line


def test_an_empty_file_is_begun_and_one_cut_to_nothing_is_retained_with_its_wal(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (place / FILE).touch()
    Database(place).close()
    assert not aside(place)
    (place / FILE).write_bytes(b"")
    (place / f"{FILE}-wal").write_bytes(b"x" * 5000)
    Database(place).close()
    assert [one.name[-4:] == "-wal" for one in aside(place)].count(True) == 1
    assert next(one for one in aside(place) if one.name.endswith("-wal")).read_bytes() == b"x" * 5000
    assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 1


def test_a_damaged_file_opens_or_is_set_aside_and_never_crashes(
    written: Path, place: Path, count: Callable[[int, int], int], caplog: pytest.LogCaptureFixture
) -> None:
    sound = written.read_bytes()
    pages = len(sound) // 4096
    for seed in range(count(4, 1000)):
        dice = random.Random(seed)
        data = bytearray(sound)
        for _ in range(dice.choice((1, 1, 3, 20))):
            page = dice.choice((0, 1, 2, 3, dice.randrange(pages)))
            begin = page * 4096 + dice.choice((0, 0, dice.randrange(4096)))
            size = dice.choice((1, 16, 4096))
            data[begin : begin + size] = dice.randbytes(len(data[begin : begin + size]))
        if dice.random() < 0.2:
            del data[dice.randrange(len(data)) :]
        for old in place.glob(f"{FILE}*"):
            old.unlink()
        written.write_bytes(bytes(data))
        caplog.clear()
        try:
            database = Database(place)
        except HistoryError as error:
            assert "\n" not in str(error)  # noqa: PT017
            continue
        errors = [one for one in caplog.records if one.levelname == "ERROR"]
        assert len(errors) == bool([one for one in aside(place) if not one.name.endswith(("-wal", "-shm"))])
        assert all("\n" not in one.getMessage() for one in errors), errors[0].getMessage()
        _use(database)
        database.close()


def _use(database: Database) -> None:  # noqa: C901
    """Read and write everything; damage must raise one of three errors."""

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
        except ValueError:
            pass
        except sqlite3.DatabaseError as error:
            if not is_damage(error) and "UNIQUE" not in str(error):
                raise

    def draw() -> None:
        for stream in (1, 2, 3):
            with database.reading() as connection:
                tail = series.LogTail(connection, stream)
                for one in series.find(connection, stream, tail):
                    for points in (2, 20, 4000):
                        attempt(lambda one=one, points=points: charts.chart(connection, one, tail, points=points))  # type: ignore[misc]  # noqa: B023

    def read_runs() -> None:
        with database.reading() as connection:
            for run in reader.runs(connection):
                reader.run(connection, run["id"])

    attempt(draw)
    attempt(read_runs)
    for number in range(5):
        attempt(lambda number=number: read(database, 1, f"k{number}"))  # type: ignore[misc]


def test_a_newer_file_is_refused_in_one_line_and_left_alone(written: Path, place: Path) -> None:
    connection = sqlite3.connect(written)
    connection.execute("INSERT INTO migration VALUES (?, 'the future', 1.0)", (len(schema.MIGRATIONS) + 1,))
    connection.commit()
    connection.close()
    before = written.read_bytes()[100:]  # a counter is in the header
    with pytest.raises(HistoryError, match="newer trackside") as caught:
        Database(place)
    assert "\n" not in str(caught.value)
    assert written.read_bytes()[100:] == before


def test_a_file_that_cannot_be_opened_is_reported_in_one_line(place: Path) -> None:
    for directory in (place / "nowhere", place / "b"):
        (place / "b" / FILE).mkdir(parents=True, exist_ok=True)
        with pytest.raises(HistoryError) as caught:
            Database(directory)
        assert "\n" not in str(caught.value)
        assert "--storage.path" in str(caught.value)


def test_no_other_user_may_ever_read_the_file_or_its_copy(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    connect = sqlite3.connect

    def record_mode(path: Path, *more: object, **named: object) -> sqlite3.Connection:
        modes.append(stat.S_IMODE(path.stat().st_mode))
        return connect(path, *more, **named)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(sqlite3, "connect", record_mode)
    before = os.umask(0)
    try:
        Database(place).close()
        Database(place, migrations=NEXT).close()
    finally:
        os.umask(before)
    assert modes == [0o600] * 3
    assert {stat.S_IMODE(one.stat().st_mode) for one in place.iterdir()} == {0o600}


@pytest.mark.parametrize("there", [False, True])
def test_a_link_is_not_followed(place: Path, there: bool) -> None:
    if there:
        (place / "other").touch()
    (place / FILE).symlink_to(place / "other")
    with pytest.raises(HistoryError, match=r"history.db is a link; name the directory .* --storage.path$"):
        Database(place)
    assert (place / "other").exists() is there


def test_an_older_file_is_left_alone_where_there_is_no_room_for_a_copy(
    written: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(place)._replace(free=4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(
        HistoryError, match=r"copied before its migration: the copy needs [\d.]+ [KM]iB, and 4 KiB are free"
    ) as caught:
        Database(place, migrations=NEXT)
    assert "\n" not in str(caught.value)
    Database(place).close()


def test_half_a_copy_is_not_left(written: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path, __: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(type(place), "rename", fail)
        with pytest.raises(HistoryError, match="no space left on device; free it"):
            Database(place, migrations=NEXT)
    assert [one.name for one in place.iterdir()] == [FILE]


def test_a_file_that_was_deleted_or_replaced_is_noticed(place: Path) -> None:
    first, other = Database(place), place / "other"
    assert not first.is_gone()
    other.write_bytes(b"")
    other.replace(place / FILE)
    assert first.is_gone()
    (place / FILE).unlink()
    assert first.is_gone()
    first.reopen()
    assert not first.is_gone()
    (place / f"{FILE}-wal").unlink()
    assert first.is_gone()
    first.reopen()
    assert not first.is_gone()
    first.close()


@pytest.mark.parametrize("exclusive", [False, True])
def test_readers_see_one_moment_while_the_writer_writes(
    exclusive: bool, place: Path, count: Callable[[int, int], int]
) -> None:
    database = Database(place, exclusive=exclusive)
    store = RecordStore(database.connection)
    with database.transaction() as connection:
        connection.execute("CREATE TABLE pair (a INTEGER, b INTEGER)")
        connection.execute("INSERT INTO pair VALUES (0, 0)")
    wrong: list[object] = []
    over = threading.Event()
    seen: set[int] = set()

    def read_once() -> None:
        try:
            while not over.is_set():
                with database.reading() as connection:
                    left = connection.execute("SELECT a FROM pair").fetchone()[0]
                    right = connection.execute("SELECT b FROM pair").fetchone()[0]
                seen.add(left)
                if left != right:
                    wrong.append((left, right))
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=read_once) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(count(300, 5000)):
        with database.transaction() as connection:
            connection.execute("UPDATE pair SET a = ?", (number,))
            connection.execute("UPDATE pair SET b = ?", (number,))
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert seen
    assert store.due == {}
    database.close()


def test_exclusive_mode_writes_packs_and_reads(place: Path) -> None:
    bench = Bench(place, exclusive=True)
    bench.open(ONE)
    for number in range(12):
        bench.send(ONE, block(["a", "b"], range(500 * number, 500 * number + 500), [0.5] * 1000))
    bench.pack()
    bench.check()
    assert not (place / f"{FILE}-shm").exists()
    bench.reopen()
    bench.check()
    bench.close()


def test_no_more_connections_are_open_than_readers_at_once(place: Path) -> None:
    database = Database(place)

    def read_once() -> None:
        with database.reading() as connection:
            connection.execute("SELECT count(*) FROM run").fetchone()

    for _ in range(50):
        thread = threading.Thread(target=read_once)
        thread.start()
        thread.join()
    open_files = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.exists()]
    assert open_files.count(str(place / FILE)) == 2, "the writer's and one reader's"
    database.close()


def test_a_reader_of_a_file_that_is_set_aside_reads_on_and_the_next_reads_the_new_one(
    written: Path, place: Path
) -> None:
    database = Database(place)
    with database.reading() as connection:
        before = connection.execute("SELECT name FROM run").fetchone()
        database.report("damaged")
        database.reopen()
        with database.transaction() as writer:
            writer.execute("UPDATE run SET name = 'new'")
        assert connection.execute("SELECT name FROM run").fetchone() == before
        assert before == ("run",)
    with database.reading() as connection:
        assert connection.execute("SELECT name FROM run").fetchone() == ("new",)
    check_tables(database.connection)
    database.close()


def test_no_reader_opens_the_old_file_while_it_is_replaced(
    written: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a reader once came into the pool, and served the old file until the daemon's end."""
    database = Database(place)
    rename = set_aside.set_aside
    refused = []

    def read_and_rename(path: Path, aside: Path) -> None:
        with pytest.raises(ClosedError) as caught, database.reading():
            pass
        refused.append(caught.value)
        rename(path, aside)

    monkeypatch.setattr(set_aside, "set_aside", read_and_rename)
    database.report("damaged")
    database.reopen()
    assert len(refused) == 1
    database.close()


def test_a_reader_that_has_read_nothing_before_its_file_is_replaced_does_not_mix_two_files(
    written: Path, place: Path
) -> None:
    database = Database(place)
    with database.reading() as connection:
        database.report("damaged")
        database.reopen()
        with database.transaction() as writer:
            writer.execute("CREATE TABLE other (a INTEGER)")
            writer.executemany("INSERT INTO other VALUES (?)", [(number,) for number in range(10_000)])
        assert connection.execute("SELECT count(*) FROM stream").fetchone()[0] == 4
        assert connection.execute("PRAGMA quick_check").fetchone()[0] == "ok"
    database.close()


@pytest.mark.parametrize(
    ("error", "damage"),
    [
        (sqlite3.DatabaseError("database disk image is malformed"), True),
        (sqlite3.DatabaseError("file is not a database"), True),
        (sqlite3.OperationalError("Could not decode to UTF-8 column 'key' with text 'x'"), True),
        (sqlite3.OperationalError("database or disk is full"), False),
        (sqlite3.OperationalError("database is locked"), False),
        (ValueError("malformed"), False),
    ],
)
def test_a_damaged_file_is_recognized_by_its_errors(error: Exception, damage: bool) -> None:
    assert is_damage(error) is damage
