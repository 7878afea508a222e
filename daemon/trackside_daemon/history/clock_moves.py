"""Move the start of a run where the clock of this machine is set while it lives, so that no duration has the difference.

Samples keep the times that they have. An event of the run says by how much the clock was set and after which step, so that
readers of durations can move the times of the steps before, too.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trackside_daemon.history.read.series import LogTail
from trackside_daemon.history.sanitize import to_json

KIND = "clock_set"  # kind of the event; a training may have such events too, which have a rank


class ClockMove(NamedTuple):
    """The clock was set forward by some microseconds after a step of an attempt."""

    step: int
    micros: int


def move_clock(connection: sqlite3.Connection, run: int, attempt: int, seconds: float, time: float) -> None:
    """Move the start of a live run, given by its row's id, by *seconds*, and write the event."""
    for column in ("started", "ended"):
        connection.execute(f"UPDATE run SET {column} = {column} + ? WHERE id = ?", (seconds, run))  # noqa: S608
        connection.execute(f"UPDATE attempt SET {column} = {column} + ? WHERE run = ?", (seconds, run))  # noqa: S608
    streams = "SELECT id FROM stream WHERE run = ?"
    connection.execute(f"UPDATE session SET began = began + ? WHERE stream IN ({streams})", (seconds, run))  # noqa: S608
    row = connection.execute(f"{streams} AND attempt = ? ORDER BY rank LIMIT 1", (run, attempt)).fetchone()
    step = None if row is None else _highest(connection, row[0])
    connection.execute(
        "INSERT INTO event (run, attempt, time, step, kind, fields) VALUES (?, ?, ?, ?, ?, ?)",
        (run, attempt, time, step, KIND, to_json({"seconds": round(seconds, 3)})),
    )


def clock_moves(connection: sqlite3.Connection, run: int, attempt: int) -> list[ClockMove]:
    """Return how the clock was set after steps of an attempt of a run, given by its row's id."""
    rows = connection.execute(
        "SELECT attempt, step, json_extract(fields, '$.seconds') FROM event "
        "WHERE run = ? AND attempt >= ? AND kind = ? AND rank IS NULL ORDER BY id",
        (run, attempt, KIND),
    )
    # What came in a later attempt was after all steps of this one.
    last = ((step if number == attempt else 2**63 - 1, seconds) for number, step, seconds in rows)
    return [ClockMove(step, round(seconds * 1e6)) for step, seconds in last if step is not None and seconds]


def moves_of_stream(connection: sqlite3.Connection, stream: int) -> list[ClockMove]:
    """Return how the clock was set after steps of the attempt of a stream."""
    row = connection.execute("SELECT run, attempt FROM stream WHERE id = ?", (stream,)).fetchone()
    return [] if row is None else clock_moves(connection, *row)


def moved(moves: Iterable[ClockMove], steps: Sequence[int], times: array[int]) -> array[int]:
    """Return the times of steps, in microseconds, as the clock would have shown them that the last steps have."""
    for last, micros in moves:
        times = array("q", [time + micros if step <= last else time for step, time in zip(steps, times, strict=True)])
    return times


def _highest(connection: sqlite3.Connection, stream: int) -> int | None:
    packed = (
        "SELECT max((SELECT step_max FROM block WHERE id >= series.id << 24 AND id < series.id + 1 << 24 "
        "ORDER BY id DESC LIMIT 1)) FROM series WHERE stream = ?"
    )
    (step,) = connection.execute(packed, (stream,)).fetchone()
    return max((one for one in (step, LogTail(connection, stream).highest()) if one is not None), default=None)
