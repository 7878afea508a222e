"""Convert frames to tables of Arrow, pandas and polars, without a copy of the values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside_daemon.history.frames.frame import IDENTITY
from trackside_daemon.history.frames.optional_library import library

if TYPE_CHECKING:
    from trackside_daemon.history.frames.frame import Frame


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
