"""Read the samples of a run as one table, a row for each push, a column for each key, and convert it to libraries'."""

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trackside_daemon.history.frames.optional_library import library
from trackside_daemon.history.frames.rank_series import EncodedSeries, Integers, RankReader, RankRows, Values, join_rows
from trackside_daemon.history.read.series import run_streams

IDENTITY = ("attempt", "rank", "step", "time")  # the first columns of a table; a column for each key follows


class Frame(NamedTuple):
    """The samples of a run, by attempt, rank, time and step."""

    keys: list[str]  # the keys, in the order in which they began
    attempts: NDArray[np.int32]  # the attempt of each row
    ranks: NDArray[np.int32]  # the rank of each row
    steps: Integers  # the step of each row
    times: Integers  # Unix microseconds of each row
    values: Values  # one row of this array for each key; NaN where a push had no such key
    present: dict[str, NDArray[np.bool_]]  # by key, whether a push had it; keys that all pushes had are left out

    def has_all(self) -> bool:
        """Return whether each key has a sample."""
        return len(self.times) > 0 and all(bool(present.any()) for present in self.present.values())

    def names(self) -> list[str]:
        """Return the names of the keys' columns; none is one of `IDENTITY`."""
        return [f"{key} (key)" if key in IDENTITY else key for key in self.keys]


class _Rank(NamedTuple):
    attempt: int
    rank: int
    columns: list[EncodedSeries]
    rows: RankRows


def read_frame(
    connection: sqlite3.Connection,
    uid: str,
    keys: Sequence[str] | None = None,
    ranks: Collection[int] | None = None,
    attempt: int | None = None,
) -> Frame:
    """Return the samples of a run.

    Args:
        connection: In a transaction.
        uid: The run's id.
        keys: Only these, in this order; None for all.
        ranks: Only these; None for all.
        attempt: Only this one; None for all.

    Raises:
        ValueError: A block is damaged.
    """
    found = [
        _Rank(number, rank, columns, join_rows(list({id(column.axis): column.axis for column in columns}.values())))
        for stream, number, rank in run_streams(connection, uid, attempt)
        if ranks is None or rank in ranks
        if (columns := RankReader(connection, stream).columns(keys))
    ]
    named = dict.fromkeys(column.key for rank in found for column in rank.columns)
    frame = _empty(list(named if keys is None else dict.fromkeys(keys)), found)
    place = 0
    for rank in found:
        end = place + len(rank.rows.axis.steps)
        frame.attempts[place:end], frame.ranks[place:end] = rank.attempt, rank.rank
        frame.steps[place:end], frame.times[place:end] = rank.rows.axis
        _fill(connection, frame, rank, slice(place, end))
        place = end
    return frame


def _empty(keys: list[str], ranks: Sequence[_Rank]) -> Frame:
    rows = sum(len(rank.rows.axis.steps) for rank in ranks)
    lengths = [{column.key: len(column.axis.steps) for column in rank.columns} for rank in ranks]
    every = [len(rank.rows.axis.steps) for rank in ranks]
    whole = {key for key in keys if [by_key.get(key) for by_key in lengths] == every}
    present = {key: np.zeros(rows, bool) for key in keys if key not in whole}
    narrow = [np.empty(rows, np.int32) for _ in range(2)]
    wide = [np.empty(rows, np.int64) for _ in range(2)]
    values = np.empty((len(keys), rows))
    for number, key in enumerate(keys):
        if key in present:
            values[number] = np.nan
    return Frame(keys, narrow[0], narrow[1], wide[0], wide[1], values, present)


def _fill(connection: sqlite3.Connection, frame: Frame, rank: _Rank, rows: slice) -> None:
    numbers = {key: number for number, key in enumerate(frame.keys)}
    for column in rank.columns:
        out = frame.values[numbers[column.key], rows]
        places = rank.rows.places[id(column.axis)]
        if places is None:
            column.read(connection, out)
        else:
            values = np.empty(len(places))
            column.read(connection, values)
            out[places] = values
        if column.key in frame.present:
            frame.present[column.key][rows][slice(None) if places is None else places] = True


def to_arrow(frame: Frame) -> Any:
    """Return a ``pyarrow.Table``; a key that a push did not have is null there, and a NaN that was pushed is NaN."""
    arrow = library("pyarrow")
    columns = [
        arrow.array(frame.attempts),
        arrow.array(frame.ranks),
        arrow.array(frame.steps),
        arrow.array(frame.times).view(arrow.timestamp("us", "UTC")),
        *(
            arrow.array(values, mask=None if key not in frame.present else ~frame.present[key])
            for key, values in zip(frame.keys, frame.values, strict=True)
        ),
    ]
    return arrow.Table.from_arrays(columns, names=[*IDENTITY, *frame.names()])


def to_pandas(frame: Frame) -> Any:
    """Return a ``pandas.DataFrame``; pandas has NaN both for a pushed NaN and where a push had no such key."""
    pandas = library("pandas")
    table = pandas.DataFrame(frame.values.T, columns=frame.names(), copy=False)
    times = pandas.DatetimeIndex(frame.times.view("datetime64[us]"), copy=False).tz_localize("UTC")
    for place, column in enumerate((frame.attempts, frame.ranks, frame.steps, times)):
        table.insert(place, IDENTITY[place], column)
    return table


def to_polars(frame: Frame) -> Any:
    """Return a ``polars.DataFrame``, with null and NaN as in `to_arrow`."""
    return library("polars").from_arrow(to_arrow(frame))


def machine_table(machine: Iterable[Any], steps: Any) -> Any:
    """Return series of the machine as a table with labels as columns, joined to the steps of a run by their times.

    Args:
        machine: Series, each with ``key``, ``labels``, ``times_us`` and ``values``.
        steps: A ``pandas.DataFrame`` by ``time``, with what is joined.
    """
    pandas = library("pandas")
    by_labels: dict[tuple[str, ...], list[Any]] = {}
    for one in machine:
        times = pandas.to_datetime(list(one.times_us), unit="us", utc=True).astype("datetime64[us, UTC]")
        family = {"time": times, **one.labels, one.key.partition("{")[0]: list(one.values)}
        by_labels.setdefault(tuple(one.labels), []).append(pandas.DataFrame(family))
    tables = []
    for labels, parts in by_labels.items():
        index = ["time", *labels]
        by_family: dict[str, list[Any]] = {}
        for part in parts:
            by_family.setdefault(part.columns[-1], []).append(part.set_index(index))
        whole = pandas.concat([pandas.concat(each) for each in by_family.values()], axis=1)
        tables.append(whole.reset_index())
    found = pandas.concat(tables).sort_values("time", kind="stable")
    return pandas.merge_asof(found, steps, on="time").reset_index(drop=True)
