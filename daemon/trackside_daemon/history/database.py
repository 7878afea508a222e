"""Open the history's file, for the one writer and for readers."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import sys
import threading
import time
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from trackside_daemon.history import schema
from trackside_daemon.history.directory import HistoryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FILE = "history.db"
CHECK_SECONDS = 1.0  # longest time of the check for damage at the start; a large file is not checked to its end

BUSY_SECONDS = 10.0
WAL_PAGES = 1000  # SQLite's default
PAGE_BYTES = 4096  # SQLite's default

log = logging.getLogger("trackside")


class DamagedError(Exception):
    """The file is no SQLite database, or a part of it is malformed."""


def is_damage(error: BaseException) -> bool:
    """Return whether an error means that the file is damaged, and not merely full or locked."""
    code = getattr(error, "sqlite_errorname", "")
    if not code:  # Python 3.10, and the sqlite3 module's error about text that is not UTF-8, have a message only
        return isinstance(error, sqlite3.DatabaseError) and any(
            words in str(error) for words in ("malformed", "not a database", "Could not decode")
        )
    return code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


class Database:
    """The file in a directory.

    Args:
        directory: The directory of the file, which is created if it is missing.
        exclusive: Open the file without memory shared between processes, which a network file system does not have.
            Readers then share the connection of the writer, one at a time.
        synchronous: ``normal`` or ``full``: whether a commit waits for the disk.
        migrations: The steps that create the tables.

    Attributes:
        path: The file.
        connection: The writer's.

    Raises:
        HistoryError: The file cannot be opened, or a newer trackside wrote it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        exclusive: bool = False,
        synchronous: str = "normal",
        migrations: Sequence[tuple[str, Sequence[str]]] = schema.MIGRATIONS,
    ) -> None:
        if sys.byteorder != "little":
            raise HistoryError("the history is written on little-endian machines only")
        self.path = directory / FILE
        self._exclusive = exclusive
        self._synchronous = synchronous
        self._migrations = migrations
        self._lock = threading.RLock()
        self._readers: list[sqlite3.Connection] = []
        self._generation = 0
        self._file = 0, 0
        self.connection = self._open()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction of the writer; an error rolls it back."""
        with self._lock if self._exclusive else nullcontext():
            # IMMEDIATE gets the write lock now; a deferred transaction could fail to get it in the middle.
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # the error may have ended it already
                    self.connection.execute("ROLLBACK")
                raise

    @property
    def is_exclusive(self) -> bool:
        """True if there is one connection, so that nothing is written during `reading`."""
        return self._exclusive

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a snapshot of the file, in any thread."""
        # Keep it short: the WAL cannot shrink meanwhile.
        with self._lock if self._exclusive else nullcontext(), self._reader() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:  # an error may have ended it already
                    connection.execute("ROLLBACK")

    def is_gone(self) -> bool:
        """Return whether the file was deleted or replaced while it is open here."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return True
        except OSError:  # the file system does not answer; the next write fails too
            return False
        return (status.st_dev, status.st_ino) != self._file

    def set_aside(self) -> Path:
        """Rename a damaged file to a dated name; then call `open_new`."""
        with self._lock:
            self.close()
            return _set_aside(self.path)

    def open_new(self) -> None:
        """Open the file again, or a new one.

        Raises:
            HistoryError: The file cannot be opened.
        """
        with self._lock:
            self.close()  # also readers that opened the old file since it was closed
            self.connection = self._open()

    def close(self) -> None:
        """Close the file, and write the WAL into it."""
        with self._lock:
            self._generation += 1
            while self._readers:  # before the writer, whose close empties the WAL; those in use close themselves
                self._readers.pop().close()
            with suppress(sqlite3.Error):
                self.connection.close()

    def _open(self) -> sqlite3.Connection:
        try:
            return self._prepare()
        except (DamagedError, OSError, sqlite3.DatabaseError) as error:
            if not isinstance(error, DamagedError) and not is_damage(error):
                raise HistoryError(
                    f"{self.path}: {getattr(error, 'strerror', None) or error}; free it, or name another directory with "
                    "--storage.path"
                ) from error
            aside = _set_aside(self.path)
            log.error("%s is damaged (%s): it is kept as %s, and a new history begins", self.path, error, aside.name)  # noqa: TRY400  a file's fault, no traceback
            return self._prepare()

    def _prepare(self) -> sqlite3.Connection:
        if self.path.is_symlink():
            raise HistoryError(f"{self.path} is a link; name the directory of its target with --storage.path")
        new = not self.path.exists()
        if new:
            _create(self.path)
        wal = self.path.with_name(self.path.name + "-wal")
        # SQLite would take this for a new database, and delete the WAL.
        if not new and not self.path.stat().st_size and wal.exists() and wal.stat().st_size:
            raise DamagedError("truncated to nothing, next to a WAL")
        connection = self._connect()
        try:
            version = 0 if new else schema.check(connection, self.path, self._migrations)
            if version:
                _check_damage(connection)
            if 0 < version < len(self._migrations):
                self._back_up(connection, version)
            schema.migrate(connection, self._migrations)
        except BaseException:
            connection.close()
            raise
        status = self.path.stat()
        self._file = status.st_dev, status.st_ino
        return connection

    def _connect(self) -> sqlite3.Connection:
        # No isolation level, so that this class begins and ends the transactions. The writer's thread uses the connection,
        # and the thread that closes the history.
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self.path.chmod(0o600)
            if self._exclusive:
                # The WAL index is then in the memory of this process, and not in a -shm file that processes map, which
                # network file systems cannot do.
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            # Page size and auto-vacuum take effect only before the first table is created.
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
            # Without a limit, the WAL keeps the size that it had when a reader held it up.
            connection.execute(f"PRAGMA journal_size_limit = {WAL_PAGES * PAGE_BYTES}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _back_up(self, connection: sqlite3.Connection, version: int) -> None:
        """Copy a file of an older schema before it is migrated."""
        copy = self.path.with_name(f"{self.path.name}.schema-{version}")
        if copy.exists():
            return
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        free = shutil.disk_usage(copy.parent).free
        if free < pages * PAGE_BYTES:
            raise HistoryError(
                f"{self.path} was written by an older trackside and is copied before its migration: the copy needs "
                f"{pages * PAGE_BYTES / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free; make room, or name another "
                "directory with --storage.path"
            )
        # Renamed when it is complete, so that a copy with the final name is always usable.
        unfinished = copy.with_name(copy.name + ".unfinished")
        unfinished.unlink(missing_ok=True)
        log.info("%s: migrating schema %d to %d; a copy is kept as %s", self.path, version, len(self._migrations), copy)
        _create(unfinished)
        try:
            with closing(sqlite3.connect(unfinished)) as target:
                connection.backup(target, pages=4096)
            unfinished.rename(copy)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """Borrow a connection that no other thread uses meanwhile: the writer's own if the file is open exclusively."""
        if self._exclusive:
            yield self.connection
            return
        with self._lock:  # not while the file is replaced
            generation = self._generation  # `close` raises it: a connection from before is to another file
            connection = self._readers.pop() if self._readers else _open_with_wal(self.path)
        try:
            yield connection
        finally:
            with self._lock:
                if generation == self._generation:
                    self._readers.append(connection)
                else:  # the file was set aside or closed
                    connection.close()


