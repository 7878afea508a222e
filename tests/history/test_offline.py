"""Reading the file without a daemon, by any user with read permission, and without changes to it."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import sqlite3
import warnings
from typing import TYPE_CHECKING

import pytest
from histories import column, finished, history, opened
from history.builders import MORE

from trackside_daemon.cli.sources.file_source import FileSource
from trackside_daemon.history import directory as history_directory
from trackside_daemon.history import schema
from trackside_daemon.history.database import FILE, Database
from trackside_daemon.history.directory import HistoryError
from trackside_daemon.history.files.selection import count
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.offline import Offline
from trackside_daemon.questions.runs import Run, Runs

if TYPE_CHECKING:
    from pathlib import Path


def nothing(reported: str) -> None:
    pytest.fail(reported)


def read_unprivileged(directory: Path) -> tuple[list[str], int, list[str]]:
    """Read a directory as a user without write access.

    Returns:
        The runs, the number of samples of one, and the warnings.
    """
    for path in (directory, *directory.iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are threads: what is forked here takes no lock of theirs
        child = os.fork()
    if not child:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(theirs, json.dumps(read_offline(directory)).encode())
        except BaseException as error:  # noqa: BLE001  told by the parent
            os.write(theirs, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        seen = json.loads(answer.read())
    os.waitpid(child, 0)
    directory.chmod(0o755)
    assert isinstance(seen, list), seen
    return seen[0], seen[1], seen[2]


def read_offline(directory: Path) -> tuple[list[str], int, list[str]]:
    reported: list[str] = []
    offline = Offline(directory, reported.append)
    with offline.reading() as connection:
        runs = [run["id"] for run in reader.runs(connection)]
    return runs, count(offline, "a"), reported


def killed(place: Path, *, wal: bool = True) -> Path:
    """Return a file as a killed daemon leaves it: the last run is only in the WAL."""
    directory = place / "killed"
    directory.mkdir(mode=0o755)
    with history(place / "live") as one:
        one.put([opened("a"), column("a", ["x"], 10), finished("a")])
        one.writer.call(lambda _: None).result(60)
        one.writer.stop()
        one.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with one.database.transaction() as connection:
            connection.execute("INSERT INTO run (uid, name, state, started) VALUES ('late', 'late', 'lost', 9e9)")
        for suffix in ("", "-wal") if wal else ("",):
            shutil.copy(f"{one.database.path}{suffix}", f"{directory / FILE}{suffix}")
    return directory


@pytest.fixture
def open_place(place: Path) -> Path:
    """A directory that other users may read."""
    place.chmod(0o755)
    return place


def test_a_closed_history_is_read_and_left_as_it_was(tmp_path: Path) -> None:
    with history(tmp_path) as one:
        one.put([opened("a"), column("a", ["x"], 10)])
    before = (tmp_path / FILE).read_bytes()
    offline = Offline(tmp_path, nothing)
    with offline.reading() as connection:
        assert [run["id"] for run in reader.runs(connection)] == ["a"]
    offline.close()
    assert (tmp_path / FILE).read_bytes() == before


def test_a_history_without_a_holder_is_closed(tmp_path: Path) -> None:
    """A command and a notebook close none, and Python 3.13 warns of a connection that is collected open."""
    with history(tmp_path):
        pass
    read = Offline(tmp_path, nothing)
    with read.reading() as connection:
        pass
    del read
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_what_a_killed_daemon_has_left_in_the_wal_is_read_too(place: Path) -> None:
    offline = Offline(killed(place), nothing)
    with offline.reading() as connection:
        assert [run["id"] for run in reader.runs(connection)] == ["late", "a"]
    offline.close()


def test_a_user_without_write_access_to_the_directory_can_read_it(open_place: Path) -> None:
    assert read_unprivileged(killed(open_place, wal=False)) == (["a"], 10, [])


def test_a_user_without_write_access_beside_a_left_over_wal_learns_what_is_missing(open_place: Path) -> None:
    runs, samples, reported = read_unprivileged(killed(open_place))
    assert (runs, samples) == (["a"], 10)
    assert len(reported) == 1
    assert re.fullmatch(r"\S+/history.db-wal cannot be read, so the newest samples are left out until .*", reported[0])


def test_without_a_history_the_command_names_where_it_searched(tmp_path: Path) -> None:
    with pytest.raises(HistoryError) as caught:
        Offline(tmp_path, nothing)
    assert str(caught.value) == (
        f"{tmp_path}/history.db: there is no history here yet; start a daemon, or name its directory with "
        "--storage.path=DIR"
    )


def test_a_newer_schema_is_refused_and_an_older_one_is_for_the_daemon_to_migrate(tmp_path: Path) -> None:
    for migrations, message in (
        (schema.MIGRATIONS[:-1], "start the daemon once to migrate it"),
        (MORE, "written by a newer trackside"),
    ):
        Database(tmp_path, migrations=migrations).close()
        with pytest.raises(HistoryError, match=message):
            Offline(tmp_path, nothing)


@pytest.mark.parametrize(
    "data", [b"no database at all, but long enough to be looked at" * 100, b"SQLite format 3\0" * 300]
)
def test_a_file_that_is_no_history_is_reported_in_a_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(HistoryError, match=r"history.db is damaged \(.*\); the daemon sets it aside"):
        Offline(tmp_path, nothing)


def test_a_directory_in_its_place_is_reported_in_a_line(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(HistoryError, match=r"history.db: is a directory; name another"):
        Offline(tmp_path, nothing)


def test_what_was_read_on_a_network_file_system_can_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with history(tmp_path) as made:
        made.put([opened("a"), column("a", ["loss"], 3), finished("a"), opened("b"), finished("b")])
    monkeypatch.setattr(history_directory, "network_file_system", lambda *_: "nfs")
    source = FileSource(tmp_path, nothing)
    assert source.ask(Run(id="a"))["state"] == "finished"
    with source.changes():
        source.delete("a")
    assert [run["id"] for run in source.ask(Runs())["runs"]] == ["b"]
