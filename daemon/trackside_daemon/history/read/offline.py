"""Read the history while no daemon runs, also as a user who may not write to its directory."""

import sqlite3
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trackside.os_errors import os_error_text
from trackside_daemon.history import schema
from trackside_daemon.history.database import FILE, is_damage, open_reader
from trackside_daemon.history.directory import OPTION, HistoryError


class Offline:
    """The history file in a directory, for one thread.

    Args:
        directory: The history's directory.
        warn: Called with a line of text if the newest samples cannot be read.

    Raises:
        HistoryError: There is no history, it cannot be read, or it has another schema.
    """

    def __init__(self, directory: Path, warn: Callable[[str], None]) -> None:
        self.path = directory / FILE
        self._connection = _open(self.path, warn)
        weakref.finalize(self, self._connection.close)  # commands and notebooks do not, and Python 3.13 warns of that
        try:
            _check(self._connection, self.path)
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a snapshot of the file, as `Database.reading` does."""
        self._connection.execute("BEGIN")
        try:
            yield self._connection
        finally:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _open(path: Path, warn: Callable[[str], None]) -> sqlite3.Connection:
    _check_readable(path)
    # SQLite reads a file in WAL mode only where its -wal and -shm exist or can be created ("Read-Only WAL-Mode
    # Databases"). Elsewhere, open it as immutable, which leaves out what a killed daemon left in the -wal.
    with suppress(sqlite3.OperationalError):
        return _connect(path, immutable=False)
    wal = path.with_name(path.name + "-wal")
    try:
        connection = _connect(path, immutable=True)
    except sqlite3.OperationalError as error:
        raise HistoryError(f"{path}: {error}; name another directory with {OPTION}=DIR") from error
    with suppress(OSError):
        if wal.stat().st_size:
            warn(f"{wal} cannot be read, so the newest samples are left out until the daemon has run again")
    return connection


def _check_readable(path: Path) -> None:
    """Raise what is wrong with the file itself: SQLite reports less."""
    try:
        with path.open("rb"):
            return
    except FileNotFoundError:
        raise HistoryError(
            f"{path}: there is no history here yet; start a daemon, or name its directory with {OPTION}=DIR"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        raise HistoryError(f"{path}: {os_error_text(error)}; name another directory with {OPTION}=DIR") from error


def _connect(path: Path, *, immutable: bool) -> sqlite3.Connection:
    connection = open_reader(path, immutable=immutable)
    try:  # SQLite opens the file at the first query
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        raise
    except sqlite3.DatabaseError as error:
        connection.close()
        if not is_damage(error):
            raise
        raise HistoryError(
            f"{path} is damaged ({error}); the daemon sets it aside at its next start, and copies what is left to a new one"
        ) from error
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    version = schema.check(connection, path, schema.MIGRATIONS)
    if version < len(schema.MIGRATIONS):
        raise HistoryError(
            f"{path}: written by an older trackside (schema {version}, this one reads {len(schema.MIGRATIONS)}); "
            "start the daemon once to migrate it"
        )
