"""Open the history's file, for the one writer and for readers.

The file is longer than others, since all states of the one file are here: open, open for one connection, closed because the disk
does not take it, damaged and set aside.
"""

import errno
import logging
import os
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from math import inf
from pathlib import Path
from urllib.parse import quote

from trackside.os_errors import os_error_text
from trackside_daemon.history import schema
from trackside_daemon.history.directory import (
    OPTION,
    HistoryError,
    SalvagingError,
    UnavailableError,
    create_private,
    kind_of,
    lock_history,
    named_directory,
    network_file_system,
)
from trackside_daemon.history.salvage import set_aside
from trackside_daemon.history.salvage.pages import PAGE_BYTES, read_wal
from trackside_daemon.history.salvage.salvage import MODULE, Salvaged, SalvageRequest, salvage
from trackside_daemon.linux.file_lock import FileLock
from trackside_daemon.linux.process_limits import WORKER_BYTES, worker_bytes
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.linux.worker_process import WorkerFailed
from trackside_daemon.model.text import byte_size

FILE = "history.db"

# Largest size of a file that is checked for damage before it is used, and of one that is copied with the pages that its writer
# has in memory. The check of a larger one follows while it is used.
SMALL_BYTES = 16 * 1024**2

WAL_CHECK_BYTES = 64 * 1024**2  # largest size of a WAL that is checked: half a second

AGAIN_SECONDS = 3600.0  # how long after salvaging a row that is damaged again costs all rows: it was copied

QUICK_SECONDS = 3.0  # how long a daemon waits for a new file before it serves without a history
# Longest time of salvaging, while nothing can be stored: four times that of 10 GiB on a busy machine.
SALVAGE_SECONDS = 1800.0

BUSY_SECONDS = 10.0
WAL_PAGES = 1000  # SQLite's default

log = logging.getLogger("trackside")


class DamagedError(Exception):
    """The file is no SQLite database, or a part of it is malformed."""


class ClosedError(sqlite3.OperationalError):
    """There is no history at the moment; the message states why."""


def is_damage(error: BaseException) -> bool:
    """Return whether an error means that the file is damaged, and not merely full or locked."""
    code = getattr(error, "sqlite_errorname", "")
    if not code:  # Python 3.10, and the sqlite3 module's error about text that is not UTF-8, have a message only
        return isinstance(error, sqlite3.DatabaseError) and any(
            words in str(error) for words in ("malformed", "not a database", "Could not decode")
        )
    return code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_CORRUPTFS"))


