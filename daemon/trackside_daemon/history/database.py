"""The history's file: opened for the one writer, and for those who read."""

from __future__ import annotations

import logging
import sqlite3
import sys
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from trackside_daemon.history import schema
from trackside_daemon.history.place import HistoryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FILE = "history.db"
CHECK_SECONDS = 1.0
"""For so long the file is looked through at the start; a large one is not looked through to its end."""

BUSY_SECONDS = 10.0
WAL_PAGES = 1000
PAGE_BYTES = 4096

log = logging.getLogger("trackside")


class Damaged(Exception):  # noqa: N818  it is what the file is
    """The file is no database any more, or a part of it makes no sense."""


def is_damage(error: BaseException) -> bool:
    """Whether an error says that the file is damaged, and not merely full or locked."""
    code = getattr(error, "sqlite_errorname", "")
    if not code:  # Python 3.10 tells by its words alone
        return isinstance(error, sqlite3.DatabaseError) and (
            "malformed" in str(error) or "not a database" in str(error)
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
        self._readers = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._generation = 0
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
        with self._turn if self._exclusive else nullcontext():
            connection = self.connection if self._exclusive else self._reader()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def set_aside(self) -> Path:
        """Keep a damaged file under a dated name, and begin a new one."""
        self._close_all()
        aside = _set_aside(self.path)
        self.connection = self._begin()
        return aside

    def close(self) -> None:
        """Close the file; the WAL goes into it."""
        self._close_all()

    def _begin(self) -> sqlite3.Connection:
        try:
            return self._prepared()
        except (Damaged, sqlite3.DatabaseError) as error:
            if not isinstance(error, Damaged) and not is_damage(error):
                raise HistoryError(
                    f"{self.path}: {error}; free it, or name another directory with --storage.path"
                ) from error
            aside = _set_aside(self.path)
            log.error("%s is damaged (%s): it is kept as %s, and a new history begins", self.path, error, aside.name)  # noqa: TRY400  a file's fault, no traceback
            return self._prepared()

    def _prepared(self) -> sqlite3.Connection:
        new = not self.path.exists()
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
        self._open.append(connection)
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
        unfinished = copy.with_name(copy.name + ".unfinished")
        unfinished.unlink(missing_ok=True)
        log.info("%s has schema %d and becomes %d; a copy is kept as %s", self.path, found, len(self._migrations), copy)
        with sqlite3.connect(unfinished) as target:
            connection.backup(target, pages=4096)
        target.close()
        unfinished.rename(copy)

    def _reader(self) -> sqlite3.Connection:
        """This thread's connection; a new one after the file was set aside."""
        known = getattr(self._readers, "connection", None)
        if known is None or self._readers.generation != self._generation:
            known = open_reader(self.path)
            self._readers.connection, self._readers.generation = known, self._generation
            self._open.append(known)
        return known

    def _close_all(self) -> None:
        self._generation += 1
        for connection in reversed(self._open):  # the writer's last, so that it empties the WAL
            with suppress(sqlite3.Error):
                connection.close()
        self._open = []


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
        Damaged: It is.
    """
    until = time.monotonic() + CHECK_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > until, 10_000)
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise Damaged(found)
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
