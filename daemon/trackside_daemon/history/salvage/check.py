"""Look for damage of a file that is in use, in transactions so short that its WAL can shrink between them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from trackside_daemon.history.database import is_damage, open_reader

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 256  # of one transaction


def find_damage(path: Path) -> str:
    """Return what is damaged in a file, in one line; empty if nothing is.

    Raises:
        sqlite3.Error: The file cannot be read.
    """
    with closing(open_reader(path)) as connection:
        try:
            query = "SELECT tbl_name, count(*), max(sql LIKE '%WITHOUT ROWID') FROM sqlite_master GROUP BY tbl_name"
            for table, trees, without_rowid in connection.execute(query).fetchall():
                if trees == 1 and not without_rowid:
                    _read(connection, table)
                elif (found := connection.execute(f"PRAGMA quick_check('{table}')").fetchone()[0]) != "ok":
                    return " ".join(str(found).split())
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            return str(error)
    return ""


def _read(connection: sqlite3.Connection, table: str) -> None:
    """Read all rows of a table without indexes, which may be most of the file: `quick_check` would be one long transaction."""
    last = -(2**63)
    while rows := connection.execute(
        f"SELECT rowid, * FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT {ROWS}",  # noqa: S608
        (last,),
    ).fetchall():
        last = rows[-1][0]
