"""The history's file while no daemon runs: to be read, also by those who may not write beside it.

A file in WAL mode can be read only where its ``-wal`` and ``-shm`` may be made or are there (SQLite, "Read-Only WAL-Mode
Databases"). Where they may not, the file is read as one that never changes, and what a killed daemon has left in the
``-wal`` is not seen.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from trackside_daemon.history import schema
from trackside_daemon.history.database import FILE, is_damage, open_reader
from trackside_daemon.history.directory import OPTION, HistoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Offline:
    """The file in a directory, for one thread.

    Args:
        directory: Where it is.
        warn: Told, in one line, when the newest samples cannot be read.

    Raises:
        HistoryError: There is none, it cannot be read, or it has another schema.
    """

    def __init__(self, directory: Path, warn: Callable[[str], None]) -> None:
        self.path = directory / FILE
        self._connection = _open(self.path, warn)
        try:
            _check(self._connection, self.path)
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One moment's view of the file, as `Database.reading` gives it."""
        self._connection.execute("BEGIN")
        try:
            yield self._connection
        finally:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _open(path: Path, warn: Callable[[str], None]) -> sqlite3.Connection:
    _stat(path)
    with suppress(sqlite3.OperationalError):
        return _tried(path, alone=False)
    wal = path.with_name(path.name + "-wal")
    try:
        connection = _tried(path, alone=True)
    except sqlite3.OperationalError as error:
        raise HistoryError(f"{path}: {error}; name another directory with {OPTION}=DIR") from error
    with suppress(OSError):
        if wal.stat().st_size:
            warn(f"{wal} cannot be read, so the newest samples are left out until the daemon has run again")
    return connection


def _stat(path: Path) -> None:
    """Say what is wrong with the file itself, which SQLite would not."""
    try:
        with path.open("rb"):
            return
    except FileNotFoundError:
        raise HistoryError(
            f"{path}: there is no history here yet; start a daemon, or name its directory with {OPTION}=DIR"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise HistoryError(f"{path}: {reason}; name another directory with {OPTION}=DIR") from error


def _tried(path: Path, *, alone: bool) -> sqlite3.Connection:
    """A connection that has read something, since SQLite opens nothing before."""
    connection = open_reader(path, alone=alone)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        raise
    except sqlite3.DatabaseError as error:
        connection.close()
        if not is_damage(error):
            raise
        raise HistoryError(
            f"{path} is damaged ({error}); the daemon sets it aside when it starts, and begins a new one"
        ) from error
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    found = schema.check(connection, path, schema.MIGRATIONS)
    if found < len(schema.MIGRATIONS):
        raise HistoryError(
            f"{path}: written by an older trackside (schema {found}, this one reads {len(schema.MIGRATIONS)}); "
            "start the daemon once to migrate it"
        )