def _open_with_wal(path: Path) -> sqlite3.Connection:
    """Return a read-only connection whose WAL is open."""
    connection = open_reader(path)
    try:
        # The first read opens the WAL by its name. After the file was replaced, that would be the WAL of the new file.
        connection.execute("PRAGMA schema_version").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _create(path: Path) -> None:
    # O_EXCL, so that the file belongs to this user alone from the first moment. Only a new file may be opened and closed
    # here: closing any descriptor of a file that SQLite has open drops SQLite's locks on it.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))


def open_reader(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Return a read-only connection.

    Args:
        path: The file.
        immutable: No process writes the file, and this one may not write next to it: the WAL is not read.
    """
    mode = "mode=ro&immutable=1" if immutable else "mode=ro"
    return sqlite3.connect(
        f"file:{quote(str(path))}?{mode}", timeout=BUSY_SECONDS, uri=True, isolation_level=None, check_same_thread=False
    )


def _check_damage(connection: sqlite3.Connection) -> None:
    """Check the file for damage, for `CHECK_SECONDS` at most.

    Raises:
        DamagedError: The file is damaged.
    """
    # A true result of the handler interrupts the query; it is called every 10,000 instructions of the virtual machine.
    until = time.monotonic() + CHECK_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > until, 10_000)
    try:
        result = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if result != "ok":
            raise DamagedError(" ".join(str(result).split()))
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
    finally:
        connection.set_progress_handler(None, 0)


def _set_aside(path: Path) -> Path:
    """Rename the file, its WAL and its shared memory to a dated name that is free."""
    stamp = time.strftime("%Y-%m-%dT%H%M%S")
    names = (f"{path.name}.damaged-{stamp}{more}" for more in ("", *(f"-{number}" for number in range(2, 1000))))
    aside = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    # The file itself comes last: a new one must never be next to the old WAL, also after a crash in between.
    for suffix in ("-wal", "-shm", ""):
        file = Path(f"{path}{suffix}")
        if file.exists():
            file.rename(f"{aside}{suffix}")
    return aside
