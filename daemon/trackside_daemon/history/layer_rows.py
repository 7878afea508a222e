"""Write and read the distributions of layers: a row for each kind, rank and measured step, and levels of merged rows.

A row of level *n* is the merge of `MERGED` rows of level *n - 1*, so that a long run is shown from a few rows. Its step and
time are those of the last of them.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from math import inf, isnan, nan, sqrt
from typing import Any, NamedTuple

import msgspec

from trackside.buckets import Buckets
from trackside.packing import pack, unpack
from trackside.wire import DISTRIBUTION_COLUMNS, DistributionFrame
from trackside_daemon.history.sanitize import to_json

MERGED = 4  # rows that are merged into one of the next level

# Columns of which the merge has the largest value; of the others it has means.
LARGEST = frozenset({"largest", "logit"})

_COLUMNS = "first, step, time, names, numbers, buckets"
_encode = msgspec.msgpack.Encoder().encode
_numbers = msgspec.msgpack.Decoder(dict[str, bytes]).decode
_buckets = msgspec.msgpack.Decoder(list[bytes]).decode
_names = msgspec.json.Decoder(list[str]).decode


class LayerFrame(NamedTuple):
    """Distributions of several layers."""

    first: int  # first step
    step: int  # last step
    time: int  # Unix microseconds of the last step
    names: Sequence[str]  # the layers
    columns: dict[str, Sequence[float]]  # values by column, one a layer, as `trackside.wire.DistributionFrame` has them
    buckets: Sequence[bytes]  # packed distributions, one a layer; none if they have none, or were not read


class RowsPart(NamedTuple):
    """A part of the rows, so that a chart reads no more than it shows."""

    column: str = ""  # only this column; empty for all
    layer: str = ""  # only this layer; empty for all
    buckets: bool = True  # also the distributions


WHOLE = RowsPart()


def write_frames(connection: sqlite3.Connection, stream: int, frames: Iterable[DistributionFrame], shift: int) -> None:
    """Append frames of a stream; *shift* is added to their times, in nanoseconds."""
    for frame in frames:
        time = max(-(2**62), min(2**62, (frame.time + shift) // 1000))
        columns = {name: unpack("f", column) for name, column in frame.columns.items()}
        read = LayerFrame(frame.step, frame.step, time, frame.names, columns, frame.buckets)  # type: ignore[arg-type]
        _append(connection, stream, frame.kind, 0, read)


def _append(connection: sqlite3.Connection, stream: int, kind: str, level: int, frame: LayerFrame) -> None:
    (number,) = connection.execute(
        "SELECT coalesce(max(number) + 1, 0) FROM distribution WHERE stream = ? AND kind = ? AND level = ?",
        (stream, kind, level),
    ).fetchone()
    columns = {name: pack("f", column) for name, column in frame.columns.items()}
    connection.execute(
        "INSERT INTO distribution (stream, kind, level, number, first, step, time, names, numbers, buckets) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(stream, kind, level, number, frame.first, frame.step, frame.time),
            _names_id(connection, stream, frame.names),
            _encode(columns),
            _encode(frame.buckets),
        ),
    )
    if (number + 1) % MERGED == 0:
        group = read(connection, stream, kind, level, first=number + 1 - MERGED)
        _append(connection, stream, kind, level + 1, merge_steps(group))


def _names_id(connection: sqlite3.Connection, stream: int, names: Sequence[str]) -> int:
    text = to_json(list(names))
    connection.execute("INSERT OR IGNORE INTO layer_names (stream, names) VALUES (?, ?)", (stream, text))
    query = "SELECT id FROM layer_names WHERE stream = ? AND names = ?"
    return int(connection.execute(query, (stream, text)).fetchone()[0])


def read(
    connection: sqlite3.Connection,
    stream: int,
    kind: str,
    level: int,
    *,
    first: int = 0,
    window: tuple[float, float] = (-inf, inf),
    part: RowsPart = WHOLE,
) -> list[LayerFrame]:
    """Return the rows of a level from number *first* on, in their order.

    Args:
        connection: To the history.
        stream: The rank.
        kind: The kind.
        level: The level.
        first: Number of the first row.
        window: First and last step.
        part: What is read of each row.

    Raises:
        ValueError: A row is damaged.
    """
    rows = connection.execute(
        f"SELECT {_COLUMNS if part.buckets else _COLUMNS.replace('buckets', 'NULL')} FROM distribution "  # noqa: S608
        "WHERE stream = ? AND kind = ? AND level = ? AND number >= ? AND step >= ? AND first <= ? ORDER BY number",
        (stream, kind, level, first, *window),
    )
    known: dict[int, list[str]] = {}
    return [_frame(connection, known, row, part) for row in rows.fetchall()]


def after(connection: sqlite3.Connection, stream: int, id_: int, most: int) -> list[tuple[int, str, LayerFrame]]:
    """Return id, kind and frame of the first rows of a stream that were not merged and have a larger id than *id_*.

    Raises:
        ValueError: A row is damaged.
    """
    # By their ids, between those of the first and the last one: the rows of all other runs are not looked through.
    first, last = (
        f"(SELECT {end}((SELECT id FROM distribution WHERE stream = :stream AND kind = value AND level = 0 "  # noqa: S608
        f"ORDER BY number {order} LIMIT 1)) FROM json_each(:kinds))"
        for end, order in (("min", "ASC"), ("max", "DESC"))
    )
    rows = connection.execute(
        f"SELECT id, kind, {_COLUMNS} FROM distribution WHERE id > max(:id, {first} - 1) AND id <= {last} "  # noqa: S608
        "AND +stream = :stream AND level = 0 ORDER BY id LIMIT :most",
        {"id": id_, "stream": stream, "most": most, "kinds": to_json([*DISTRIBUTION_COLUMNS])},
    )
    known: dict[int, list[str]] = {}
    return [(int(row[0]), str(row[1]), _frame(connection, known, row[2:])) for row in rows.fetchall()]


def _frame(
    connection: sqlite3.Connection, known: dict[int, list[str]], row: Sequence[Any], part: RowsPart = WHOLE
) -> LayerFrame:
    begin, step, time, names, numbers, packed = row
    try:
        if names not in known:
            query = "SELECT names FROM layer_names WHERE id = ?"
            known[names] = _names(connection.execute(query, (names,)).fetchone()[0])
        columns: dict[str, Sequence[float]] = {
            name: unpack("f", data) for name, data in _numbers(numbers).items() if part.column in ("", name)
        }
        frame = LayerFrame(begin, step, time, known[names], columns, [] if packed is None else _buckets(packed))
        return frame if not part.layer else _only(frame, part.layer)
    except (msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"a damaged row of distributions: {error}") from error


def _only(frame: LayerFrame, layer: str) -> LayerFrame:
    """Return a frame of one layer; of none if it does not have it."""
    places = [place for place, name in enumerate(frame.names) if name == layer]
    columns: dict[str, Sequence[float]] = {
        name: [column[place] for place in places] for name, column in frame.columns.items()
    }
    return frame._replace(
        names=[layer] * len(places),
        columns=columns,
        buckets=[frame.buckets[place] for place in places if frame.buckets],
    )


def merge_steps(frames: Sequence[LayerFrame]) -> LayerFrame:
    """Return one frame for several steps: all values together, largest values, and means of the other columns."""
    last = frames[-1]
    keys = dict.fromkeys(name for frame in frames for name in frame.columns)
    columns: dict[str, Sequence[float]] = {}
    if all(frame.names == last.names and frame.columns.keys() == keys.keys() for frame in frames):  # nearly always
        for name in keys:
            columns[name] = _merged_columns(name, [frame.columns[name] for frame in frames])
        every = zip(*(frame.buckets for frame in frames), strict=True) if all(frame.buckets for frame in frames) else ()
        buckets = [merge_buckets(several).packed() for several in every]
        return LayerFrame(frames[0].first, last.step, last.time, last.names, columns, buckets)
    names, parts = _by_layer(frames)
    for name in keys:
        values = [
            [frame.columns[name][place] for frame, place in found if name in frame.columns] for found in parts.values()
        ]
        columns[name] = [_merged(name, [one for one in several if not isnan(one)]) for several in values]
    return LayerFrame(frames[0].first, last.step, last.time, names, columns, _together(parts))


def merge_ranks(frames: Sequence[LayerFrame]) -> LayerFrame:
    """Return one frame for the parts of several ranks at about one step: the values of the whole."""
    if len(frames) == 1:
        return frames[0]
    names, parts = _by_layer(frames)
    rows = [
        _whole([{name: column[place] for name, column in frame.columns.items()} for frame, place in found])
        for found in parts.values()
    ]
    columns: dict[str, Sequence[float]] = {
        name: [row.get(name, nan) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)
    }
    last = max(frames, key=lambda frame: frame.step)
    return LayerFrame(min(frame.first for frame in frames), last.step, last.time, names, columns, _together(parts))


def _by_layer(frames: Sequence[LayerFrame]) -> tuple[list[str], dict[str, list[tuple[LayerFrame, int]]]]:
    parts: dict[str, list[tuple[LayerFrame, int]]] = {}
    for frame in frames:
        for place, name in enumerate(frame.names):
            parts.setdefault(name, []).append((frame, place))
    return list(parts), parts


def _merged_columns(name: str, several: Sequence[Sequence[float]]) -> list[float]:
    """Return the merge of a column of several frames with the same layers."""
    sums = list(map(sum, zip(*several, strict=True)))
    if isnan(sum(sums)):  # those that are NaN do not count
        rows = zip(*several, strict=True)
        return [_merged(name, [one for one in row if one == one]) for row in rows]  # noqa: PLR0124  not NaN
    if name in LARGEST:
        return list(map(max, zip(*several, strict=True)))
    return [one / len(several) for one in sums]


def _merged(name: str, values: Sequence[float]) -> float:
    if not values:
        return nan
    return max(values) if name in LARGEST else sum(values) / len(values)


def _whole(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the columns of all values of a layer from those of its parts."""
    merged = {
        name: _merged(name, [part[name] for part in parts if not isnan(part.get(name, nan))]) for name in parts[0]
    }
    size = sum(part.get("size", 0.0) for part in parts)
    if not size:
        return merged
    for name in ("mean", "zeros", "nonfinite", "saturated"):
        if name in merged:
            merged[name] = sum(part[name] * part["size"] for part in parts) / size
    mean = merged["mean"]
    moments = sum((part["std"] ** 2 + (part["mean"] - mean) ** 2) * part["size"] for part in parts)
    merged |= {"size": size, "std": sqrt(moments / size), "norm": sqrt(sum(part["norm"] ** 2 for part in parts))}
    if "update_ratio" in merged:
        moved = sum((part["update_ratio"] * part["norm"]) ** 2 for part in parts if not isnan(part["update_ratio"]))
        merged |= {"update_ratio": sqrt(moved) / merged["norm"] if merged["norm"] else nan}
        merged["rank"] = max((part["rank"] for part in parts if not isnan(part["rank"])), default=nan)
    return merged


def _together(parts: dict[str, list[tuple[LayerFrame, int]]]) -> list[bytes]:
    """Return the distribution of each layer; none if a frame has none."""
    if not all(frame.buckets for found in parts.values() for frame, _ in found):
        return []
    return [merge_buckets([frame.buckets[place] for frame, place in found]).packed() for found in parts.values()]


def merge_buckets(several: Iterable[bytes]) -> Buckets:
    """Return the distribution of all values of several packed distributions.

    Raises:
        ValueError: One is damaged.
    """
    zeros = nonfinite = 0
    counts: dict[int, int] = {}
    for one in map(Buckets.unpacked, several):
        zeros += one.zeros
        nonfinite += one.nonfinite
        for code, count in one.counts.items():
            counts[code] = counts.get(code, 0) + count
    return Buckets(zeros, nonfinite, dict(sorted(counts.items())))
