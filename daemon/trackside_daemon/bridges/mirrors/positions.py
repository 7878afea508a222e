"""Positions of a mirror: the number of samples of each series that its target has, in a small SQLite file."""

import json
import os
import sqlite3
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trackside_daemon.bridges.mirrors.target import State

_TABLES = """
    CREATE TABLE IF NOT EXISTS series (
        run TEXT, attempt INTEGER, rank INTEGER, key TEXT, sent INTEGER NOT NULL, PRIMARY KEY (run, attempt, rank, key)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS run (run TEXT PRIMARY KEY, state TEXT NOT NULL, ended TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS mirror (since REAL NOT NULL);
"""


class RankKey(NamedTuple):
    """A rank of an attempt of a run."""

    run: str
    attempt: int
    rank: int


class Positions:
    """The positions of one mirror.

    Args:
        path: The file, which is created if it is missing; a damaged one is replaced.

    Attributes:
        since: Unix time of the mirror's first start: runs that ended before are not mirrored.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._connection = _open(path)
        except sqlite3.OperationalError:  # locked by a worker that hangs, for example: the file is as it should be
            raise
        except sqlite3.DatabaseError:
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._connection = _open(path)
        weakref.finalize(self, self._connection.close)  # Python 3.13 warns of one that is collected open
        with self._connection:
            row = self._connection.execute("SELECT since FROM mirror").fetchone()
            if row is None:
                self._connection.execute("INSERT INTO mirror VALUES (?)", (time.time(),))
        (self.since,) = self._connection.execute("SELECT since FROM mirror").fetchone()

    def sent(self, place: RankKey) -> dict[str, int]:
        """Return the number of samples by key that the target has of a rank."""
        query = "SELECT key, sent FROM series WHERE run = ? AND attempt = ? AND rank = ?"
        return dict(self._connection.execute(query, place).fetchall())

    def state(self, run: str) -> State:
        """Return what the target has noted about a run."""
        row = self._connection.execute("SELECT state FROM run WHERE run = ?", (run,)).fetchone()
        return json.loads(row[0]) if row else {}

    def ended(self, run: str) -> str:
        """Return the end of a run that the target has recorded, as `finish` got it; empty if it has recorded none."""
        row = self._connection.execute("SELECT ended FROM run WHERE run = ?", (run,)).fetchone()
        return str(row[0]) if row else ""

    def advance(self, place: RankKey, sent: Mapping[str, int], state: State) -> None:
        """Store the positions of a rank and the state of its run together."""
        with self._connection:
            self._connection.executemany(
                "INSERT OR REPLACE INTO series VALUES (?, ?, ?, ?, ?)", [(*place, *pair) for pair in sent.items()]
            )
            self._put(place.run, state, "")

    def finish(self, run: str, state: State, ended: str) -> None:
        """Store that the target has recorded the end of a run."""
        with self._connection:
            self._put(run, state, ended)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _put(self, run: str, state: State, ended: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO run VALUES (?, ?, ?)", (run, json.dumps(state), ended))


def _open(path: Path) -> sqlite3.Connection:
    # SQLite gives -wal and -shm the mode of the file, which therefore has it before they are made.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    for ending in ("", "-wal", "-shm"):  # those of earlier versions could be read by others
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).chmod(0o600)
    connection = sqlite3.connect(path, check_same_thread=False)  # the thread that mirrors uses it
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_TABLES)
    except BaseException:
        connection.close()
        raise
    return connection
