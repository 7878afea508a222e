"""A directory or an object store, in which a file is complete or not there, also while others write to it."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from trackside.environment.identity import boot_id
from trackside_daemon.history.frames.optional_library import library
from trackside_daemon.http_client.errors import Retry, SendError, SettingError

UNFINISHED = "_unfinished"  # folder of files that are being written; readers skip names that begin with _
ABANDONED_SECONDS = 86_400.0  # a file that nobody has written to for so long has no writer, wherever that ran
YOUNG_SECONDS = 60.0  # a younger file may be about to be locked
SUFFIX = ".parquet"
MISSING = "is missing"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class FileError(Exception):
    """A file is missing or cannot be read; the text is the reason."""


class StoredFile(NamedTuple):
    """A file: its name below the place, and when it was written, in Unix seconds."""

    name: str
    written: float


class FileStore:
    """A place for files.

    Args:
        url: A directory, or an address such as ``s3://BUCKET/PREFIX``; see ``pyarrow.fs.FileSystem.from_uri``.

    Attributes:
        files: The file system, of ``pyarrow.fs``.
        path: The place in it.
        local: Whether it is a directory of this machine.

    Raises:
        SettingError: The address cannot be used, or a library is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            found = library("pyarrow.fs")
            self.local = urlsplit(url).scheme in {"", "file"}
            if self.local:
                path = Path(urlsplit(url).path if url.startswith("file:") else url).expanduser().absolute()
                self.files: Any = found.LocalFileSystem()
                self.path = str(path)
            else:
                self.files, path = found.FileSystem.from_uri(url)
                self.path = str(path).rstrip("/")
        except (ModuleNotFoundError, OSError, ValueError) as error:
            reason = re.sub(r"//[^/@]*@", "//…@", str(error))  # an address may have a key and its secret
            raise SettingError(f"the target of Parquet files: {reason}") from None

    def files_below(self, folder: str) -> list[StoredFile]:
        """Return the Parquet files below a folder, in the order of their names; none if it is missing.

        Raises:
            SendError: The store does not answer.
        """
        selector = library("pyarrow.fs").FileSelector(f"{self.path}/{folder}", allow_not_found=True, recursive=True)
        try:
            found = self.files.get_file_info(selector)
        except (FileNotFoundError, NotADirectoryError):  # the former although it may be missing: it is made meanwhile
            return []
        except OSError as error:
            raise failed(f"{self.path}/{folder}", error) from None
        skipped = len(self.path) + 1
        return sorted(
            StoredFile(one.path[skipped:], time.time() if one.mtime_ns is None else one.mtime_ns / 1e9)
            for one in found
            if one.is_file and one.path.endswith(SUFFIX)
        )

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        """Yield a file as a ``pyarrow.parquet.ParquetFile``, which compares checksums; its errors are `FileError`, too.

        Raises:
            FileError: It is missing or cannot be read.
            SendError: The store does not answer.
        """
        path = f"{self.path}/{name}"
        try:
            parquet = library("pyarrow.parquet").ParquetFile
            with parquet(path, filesystem=self.files, page_checksum_verification=True) as file:
                yield file
        except FileNotFoundError:
            raise FileError(MISSING) from None
        except (OSError, ValueError, library("pyarrow").ArrowException) as error:
            try:
                self.files.get_file_info(path)
            except OSError as silent:
                raise failed(path, silent) from None
            raise FileError(f"cannot be read: {_line(error)}") from None

    @contextmanager
    def unfinished(self, name: str) -> Iterator[Unfinished]:
        """Yield a new file, which is deleted at the end of the block if it is not published.

        Raises:
            SendError: The store accepts no file.
        """
        # No other process uses this name, so that nobody truncates or moves what somebody else writes.
        own = f"{UNFINISHED}/{_boot()}-{os.getpid()}-{secrets.token_hex(8)}+{name.rpartition('/')[2]}"
        lock = -1
        try:
            if self.local:
                with self.folder(own, make=True) as (folder, file):
                    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
        except OSError as error:
            raise failed(f"{self.path}/{own}", error) from None
        try:
            if self.local:
                with suppress(OSError):  # a file system without locks: the file's age decides
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # shows others that the writer lives
            yield Unfinished(self, own, name, lock)
        finally:
            self.delete(own)
            if self.local:
                os.close(lock)

    def read_back(self, name: str, columns: Iterable[str] = (), *, deep: bool) -> int:
        """Read the footer of a file, and return the number of its rows.

        Args:
            name: Its name.
            columns: Columns that it must have.
            deep: Read everything else, too, and compare checksums.

        Raises:
            FileError: It is missing, cannot be read, or has not these columns.
            SendError: The store does not answer.
        """
        with self.open(name) as file:
            for lacking in [column for column in columns if column not in file.schema_arrow.names]:
                raise FileError(f"has no column {lacking}")
            for group in range(file.num_row_groups if deep else 0):
                file.read_row_group(group, use_threads=False)  # with threads it takes 20 MiB more
            return int(file.metadata.num_rows)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there and may be deleted."""
        with suppress(OSError):
            if not self.local:
                self.files.delete_file(f"{self.path}/{name}")
                return
            with self.folder(name) as (folder, file):
                os.unlink(file, dir_fd=folder)

    def prepare(self, name: str) -> None:
        """Create the folders of a file, on a disk.

        Raises:
            SendError: One cannot be created; other files may have others.
        """
        try:
            if self.local:
                with self.folder(name, make=True):
                    pass
        except OSError as error:
            raise failed(f"{self.path}/{name}", error, "later") from None

    @contextmanager
    def folder(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the folder of a file, on a disk, and the file's name in it.

        No part below the place may be a link, through which others who write there would have files elsewhere written or deleted.

        Raises:
            OSError: The folder cannot be opened or, with *make*, created.
        """
        *folders, file = name.split("/")
        if make:
            Path(self.path).mkdir(parents=True, exist_ok=True)
        opened = [os.open(self.path, _FOLDER)]
        try:
            for folder in folders:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=opened[-1])
                opened.append(os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=opened[-1]))
            yield opened[-1], file
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def abandoned(self) -> list[str]:
        """Return the names of the unfinished files whose writers have ended for sure.

        Raises:
            SendError: The store does not answer.
        """
        now, here = time.time(), f"{UNFINISHED}/{_boot()}-"
        # Locks may hold on one machine only: for files of others, and of older versions, the age counts, too.
        return [
            one.name
            for one in self.files_below(UNFINISHED)
            if now - one.written > (YOUNG_SECONDS if self.local and one.name.startswith(here) else ABANDONED_SECONDS)
            and not (self.local and _is_locked(Path(self.path, one.name)))
        ]


