"""The part of a run that an export selects, and the number of its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.history.files.machine_series import machine_series, packed_count
from trackside_daemon.history.read.series import EVERYTHING, LogTail, Readable, Window, cut, find

if TYPE_CHECKING:
    import sqlite3


class Selection(NamedTuple):
    """A part of the samples of a run.

    Attributes:
        keys: Only these; empty for all.
        ranks: Only these; empty for all.
        attempt: Only this one; None for all.
        window: Only the samples in it.
        resources: Also the GPU, host and process series of the machine in the time of the run.
    """

    keys: tuple[str, ...] = ()
    ranks: frozenset[int] = frozenset()
    attempt: int | None = None
    window: Window = EVERYTHING
    resources: bool = False


ALL = Selection()


def count(database: Readable, uid: str, selection: Selection = ALL) -> int:
    """Return the number of samples of an export; approximate if the run is being written."""
    total = 0
    with database.reading() as connection:
        selected = streams(connection, uid, selection)
    for stream, _, _ in selected:
        with database.reading() as connection:
            tail = LogTail(connection, stream)
            inside: dict[int, int] = {}
            for series in find(connection, stream, tail, selection.keys or None):
                total += packed_count(connection, series, selection.window, inside) if series.id else 0
                total += len(cut(*tail.read(series), selection.window)[0])
    if selection.resources:
        total += machine_series(database, uid, selection.window).samples
    return total


def missing_keys(database: Readable, uid: str, selection: Selection) -> list[str] | None:
    """Return the selected keys that the run does not have; None if it has none of the selected ranks."""
    with database.reading() as connection:
        selected = streams(connection, uid, selection)
    missing = dict.fromkeys(selection.keys)
    for stream, _, _ in selected if missing else ():
        with database.reading() as connection:
            for series in find(connection, stream, LogTail(connection, stream), list(missing)):
                del missing[series.key]
    return list(missing) if selected else None


def streams(connection: sqlite3.Connection, uid: str, selection: Selection) -> list[tuple[int, int, int]]:
    """Return id, attempt and rank of the selected streams of a run."""
    rows = connection.execute(
        "SELECT stream.id, stream.attempt, stream.rank FROM stream JOIN run ON run.id = stream.run "
        "WHERE run.uid = ? AND NOT run.deleted ORDER BY stream.attempt, stream.rank",
        (uid,),
    )
    return [
        (stream, attempt, rank)
        for stream, attempt, rank in rows
        if selection.attempt in (None, attempt) and (not selection.ranks or rank in selection.ranks)
    ]
