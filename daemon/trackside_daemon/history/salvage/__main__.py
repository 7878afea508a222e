"""The process that looks for damage and salvages rows: ``python -m trackside_daemon.history.salvage``.

The daemon limits its memory. It looks for damage only while processors and disks are free, in transactions so
short that the WAL can shrink between them. It salvages at once, since nothing can be stored meanwhile.
"""

import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

from trackside_daemon.history.database import is_damage, open_reader
from trackside_daemon.history.salvage.salvage import Salvaged, SalvageRequest, salvage
from trackside_daemon.linux.worker_call import WorkLimits, serve

ROWS = 256  # of one transaction


def main() -> int:
    """Answer requests until the end of the input."""
    return serve(
        SalvageRequest,
        _answer,
        lambda request: WorkLimits(quick_seconds=request.seconds),
        (OSError, ValueError, sqlite3.Error),
    )


def _answer(request: SalvageRequest) -> str | Salvaged:
    if not request.target:
        return find_damage(Path(request.source))
    return salvage(Path(request.source), Path(request.target), time.monotonic() + request.seconds)


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


if __name__ == "__main__":
    sys.exit(main())
