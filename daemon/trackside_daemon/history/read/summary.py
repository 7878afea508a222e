"""Summarize series: last value, extremes, mean and standard deviation of each, and step and loss of the run."""

import sqlite3
from itertools import islice
from math import nan, sqrt
from operator import itemgetter
from typing import Any

from trackside_daemon.history import codec
from trackside_daemon.history.read.series import LOSSES, LogTail, StoredSeries, count, find
from trackside_daemon.history.schema import BLOCK_BITS
from trackside_daemon.model.metric import json_number

SUMMARIES = 5_000  # summaries in one answer by default, about 1.3 MB of JSON


def metrics(
    connection: sqlite3.Connection, run_id: int, limit: int = SUMMARIES, offset: int = 0
) -> list[dict[str, Any]]:
    """Return last value, extremes, mean and standard deviation of series of a run; the latter two leave out NaN and infinities.

    The standard deviation is that of the samples themselves; None if they are of a history from before it was kept.

    They are in the order of attempts and ranks. If there are more than *limit* after the first *offset*, they are of the
    lowest ranks, and of the newest attempts of each rank.
    """
    streams = connection.execute(
        "SELECT id, attempt, rank FROM stream WHERE run = ? ORDER BY rank, attempt DESC", (run_id,)
    ).fetchall()
    summaries: list[dict[str, Any]] = []
    for stream, attempt, rank in streams:
        if len(summaries) >= limit:
            break
        tail = LogTail(connection, stream)
        selected = islice(find(connection, stream, tail), offset, offset + limit - len(summaries))
        before = len(summaries)
        summaries += (
            {"key": series.key, "attempt": attempt, "rank": rank, **summary(connection, series, tail)}
            for series in selected
        )
        if len(summaries) == before:
            offset -= count(connection, stream, tail)
        else:
            offset = 0
    return sorted(summaries, key=itemgetter("attempt", "rank"))


def totals(connection: sqlite3.Connection, run_id: int) -> dict[str, Any]:
    """Return a run's step, the highest of all ranks, its loss, and its number of series, also of unpacked samples.

    The loss is that of the last attempt's lowest rank that has one.
    """
    (step,) = connection.execute("SELECT step FROM run WHERE id = ?", (run_id,)).fetchone()
    streams = connection.execute(
        "SELECT id FROM stream WHERE run = ? ORDER BY attempt DESC, rank", (run_id,)
    ).fetchall()
    steps = [step]
    loss = None
    number = 0
    for (stream,) in streams:
        tail = LogTail(connection, stream)
        number += count(connection, stream, tail)
        steps.append(tail.highest())
        if loss is None:
            losses = sorted(find(connection, stream, tail, LOSSES), key=lambda series: len(series.key))
            loss = next((summary(connection, series, tail)["last"] for series in losses), None)
    return {"step": max((step for step in steps if step is not None), default=None), "loss": loss, "series": number}


def summary(connection: sqlite3.Connection, series: StoredSeries, tail: LogTail) -> dict[str, Any]:
    """Return last value, extremes and mean of a series; see `metrics`."""
    packed = connection.execute(
        "SELECT series.count, series.min, series.max, finite, sum, squares, block.step, block.time, block.last FROM series "
        "LEFT JOIN block ON block.id = (SELECT max(id) FROM block WHERE id >= ? AND id < ?) WHERE series.id = ?",
        (series.id << BLOCK_BITS, series.id + 1 << BLOCK_BITS, series.id),
    ).fetchone() or (0, *codec.ValueSummary(), None, None, None)
    samples, *found, step, time, last = packed
    of_all = codec.ValueSummary(*found)
    first = _first(connection, series)
    steps, times, values = tail.read(series)
    if len(values):
        of_all = of_all.plus(codec.summarize(values))
        samples += len(values)
        step = steps[-1]
        time = times[-1]
        last = values[-1]
        first = first or (steps[0], times[0])
    finite, squares = of_all.finite, of_all.squares
    if squares is not None and of_all.low == of_all.high:
        squares = 0.0  # rounding, which differs between versions of Python, leaves something of a constant
    return {
        "count": samples,
        "nonfinite": samples - finite,
        "last": json_number(last),
        "first_step": None if first is None else first[0],
        "first_time": None if first is None else first[1] / 1e6,
        "last_step": step,
        "last_time": None if time is None else time / 1e6,
        "min": json_number(of_all.low),
        "max": json_number(of_all.high),
        "mean": json_number(of_all.sum / finite if finite else nan),
        "std": json_number(nan) if not finite else None if squares is None else json_number(sqrt(squares / finite)),
    }


def _first(connection: sqlite3.Connection, series: StoredSeries) -> tuple[int, int] | None:
    """Return the lowest step and time, in microseconds, of the first block that is left; None without one."""
    row = connection.execute(
        "SELECT step_min, time_min FROM block WHERE id >= ? AND id < ? ORDER BY id LIMIT 1",
        (series.id << BLOCK_BITS, series.id + 1 << BLOCK_BITS),
    ).fetchone()
    return None if row is None else (int(row[0]), int(row[1]))


def update_run(connection: sqlite3.Connection, stream: int) -> None:
    """Update a run's step, the highest of all ranks, and its loss, that of the last attempt's lowest rank that has one."""
    last = (
        "SELECT block.step_max, block.last FROM series JOIN block ON block.id = "
        "(SELECT max(id) FROM block WHERE id >= series.id << 24 AND id < series.id + 1 << 24) "
        "WHERE series.stream = ?"
    )
    step = max((row[0] for row in connection.execute(last, (stream,))), default=None)
    row = connection.execute("SELECT run, attempt, rank FROM stream WHERE id = ?", (stream,)).fetchone()
    if step is None or row is None:  # nothing was pushed, or it was deleted meanwhile
        return
    run, attempt, rank = row
    connection.execute("UPDATE run SET step = ? WHERE id = ? AND coalesce(step < ?, 1)", (step, run, step))
    connection.execute("UPDATE run SET trimmed = 0 WHERE id = ? AND trimmed", (run,))  # new blocks have samples again
    marks = ", ".join("?" * len(LOSSES))
    loss = connection.execute(
        f"{last} AND series.key IN ({marks}) ORDER BY length(series.key) LIMIT 1",
        (stream, *LOSSES),
    ).fetchone()
    first = "SELECT 1 FROM stream JOIN series ON series.stream = stream.id WHERE run = ? AND (-attempt, rank) < (?, ?)"
    values = (run, -attempt, rank, *LOSSES)
    if loss is not None and not connection.execute(f"{first} AND key IN ({marks}) LIMIT 1", values).fetchone():
        connection.execute("UPDATE run SET loss = ? WHERE id = ?", (json_number(loss[1]), run))
