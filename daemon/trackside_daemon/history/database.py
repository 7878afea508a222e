"""The history's file: opened for the one writer, and for those who read."""

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
CHECK_SECONDS = 1.0
"""For so long the file is looked through at the start; a large one is not looked through to its end."""

BUSY_SECONDS = 10.0
WAL_PAGES = 1000
PAGE_BYTES = 4096

log = logging.getLogger("trackside")


class DamagedError(Exception):
    """The file is no database any more, or a part of it makes no sense."""


def is_damage(error: BaseException) -> bool:
    """Whether an error says that the file is damaged, and not merely full or locked."""
    code = getattr(error, "sqlite_errorname", "")
    if not code:  # Python 3.10, and the sqlite3 module itself when a text is none, tell by their words alone
        return isinstance(error, sqlite3.DatabaseError) and any(
            words in str(error) for words in ("malformed", "not a database", "Could not decode")
        )
    return code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


class Database:
    """The file in a directory.

    Args:
        directory: Where it is, or is to be.
        exclusive: Open it once and for all, without memory shared between processes, which a network file system does
            not have: readers then take turns with the writer.
        synchronous: ``normal`` or ``full``: whether a commit waits for the disk.
        migrations: The steps that make the tables.

    Raises:
        HistoryError: It cannot be opened, or is newer than this program.
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
        self._turn = threading.RLock()
        self._readers: list[sqlite3.Connection] = []
        self._generation = 0
        self._file = 0, 0
        self.connection = self._begin()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the writer; an error rolls it back."""
        with self._turn if self._exclusive else nullcontext():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # the error may have ended it already
                    self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One moment's view of the file, for any thread; short, since the WAL cannot shrink meanwhile."""
        with self._turn if self._exclusive else nullcontext(), self._reader() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:  # an error may have ended it already
                    connection.execute("ROLLBACK")

    def is_gone(self) -> bool:
        """Whether the file was deleted, or another put in its place, while it is open here."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return True
        except OSError:  # its file system does not answer, of which writing will tell
            return False
        return (status.st_dev, status.st_ino) != self._file

    def set_aside(self) -> Path:
        """Keep a damaged file under a dated name; then `begin` a new one."""
        with self._turn:
            self.close()
            return _set_aside(self.path)

    def open_new(self) -> None:
        """Begin a new file.

        Raises:
            HistoryError: It cannot be.
        """
        with self._turn:
            self.connection = self._begin()

    def close(self) -> None:
        """Close the file; the WAL goes into it."""
        with self._turn:
            self._generation += 1
            while self._readers:  # the writer's last, so that it empties the WAL; those in use are closed after it
                self._readers.pop().close()
            with suppress(sqlite3.Error):
                self.connection.close()

    def _begin(self) -> sqlite3.Connection:
        try:
            return self._prepared()
        except (DamagedError, OSError, sqlite3.DatabaseError) as error:
            if not isinstance(error, DamagedError) and not is_damage(error):
                raise HistoryError(
                    f"{self.path}: {getattr(error, 'strerror', None) or error}; free it, or name another directory with "
                    "--storage.path"
                ) from error
            aside = _set_aside(self.path)
            log.error("%s is damaged (%s): it is kept as %s, and a new history begins", self.path, error, aside.name)  # noqa: TRY400  a file's fault, no traceback
            return self._prepared()

    def _prepared(self) -> sqlite3.Connection:
        if self.path.is_symlink():
            raise HistoryError(f"{self.path} is a link; name the directory that it leads to with --storage.path")
        new = not self.path.exists()
        if new:
            _create(self.path)
        wal = self.path.with_name(self.path.name + "-wal")
        if not new and not self.path.stat().st_size and wal.exists() and wal.stat().st_size:
            raise DamagedError("cut to nothing, with a WAL beside it")
        connection = self._connect()
        try:
            found = 0 if new else schema.check(connection, self.path, self._migrations)
            if found:
                _look_through(connection)
            if 0 < found < len(self._migrations):
                self._copy(connection, found)
            schema.migrate(connection, self._migrations)
        except BaseException:
            connection.close()
            raise
        status = self.path.stat()
        self._file = status.st_dev, status.st_ino
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self.path.chmod(0o600)
            if self._exclusive:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {WAL_PAGES * PAGE_BYTES}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _copy(self, connection: sqlite3.Connection, found: int) -> None:
        """Keep a copy of an older file before it is changed."""
        copy = self.path.with_name(f"{self.path.name}.schema-{found}")
        if copy.exists():
            return
        pages, free = connection.execute("PRAGMA page_count").fetchone()[0], shutil.disk_usage(copy.parent).free
        if free < pages * PAGE_BYTES:
            raise HistoryError(
                f"{self.path} is of an older trackside, and is copied before it is changed: that takes "
                f"{pages * PAGE_BYTES / 1e6:.0f} MB, of which {free / 1e6:.0f} MB are free; make room, or name another "
                "directory with --storage.path"
            )
        unfinished = copy.with_name(copy.name + ".unfinished")
        unfinished.unlink(missing_ok=True)
        log.info("%s has schema %d and becomes %d; a copy is kept as %s", self.path, found, len(self._migrations), copy)
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
        """A connection that nobody else has meanwhile: the writer's own where there can be one alone."""
        if self._exclusive:
            yield self.connection
            return
        generation = self._generation
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = open_reader(self.path)
        try:
            yield connection
        finally:
            with self._turn:
                if generation == self._generation:
                    self._readers.append(connection)
                else:  # the file was set aside or closed
                    connection.close()


def _create(path: Path) -> None:
    """Make an empty file, for this user alone from the first moment; `os.close` of one that SQLite has open lets go its locks."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))


def open_reader(path: Path, *, alone: bool = False) -> sqlite3.Connection:
    """A read-only connection.

    Args:
        path: The file.
        alone: Nobody writes it, and we may not write beside it either: its last state before the WAL is read.
    """
    mode = "mode=ro&immutable=1" if alone else "mode=ro"
    return sqlite3.connect(
        f"file:{quote(str(path))}?{mode}", BUSY_SECONDS, uri=True, isolation_level=None, check_same_thread=False
    )


def _look_through(connection: sqlite3.Connection) -> None:
    """Look for damage, for `CHECK_SECONDS` at most.

    Raises:
        DamagedError: It is.
    """
    until = time.monotonic() + CHECK_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > until, 10_000)
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise DamagedError(" ".join(str(found).split()))
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
    finally:
        connection.set_progress_handler(None, 0)


def _set_aside(path: Path) -> Path:
    """Rename the file, with what lies beside it, to a dated name that is free."""
    stamp = time.strftime("%Y-%m-%dT%H%M%S")
    names = (f"{path.name}.damaged-{stamp}{more}" for more in ("", *(f"-{number}" for number in range(2, 1000))))
    aside = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    for suffix in ("-wal", "-shm", ""):
        beside = Path(f"{path}{suffix}")
        if beside.exists():
            beside.rename(f"{aside}{suffix}")
    return aside