class Unfinished(NamedTuple):
    """A file that no reader finds until it is published."""

    store: FileStore
    own: str  # its name while it is written
    name: str  # its final name
    lock: int  # a descriptor of it, which has the lock; -1 in an object store

    @property
    def path(self) -> str:
        """Path while it is written."""
        return f"{self.store.path}/{self.own}"

    @property
    def target(self) -> str:
        """Final path."""
        return f"{self.store.path}/{self.name}"

    def stream(self) -> Any:
        """Return a stream that writes it, and not what somebody has put in its place."""
        return self.store.files.open_output_stream(self.path if self.lock < 0 else f"/dev/fd/{self.lock}")

    def publish(self) -> None:
        """Give the file its final name, in the place of an earlier one, and write that to the disk.

        Raises:
            SendError: It cannot have this name.
        """
        try:
            if self.lock < 0:
                self.store.files.move(self.path, self.target)
                return
            os.fsync(self.lock)  # before the name: otherwise a power cut could leave it empty
            with self.store.folder(self.own) as (before, own), self.store.folder(self.name) as (folder, name):
                os.rename(own, name, src_dir_fd=before, dst_dir_fd=folder)
                os.fsync(folder)
        except OSError as error:
            raise failed(self.target, error, "soon" if self.lock < 0 else "later") from None


def failed(path: str, error: Exception, retry: Retry = "soon") -> SendError:
    """Return the failure of a file."""
    return SendError(f"{path}: {_line(error)}", retry)


def _is_locked(path: Path) -> bool:
    """Return whether a process writes an unfinished file, or nobody knows."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True  # it is gone, or of another user, who cleans up himself
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here: the age decides alone
        return path.stat().st_mtime > time.time() - ABANDONED_SECONDS
    finally:
        os.close(file)
    return False


def _boot() -> str:
    return boot_id(Path("/proc"))[:8] or "none"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
