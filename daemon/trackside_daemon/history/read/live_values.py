"""Read the newest values of a run, incrementally, its state, and a curve in few points, fast enough for many runs."""

import sqlite3
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from trackside_daemon.history import log_rows
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.series import EVERYTHING, LogTail, StoredSeries, reload, run_streams
from trackside_daemon.history.schema import BLOCK_BITS, LOG_BITS

KEYS = 4096  # keys of a run whose values are kept
ROWS = 512  # the newest log rows of a stream that one refresh reads at most

_PACKED = (
    "SELECT series.key, block.step, block.time, block.last, series.packed FROM series JOIN block ON block.id = "  # noqa: S608
    f"(SELECT max(id) FROM block WHERE id >= series.id << {BLOCK_BITS} AND id < series.id + 1 << {BLOCK_BITS}) "
    "WHERE series.stream = ? AND series.packed > ?"
)


def state(connection: sqlite3.Connection, uid: str) -> str | None:
    """Return a run's state; None if there is no such run."""
    row = connection.execute("SELECT state FROM run WHERE uid = ? AND NOT deleted", (uid,)).fetchone()
    return None if row is None else str(row[0])


def total_steps(connection: sqlite3.Connection, uid: str, attempt: int) -> int | None:
    """Return the planned number of steps of an attempt; None if it did not report one."""
    row = connection.execute(
        "SELECT json_extract(attempt.about, '$.total_steps') FROM attempt JOIN run ON run.id = attempt.run "
        "WHERE run.uid = ? AND attempt.number = ?",
        (uid, attempt),
    ).fetchone()
    return None if row is None or row[0] is None else int(row[0])


class LatestValue(NamedTuple):
    """The last sample of a series; its time in Unix seconds, its value None for NaN in a block."""

    step: int
    time: float
    value: float | None


class LatestValues:
    """The last samples of the last attempt of a run.

    Args:
        uid: The run's id.

    Attributes:
        values: The last sample by key and rank, of the first `KEYS` keys.
    """

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.values: dict[str, dict[int, LatestValue]] = {}
        self._attempt: int | None = None
        self._read: dict[int, int] = {}  # by stream, the number of its last log row that was read
        self._pushes: dict[int, int] = {}  # and its pushes then

    def refresh(self, connection: sqlite3.Connection) -> None:
        """Read the samples that arrived since the last call.

        Raises:
            ValueError: A row of the log is damaged.
        """
        streams = connection.execute(
            "SELECT stream.attempt, stream.rank, stream.id, stream.pushes FROM stream JOIN run ON run.id = stream.run "
            "WHERE run.uid = ? AND NOT run.deleted ORDER BY stream.attempt DESC, stream.rank",
            (self.uid,),
        ).fetchall()
        attempt = streams[0][0] if streams else None
        if attempt != self._attempt:
            self._attempt = attempt
            self.values = {}
            self._read, self._pushes = {}, {}
        for number, rank, stream, pushes in streams:
            if number == attempt and self._pushes.get(stream) != pushes:
                self._read_stream(connection, rank, stream)
                self._pushes[stream] = pushes

    def step(self) -> int | None:
        """Return the highest step; None without a sample."""
        return max((value.step for ranks in self.values.values() for value in ranks.values()), default=None)

    def _read_stream(self, connection: sqlite3.Connection, rank: int, stream: int) -> None:
        base, before = stream << LOG_BITS, self._read.get(stream, 0)
        newest = connection.execute(
            "SELECT id, shift, data FROM log WHERE id > ? AND id < ? ORDER BY id DESC LIMIT ?",
            (base + before, base + (1 << LOG_BITS), ROWS),
        ).fetchall()
        if not newest or newest[-1][0] > base + before + 1:  # what is between was packed meanwhile
            for key, step, time, last, packed in connection.execute(_PACKED, (stream, before)):
                self._set(key, rank, LatestValue(step, time / 1e6, last))
                self._read[stream] = max(self._read.get(stream, 0), packed)
        for id_, shift, data in reversed(newest):  # the newest last, so that its values stay
            self._read[stream] = id_ - base
            for part in log_rows.decode(data, shift):
                last_push = part.values[-len(part.keys) :]
                for key, value in zip(part.keys, last_push, strict=True):
                    self._set(key, rank, LatestValue(part.steps[-1], part.times[-1] / 1e6, value))

    def _set(self, key: str, rank: int, value: LatestValue) -> None:
        if key in self.values or len(self.values) < KEYS:
            self.values.setdefault(key, {})[rank] = value


def sparkline(
    connection: sqlite3.Connection, place: tuple[str, int, int], keys: Sequence[str], count: int
) -> list[tuple[int, float]]:
    """Return rising steps and their values: about *count* points of the packed samples, and as many of the log.

    Args:
        connection: In a transaction.
        place: Run id, attempt number and rank.
        keys: Candidates; the first one with samples is used.
        count: The number of points.

    Raises:
        ValueError: A block is damaged.
    """
    uid, attempt, wanted = place
    streams = [stream for stream, _, rank in run_streams(connection, uid, attempt) if rank == wanted]
    for stream, key in product(streams, keys):
        series = reload(connection, StoredSeries(stream, key))
        packed = chart(connection, series, LogTail(None, series.stream), EVERYTHING, count).points
        points = [(int(step), last) for step, _, _, _, last in packed] + _log_points(connection, series, count)
        if points:
            return _rising(points)
    return []


def _log_points(connection: sqlite3.Connection, series: StoredSeries, count: int) -> list[tuple[int, float]]:
    """Return the last push of about *count* log rows that are not packed, evenly spaced up to the newest."""
    base = series.stream << LOG_BITS
    first, last = connection.execute(
        "SELECT min(id), max(id) FROM log WHERE id > ? AND id < ?", (base + series.packed, base + (1 << LOG_BITS))
    ).fetchone()
    if first is None:
        return []
    every = max(1, (last - first) // count)
    chosen = connection.execute(
        "SELECT data FROM log WHERE id BETWEEN ? AND ? AND (? - id) % ? = 0 ORDER BY id", (first, last, last, every)
    )
    return [point for (data,) in chosen if (point := log_rows.last_push(data, series.key)) is not None]


def _rising(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Drop the points whose step falls, as after a resume from a checkpoint."""
    rising: list[tuple[int, float]] = []
    for point in points:
        if not rising or point[0] > rising[-1][0]:
            rising.append(point)
    return rising
