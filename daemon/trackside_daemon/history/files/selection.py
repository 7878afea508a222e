"""The part of a run that an export selects, with the series of its machine, and the number of its samples."""

import sqlite3
from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

from trackside_daemon.history.codec import decode_axis
from trackside_daemon.history.files.merging import Line, merge
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.resources import machine_stream
from trackside_daemon.history.read.series import (
    EVERYTHING,
    LogTail,
    Readable,
    StoredSeries,
    Window,
    cut,
    find,
    run_streams,
    samples,
)
from trackside_daemon.history.schema import BLOCK_BITS, HOST
from trackside_daemon.history.series_name import series_labels


class MachineSeries(NamedTuple):
    """The series of a run's machine that have samples in its time; *samples* is their number."""

    window: Window
    series: Sequence[StoredSeries]
    samples: int

    def lines(self, database: Readable) -> Iterator[Line]:
        """Yield the values of each time; their places are those of *series*."""
        tail = LogTail(None, self.series[0].stream) if self.series else None
        return merge([samples(database, one, tail, self.window) for one in self.series])


def machine_series(database: Readable, uid: str, window: Window) -> MachineSeries:
    """Return the series of a run's machine; those that belong to another run are left out.

    Args:
        database: Read now.
        uid: The run's id.
        window: A range of times; if it is one of steps, the time of the run counts.
    """
    with database.reading() as connection:
        run = reader.head(connection, uid)
        stream = machine_stream(connection, uid)
        began, ended = (run["started"], run["ended"]) if stream == HOST else (-inf, None)
        selected = window if window.by == "time" else Window("time", began, inf if ended is None else ended)
        if stream is None:
            return MachineSeries(selected, [], 0)
        tail = LogTail(connection, stream)
        inside: dict[int, int] = {}
        counted = [
            (series, count_of(connection, series, tail, selected, inside))
            for series in find(connection, stream, tail)
            if stream != HOST or series_labels(series.key).get("run", run["name"]) == run["name"]
        ]
    found = sorted((series for series, count in counted if count), key=lambda series: series.key)
    return MachineSeries(selected, found, sum(count for _, count in counted))


def count_of(
    connection: sqlite3.Connection, series: StoredSeries, tail: LogTail, window: Window, inside: dict[int, int]
) -> int:
    """Return the number of samples in a window; *inside* caches the counts of axes at the window's edges."""
    ids = (series.id << BLOCK_BITS, series.id + 1 << BLOCK_BITS)
    fresh = len(cut(*tail.read(series), window)[0])
    left = "SELECT coalesce(sum(count), 0) FROM block WHERE id >= ? AND id < ? AND data NOT NULL"
    if window.whole:
        return int(connection.execute(left, ids).fetchone()[0]) + fresh
    low, high = window.bounds
    by = window.by
    total: int = connection.execute(f"{left} AND {by}_min >= ? AND {by}_max <= ?", (*ids, low, high)).fetchone()[0]
    edges = connection.execute(
        "SELECT axis.id, axis.data FROM block JOIN axis ON axis.id = block.axis WHERE block.id >= ? AND block.id < ? "  # noqa: S608
        f"AND block.data NOT NULL AND {by}_min <= ? AND {by}_max >= ? AND ({by}_min < ? OR {by}_max > ?)",
        (*ids, high, low, low, high),
    )
    for axis, data in edges:
        if axis not in inside:
            steps, times = decode_axis(data)
            inside[axis] = sum(low <= at <= high for at in (times if by == "time" else steps))
        total += inside[axis]
    return total + fresh


class Selection(NamedTuple):
    """A part of the samples of a run."""

    keys: tuple[str, ...] = ()  # only these; empty for all
    ranks: frozenset[int] = frozenset()  # only these; empty for all
    attempt: int | None = None  # only this one; None for all
    window: Window = EVERYTHING  # only the samples in it
    resources: bool = False  # also the GPU, host and process series of the machine in the time of the run


ALL = Selection()


def count(database: Readable, uid: str, selection: Selection = ALL) -> int:
    """Return the number of samples of an export; approximate if the run is being written."""
    total = 0
    with database.reading() as connection:
        selected = selected_streams(connection, uid, selection)
    for stream, _, _ in selected:
        with database.reading() as connection:
            tail = LogTail(connection, stream)
            inside: dict[int, int] = {}
            for series in find(connection, stream, tail, selection.keys or None):
                total += count_of(connection, series, tail, selection.window, inside)
    if selection.resources:
        total += machine_series(database, uid, selection.window).samples
    return total


def missing_keys(database: Readable, uid: str, selection: Selection) -> list[str] | None:
    """Return the selected keys that the run does not have; None if it has none of the selected ranks."""
    with database.reading() as connection:
        selected = selected_streams(connection, uid, selection)
    missing = dict.fromkeys(selection.keys)
    for stream, _, _ in selected if missing else ():
        with database.reading() as connection:
            for series in find(connection, stream, LogTail(connection, stream), list(missing)):
                del missing[series.key]
    return list(missing) if selected else None


def selected_streams(connection: sqlite3.Connection, uid: str, selection: Selection) -> list[tuple[int, int, int]]:
    """Return id, attempt and rank of the selected streams of a run."""
    found = run_streams(connection, uid, selection.attempt)
    return [row for row in found if not selection.ranks or row[2] in selection.ranks]
