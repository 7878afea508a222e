"""Open another tool's SQLite file for reading, with limits, since the file may be hostile."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from trackside_daemon.bridges.foreign_run import ForeignRunError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
        connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", timeout=BUSY_SECONDS, uri=True)
        try:
            # Views and triggers of the file call no functions of ours or of SQLite's that have effects.
            connection.execute("PRAGMA trusted_schema = OFF")
            if sys.version_info >= (3, 11):
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ForeignRunError(f"{path}: cannot be read: {error}") from None


def tables(path: Path) -> set[str]:
    """Return the names of the tables; none if the file cannot be read."""
    try:
        with reading(path) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except ForeignRunError:
        return set()
