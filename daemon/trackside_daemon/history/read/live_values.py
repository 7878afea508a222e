"""What is newest of a run: its state, and the last sample of every key, read bit by bit as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.history import rows
from trackside_daemon.history.schema import LOG_BITS

if TYPE_CHECKING:
    import sqlite3

ROWS = 512
"""At most so many rows of a stream's log are read at once, the newest."""

_PACKED = (
    "SELECT series.key, block.step, block.time, block.last FROM series JOIN block ON block.id = "
    "(SELECT max(id) FROM block WHERE id >= series.id << 24 AND id < series.id + 1 << 24) WHERE series.stream = ?"
)


def state(connection: sqlite3.Connection, uid: str) -> str | None:
    """A run's state; None when there is none."""
    found = connection.execute("SELECT state FROM run WHERE uid = ? AND NOT deleted", (uid,)).fetchone()
    return None if found is None else str(found[0])


def total_steps(connection: sqlite3.Connection, uid: str, attempt: int) -> int | None:
    """How many steps an attempt of a run is to make; None where nobody has said so."""
    found = connection.execute(
        "SELECT json_extract(attempt.about, '$.total_steps') FROM attempt JOIN run ON run.id = attempt.run "
        "WHERE run.uid = ? AND attempt.number = ?",
        (uid, attempt),
    ).fetchone()
    return None if found is None or found[0] is None else int(found[0])


class Sample(NamedTuple):
    """One; its time in Unix seconds, its value None for NaN in a block."""

    step: int
    time: float
    value: float | None


class LatestValues:
    """Of one run, its last attempt.

    Args:
        uid: The run's id.

    Attributes:
        values: By key, then by rank.
    """

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.values: dict[str, dict[int, Sample]] = {}
        self._attempt: int | None = None
        self._read: dict[int, int] = {}

    def refresh(self, connection: sqlite3.Connection) -> None:
        """Read what has come since.

        Raises:
            ValueError: A row of the log is damaged.
        """
        streams = connection.execute(
            "SELECT stream.attempt, stream.rank, stream.id FROM stream JOIN run ON run.id = stream.run "
            "WHERE run.uid = ? AND NOT run.deleted ORDER BY stream.attempt DESC, stream.rank",
            (self.uid,),
        ).fetchall()
        attempt = streams[0][0] if streams else None
        if attempt != self._attempt:
            self._attempt, self.values, self._read = attempt, {}, {}
        for number, rank, stream in streams:
            if number == attempt:
                self._follow(connection, rank, stream)

    def step(self) -> int | None:
        """The highest step."""
        return max((one.step for ranks in self.values.values() for one in ranks.values()), default=None)

    def _follow(self, connection: sqlite3.Connection, rank: int, stream: int) -> None:
        base = stream << LOG_BITS
        if stream not in self._read:
            self._read[stream] = 0
            for key, step, time, last in connection.execute(_PACKED, (stream,)):
                self.values.setdefault(key, {})[rank] = Sample(step, time / 1e6, last)
        found = connection.execute(
            "SELECT id, shift, data FROM log WHERE id > ? AND id < ? ORDER BY id DESC LIMIT ?",
            (base + self._read[stream], base + (1 << LOG_BITS), ROWS),
        ).fetchall()
        for id_, shift, data in reversed(found):
            self._read[stream] = id_ - base
            for part in rows.decode(data, shift):
                newest = part.values[-len(part.keys) :]
                for key, value in zip(part.keys, newest, strict=True):
                    self.values.setdefault(key, {})[rank] = Sample(part.steps[-1], part.times[-1] / 1e6, value)