class Database:
    """The file in a directory.

    Args:
        directory: The directory of the file, which is created if it is missing.
        exclusive: Open the file without memory shared between processes, which a network file system does not have.
            Readers then share the connection of the writer, one at a time.
        synchronous: ``normal`` or ``full``: whether a commit waits for the disk.
        migrations: The steps that create the tables.
        serves: For a daemon: lock the directory; where the disk does not take the file at the moment, or it takes long to salvage
            a damaged one, stay closed until `reopen`; check a large file for damage while it is used.

    Attributes:
        path: The file.
        damage: What is damaged; empty if nothing is known. `reopen` sets the file aside then.
        problem: Why there is no history at the moment; empty while the file is open.
        found_damage: Called when *damage* is found, in any thread.

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
        serves: bool = False,
    ) -> None:
        if sys.byteorder != "little":
            raise HistoryError("the history is written on little-endian machines only")
        self.path = directory / FILE
        self.damage = ""
        self.problem = ""
        self.found_damage: Callable[[], None] = lambda: None
        self._always_exclusive = exclusive
        self._exclusive = exclusive
        self._synchronous = synchronous
        self._migrations = migrations
        self._serves = serves
        self._lock = threading.RLock()
        self._readers: list[sqlite3.Connection] = []
        self._generation = 0
        self._files: list[os.stat_result] = []
        self._connection: sqlite3.Connection | None = None
        self._directory_lock: FileLock | None = None
        self._copier = CallWorker(MODULE, Salvaged, memory=worker_bytes(WORKER_BYTES), name="its process")
        self._copied_at = -inf
        self._has_bad_rows = False
        self._check = CallWorker(MODULE, str, memory=worker_bytes(WORKER_BYTES), name="its process")
        self._image = directory / f"{FILE}{set_aside.IMAGE}"
        with suppress(OSError):  # of a daemon that was killed while it set a file aside
            self._image.unlink()
        try:
            self.reopen(QUICK_SECONDS if serves else inf)
        except UnavailableError:
            if not serves:
                self.close()
                raise
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> sqlite3.Connection:
        """The writer's.

        Raises:
            ClosedError: There is no history at the moment.
        """
        if self._connection is None:
            raise ClosedError(self.problem or "the history is closed")
        return self._connection

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction of the writer; an error rolls it back."""
        with self._lock if self._exclusive else nullcontext():
            connection = self.connection
            # IMMEDIATE gets the write lock now; a deferred transaction could fail to get it in the middle.
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # the error may have ended it already
                    connection.execute("ROLLBACK")
                raise

    @property
    def is_exclusive(self) -> bool:
        """True if there is one connection, so that nothing is written during `reading`."""
        return self._exclusive

    @property
    def is_open(self) -> bool:
        """True unless there is no history at the moment."""
        return self._connection is not None

    @property
    def is_makeshift(self) -> bool:
        """True if the file is open exclusively only because the disk was full."""
        return self.is_open and self._exclusive and not self._always_exclusive

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a snapshot of the file, in any thread; damage that a query meets becomes known to the writer.

        Raises:
            ClosedError: There is no history at the moment.
        """
        generation = self._generation
        try:
            # Keep it short: the WAL cannot shrink meanwhile.
            with self._lock if self._exclusive else nullcontext(), self._reader() as connection:
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    if connection.in_transaction:  # an error may have ended it already
                        connection.execute("ROLLBACK")
        except sqlite3.DatabaseError as error:
            if is_damage(error) and generation == self._generation:  # else the file was replaced meanwhile
                self.report(str(error))
            raise

    def report(self, damage: str, *, rows: bool = False) -> None:
        """Accept that the file is damaged, or only some of its *rows*: `reopen` sets it aside."""
        if not self.damage:
            self._has_bad_rows = rows
            self.damage = damage
            self.found_damage()

    def poll(self) -> None:
        """Ask whether the check has found damage."""
        try:
            damage = self._check.poll()
        except WorkerFailed as error:
            damage = ""
            log.warning("%s is not checked for damage: %s", self.path, error)
        if damage is not None:
            self._check.end()
        if damage:
            self.report(damage)

    def is_gone(self) -> bool:
        """Return whether the file or its WAL was deleted or replaced while it is open here."""
        try:
            return not all(map(os.path.samestat, map(os.stat, self._open_files()), self._files))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # the file system does not answer; the next write fails too
            return False

    def reopen(self, seconds: float = inf) -> None:
        """Open the file again, after a fault of it or of the disk. A damaged one is set aside, and salvaged into a new one.

        Args:
            seconds: How long to wait for the new one.

        Raises:
            HistoryError: The file cannot be opened.
            UnavailableError: It may be opened later, without a change of the configuration.
        """
        try:
            with self._lock:  # readers wait
                self._reopen(seconds)
        except HistoryError as error:
            self.problem = str(error)
            raise
        except (OSError, DamagedError, sqlite3.Error) as error:
            kind = kind_of(error) if isinstance(error, OSError) else UnavailableError
            self.problem = f"{self.path}: {os_error_text(error)}"
            raise kind(f"{self.problem}; free it, or name another directory with {OPTION}") from error
        self.problem = ""

    def _reopen(self, seconds: float) -> None:
        if self.damage:
            self._keep_image()
        self._disconnect()
        if self._serves:
            self._claim()
        if self.damage:
            self._set_aside(self.damage)
        self._copy_rows_to_new_file(seconds)
        try:
            self._open()
        except (DamagedError, sqlite3.DatabaseError) as error:
            if not isinstance(error, DamagedError) and not is_damage(error):
                raise
            self._set_aside(str(error))
            self._copy_rows_to_new_file(seconds)
            self._open()

    def close(self) -> None:
        """Close the file, and write the WAL into it; release the lock of the directory."""
        self._disconnect()
        if self.damage:  # the next one must not use it
            with suppress(HistoryError):
                self._set_aside(self.damage)
        self._copier.end()
        if self._directory_lock is not None:
            self._directory_lock.close()
            self._directory_lock = None

    def _disconnect(self) -> None:
        with self._lock:
            self._generation += 1
            while self._readers:  # before the writer, whose close empties the WAL; those in use close themselves
                self._readers.pop().close()
            if self._connection is not None:
                with suppress(sqlite3.Error):
                    self._connection.close()
            self._connection = None
            self._exclusive = self._always_exclusive
            self._check.end()

    def _claim(self) -> None:
        """Make the directory if it was deleted, and lock it if this process does not."""
        directory = named_directory(self.path.parent, OPTION)
        if self._directory_lock is None or not self._directory_lock.is_current():
            fresh = lock_history(directory)
            if self._directory_lock is not None:
                self._directory_lock.close()
            self._directory_lock = fresh
            self._always_exclusive |= bool(network_file_system(directory)) or not fresh.supported
            self._exclusive = self._always_exclusive

    def _open_files(self) -> list[Path]:
        # A file that is open exclusively has a WAL from the first write on.
        return [self.path, *([] if self._exclusive else [self.path.with_name(f"{FILE}-wal")])]

    def _open(self) -> None:
        new = not self.path.exists()
        try:
            connection = self._prepare()
        except sqlite3.OperationalError as error:
            # A full disk has no room for the memory that processes share. Without it, what is there can be read.
            if new or self._exclusive or is_damage(error) or "locked" in str(error):
                raise
            self._exclusive = True
            connection = self._prepare()
        with self._lock:
            self._connection = connection
            self._files = [path.stat() for path in self._open_files()]
        if self._serves and not self._exclusive and self.path.stat().st_size > SMALL_BYTES:
            try:
                self._check.begin(SalvageRequest(str(self.path)))
            except WorkerFailed as error:
                log.warning("%s is not checked for damage: %s", self.path, error)

    def _prepare(self) -> sqlite3.Connection:
        if self.path.is_symlink():
            raise HistoryError(f"{self.path} is a link; name the directory of its target with {OPTION}")
        new = not self.path.exists()
        if new:
            create_private(self.path)
        elif not self.path.is_file():
            raise HistoryError(f"{self.path} is no file; name another directory with {OPTION}")
        elif not os.access(self.path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES).lower())
        wal = self.path.with_name(self.path.name + "-wal")
        unread = wal.stat().st_size if not new and wal.exists() else 0
        # SQLite would take this for a new database, and delete the WAL.
        if unread and not self.path.stat().st_size:
            raise DamagedError("truncated to nothing, next to a WAL")
        # SQLite would leave out what follows the damage.
        if 0 < unread <= WAL_CHECK_BYTES and (damage := read_wal(wal).damage):
            raise DamagedError(damage)
        connection = self._connect()
        try:
            version = 0 if new else schema.check(connection, self.path, self._migrations)
            if version and self.path.stat().st_size <= SMALL_BYTES:
                _check_damage(connection)
            if 0 < version < len(self._migrations):
                self._back_up(connection, version)
            schema.migrate(connection, self._migrations)
        except BaseException:
            connection.close()
            raise
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
            # These take effect only before the first table; later, SQLite would write the file.
            if not self.path.stat().st_size:
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
            raise UnavailableError(
                f"{self.path} was written by an older trackside and is copied before its migration: the copy needs "
                f"{byte_size(pages * PAGE_BYTES)}, and {byte_size(free)} are free; make room, or name another "
                "directory with --storage.path"
            )
        # Renamed when it is complete, so that a copy with the final name is always usable.
        unfinished = copy.with_name(copy.name + ".unfinished")
        unfinished.unlink(missing_ok=True)
        log.info("%s: migrating schema %d to %d; a copy is kept as %s", self.path, version, len(self._migrations), copy)
        create_private(unfinished)
        try:
            with closing(sqlite3.connect(unfinished)) as target:
                connection.backup(target, pages=4096)
            unfinished.rename(copy)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def _keep_image(self) -> None:
        """Keep a copy of a small damaged file with the pages that the writer has in memory, which may be sound there."""
        if self._connection is None:
            return
        with suppress(OSError, sqlite3.Error):
            self._image.unlink(missing_ok=True)
            if self._connection.execute("PRAGMA page_count").fetchone()[0] * PAGE_BYTES <= SMALL_BYTES:
                create_private(self._image)
                with closing(sqlite3.connect(self._image)) as target:
                    self._connection.backup(target)

    def _set_aside(self, damage: str) -> None:
        aside = set_aside.name_aside(self.path)
        try:
            if self._image.exists():
                self._image.rename(aside.with_name(f"{aside.name}{set_aside.IMAGE}"))
            set_aside.set_aside(self.path, aside)
        except OSError as error:
            text = f"{self.path} is damaged ({damage}), and cannot be set aside: {os_error_text(error)}"
            raise UnavailableError(text) from error
        log.error("%s is damaged (%s): it is kept as %s", self.path, damage, aside.name)
        self.damage = ""

    def _copy_rows_to_new_file(self, seconds: float) -> None:
        """Copy what is left of a file that was set aside to a new one.

        Raises:
            UnavailableError: It takes longer than so many seconds.
        """
        pending = set_aside.unfinished(self.path)
        if pending is None:
            return
        again = time.monotonic() - self._copied_at < AGAIN_SECONDS
        error = "its rows are damaged again" if self._has_bad_rows and again else pending.room()
        try:
            salvaged = None if error else self._await_copy(pending, seconds)
        except (OSError, ValueError, sqlite3.Error, WorkerFailed) as failure:
            self._copier.end()
            salvaged, error = None, str(failure)
        if salvaged is None:
            log.warning("a new history begins, without the rows of %s: %s", pending.damaged.name, error)
        else:
            log.warning("a new history begins: %s", salvaged.text())
            pending.target.rename(self.path)
        pending.end()
        self._copied_at = time.monotonic()

    def _await_copy(self, pending: set_aside.Salvaging, seconds: float) -> Salvaged:
        if not self._serves:
            return salvage(pending.source, pending.target, time.monotonic() + SALVAGE_SECONDS)
        if not self._copier.busy:
            os.truncate(pending.target, 0)  # of a daemon that was killed
            self._copier.begin(SalvageRequest(str(pending.source), str(pending.target), SALVAGE_SECONDS))
        salvaged = self._copier.poll(seconds)
        if salvaged is None:
            raise SalvagingError(f"{self.path}: the rows of the damaged history are being copied to a new one")
        self._copier.end()
        return salvaged

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """Borrow a connection that no other thread uses meanwhile: the writer's own if the file is open exclusively."""
        if self._exclusive:
            yield self.connection
            return
        with self._lock:  # not while the file is replaced
            if self._connection is None:
                raise ClosedError(self.problem or "the history is closed")
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
    """Check the file for damage.

    Raises:
        DamagedError: The file is damaged.
    """
    result = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if result != "ok":
        raise DamagedError(" ".join(str(result).split()))
