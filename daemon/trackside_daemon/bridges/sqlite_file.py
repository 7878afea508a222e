"""Open another tool's SQLite file for reading, with limits, since the file may be hostile."""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trackside_daemon.bridges.foreign_run import ForeignRunError
from trackside_daemon.history.files.left_out import LeftOut
from trackside_daemon.linux.foreign_file import foreign_status

MAGIC = b"SQLite format 3\0"
VALUE_BYTES = 16 * 1024 * 1024
BUSY_SECONDS = 10.0


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file.

    Raises:
        ForeignRunError: It is damaged or locked, or has no such tables.
    """
    try:
        status = foreign_status(path)  # another descriptor of the file would release SQLite's locks when it is closed
        connection = sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode=ro", timeout=BUSY_SECONDS, uri=True)
        try:
            if not os.path.samestat(status, path.lstat()):
                raise ForeignRunError(f"{path}: cannot be read: it was replaced meanwhile")
            # Views and triggers of the file call no functions of ours or of SQLite's that have effects.
            connection.execute("PRAGMA trusted_schema = OFF")
            if sys.version_info >= (3, 11):
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            yield connection
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the text of SQLite's error may hold bytes of the file
        raise ForeignRunError(f"{path}: cannot be read: {error}") from None


def tables(path: Path) -> set[str]:
    """Return the names of the tables; none if the file cannot be read."""
    try:
        with reading(path) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except ForeignRunError:
        return set()


def rows(path: Path, query: str, arguments: tuple[object, ...], left_out: LeftOut) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query up to the first that is damaged.

    Raises:
        ForeignRunError: The file cannot be opened.
    """
    with reading(path) as connection:
        try:
            yield from connection.execute(query, arguments)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # it is locked, or has no such table
                raise
            left_out.add("damaged part(s) of the database, with all that follows", f"{arguments[-1]} ({error})")
