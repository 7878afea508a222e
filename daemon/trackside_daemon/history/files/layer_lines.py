"""Lines of JSON lines with the distributions of layers: columns by layer, and counts by the exponent of a bucket's bound."""

import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from trackside.buckets import FIRST, LOWEST, SIDE, Buckets, index_of
from trackside.packing import pack
from trackside.wire import DISTRIBUTION_COLUMNS, DistributionFrame
from trackside_daemon.history.files.items import checked_position, microseconds
from trackside_daemon.history.layer_rows import LayerFrame, after
from trackside_daemon.model.metric import json_number

PAGE = 64  # rows that are read at once


def layer_lines(connection: sqlite3.Connection, stream: int, id_: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield id and line of the first rows of a stream after an id.

    Raises:
        ValueError: A row is damaged.
    """
    for row, kind, frame in after(connection, stream, id_, PAGE):
        yield row, {"step": frame.step, "time": frame.time / 1e6, "of": kind, "layers": dict(_layers(frame))}


def frame_of(fields: Mapping[str, Any]) -> DistributionFrame:
    """Return the distributions of a line, with the time in Unix nanoseconds.

    Raises:
        ValueError: The line has another format.
    """
    try:
        kind, layers = str(fields["of"]), fields["layers"]
        _, _, step = checked_position(0, 0, fields["step"])
        names = [name for name in DISTRIBUTION_COLUMNS.get(kind, ()) if all(name in one for one in layers.values())]
        columns = {name: pack("f", [float(one[name]) for one in layers.values()]) for name in names}
        buckets = [_packed(one["buckets"]) for one in layers.values() if "buckets" in one]
        frame = DistributionFrame(kind, microseconds(fields["time"]) * 1000, list(layers), columns, buckets, step)
    except (AttributeError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(f"distributions of layers are expected: {type(error).__name__}: {str(error)[:60]}") from None
    frame.check()
    return frame


def _layers(frame: LayerFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, layer in enumerate(frame.names):
        columns = ((name, column[place]) for name, column in frame.columns.items())
        values: dict[str, Any] = {name: json_number(value) for name, value in columns}
        if frame.buckets:
            one = Buckets.unpacked(frame.buckets[place])
            sides: tuple[dict[str, int], dict[str, int]] = {}, {}
            for code, count in one.counts.items():
                sides[code >= SIDE][str(index_of(code))] = count
            positive, negative = sides
            values["buckets"] = {
                "zeros": one.zeros,
                "nonfinite": one.nonfinite,
                "positive": positive,
                "negative": negative,
            }
        yield layer, values


def _packed(buckets: Mapping[str, Any]) -> bytes:
    counts = {
        int(index) - LOWEST + FIRST + side: int(count)
        for side, name in ((0, "positive"), (SIDE, "negative"))
        for index, count in buckets[name].items()
    }
    if any(code < 0 for code in counts):
        raise ValueError("a bucket that does not exist")
    return Buckets(int(buckets["zeros"]), int(buckets["nonfinite"]), dict(sorted(counts.items()))).packed()
