"""Read the distributions of layers as heat maps and bands of quantiles, and rank the layers that stand out."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isfinite, isnan, log10, nan
from statistics import median
from typing import Any, Literal, NamedTuple

from trackside.buckets import HIGHEST, SIDE, Buckets, index_of
from trackside_daemon.history.layer_rows import MERGED, LayerFrame, RowsPart, merge_ranks, merge_steps, read
from trackside_daemon.model.metric import json_number
from trackside_daemon.model.text import number, shown

Values = Mapping[str, Any]


RANKS = 64  # ranks that are merged at most, the lowest
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
VALUES = {  # columns of a heat map by kind, the default first
    "weights": ("norm", "update_ratio", "std", "zeros", "mean", "largest", "nonfinite", "rank"),
    "gradients": ("norm", "std", "zeros", "mean", "largest", "nonfinite"),
    "activations": ("std", "zeros", "largest", "mean", "norm", "saturated", "nonfinite"),
    "attention": ("entropy", "logit"),
}


class LayerWindow(NamedTuple):
    """A part of a run's distributions."""

    run: str  # id of the run
    kind: str
    ranks: frozenset[int] = frozenset()  # only these; empty for all, as one model
    attempt: int | None = None  # only this one; None for the last that has some
    first: float = -inf  # first step, or the first Unix time in seconds if *by* is ``time``
    last: float = inf  # likewise the last
    by: Literal["step", "time"] = "step"  # what *first* and *last* are
    points: int = 200  # number of columns of a map at most


def kinds(connection: sqlite3.Connection, run: str) -> list[str]:
    """Return the kinds of distributions that a run has."""
    rows = connection.execute(
        "SELECT DISTINCT kind FROM distribution WHERE stream IN "
        "(SELECT stream.id FROM stream JOIN run ON run.id = stream.run WHERE uid = ? AND NOT deleted)",
        (run,),
    )
    found = {kind for (kind,) in rows}
    return [kind for kind in VALUES if kind in found]


def heat_map(connection: sqlite3.Connection, window: LayerWindow, value: str) -> dict[str, Any]:
    """Return one value of all layers over steps: ``layers``, ``steps``, ``times`` and ``values`` by layer.

    Raises:
        ValueError: A row is damaged.
    """
    frames = _frames(connection, window, RowsPart(column=value, buckets=False))
    layers, rows = _rows(frames, value)
    return {
        "kind": window.kind,
        "value": value,
        "layers": layers,
        "steps": [frame.step for frame in frames],
        "times": [frame.time / 1e6 for frame in frames],
        "values": [row if isfinite(sum(row)) else [_cell(number) for number in row] for row in rows],
    }


def _rows(frames: Sequence[LayerFrame], value: str) -> tuple[list[str], list[list[float]]]:
    """Return the layers of frames, and the column of each layer over the frames, with NaN where it is missing."""
    if frames and all(frame.names == frames[0].names and value in frame.columns for frame in frames):  # nearly always
        return list(frames[0].names), [
            list(row) for row in zip(*(frame.columns[value] for frame in frames), strict=True)
        ]
    rows = {name: [nan] * len(frames) for frame in frames for name in frame.names}
    for at, frame in enumerate(frames):
        for name, measured in zip(frame.names, frame.columns.get(value, ()), strict=False):
            rows[name][at] = measured
    return list(rows), list(rows.values())


def _cell(number: float) -> float | str | None:
    return None if isnan(number) else json_number(number)


def distribution(connection: sqlite3.Connection, window: LayerWindow, layer: str) -> dict[str, Any]:
    """Return one layer's distribution over steps: ``steps``, ``times``, ``quantiles`` by step, ``counts`` and columns.

    Each element of ``counts`` has zeros, nonfinite, and lists of upper bounds and counts, from the lowest bucket on.

    Raises:
        ValueError: A row is damaged.
    """
    frames = [frame for frame in _frames(connection, window, RowsPart(layer=layer)) if frame.names]
    found = []
    for frame in frames:
        buckets = Buckets.unpacked(frame.buckets[0]) if frame.buckets else Buckets(0, 0, {})
        found.append((buckets, {name: json_number(column[0]) for name, column in frame.columns.items()}))
    return {
        "kind": window.kind,
        "layer": layer,
        "steps": [frame.step for frame in frames],
        "times": [frame.time / 1e6 for frame in frames],
        "quantiles": {
            f"{share:g}": [json_number(one) for one in column]
            for share, column in zip(QUANTILES, zip(*(quantiles(one) for one, _ in found), strict=True), strict=False)
        },
        "counts": [_counts(one) for one, _ in found],
        "columns": [columns for _, columns in found],
    }


def newest(connection: sqlite3.Connection, run: str) -> dict[str, Any]:
    """Return the newest columns of each layer: step and layers by kind.

    Raises:
        ValueError: A row is damaged.
    """
    found: dict[str, Any] = {}
    for kind in kinds(connection, run):
        frames = []
        for stream in _streams(connection, LayerWindow(run, kind)):
            query = "SELECT {} FROM distribution WHERE stream = :stream AND kind = :kind"
            query = f"{query.format('level, max(number)')} AND level = ({query.format('min(level)')})"
            level, number = connection.execute(query, {"stream": stream, "kind": kind}).fetchone()
            frames += read(connection, stream, kind, level, first=number, part=RowsPart(buckets=False))[-1:]
        if frames:
            frame = merge_ranks(frames)
            found[kind] = {"step": frame.step, "layers": values_by_layer(frame)}
    return {"run": run, "kinds": found}


def values_by_layer(frame: LayerFrame) -> dict[str, dict[str, Any]]:
    """Return the columns of each layer of a frame, as JSON has them."""
    rows = zip(*([json_number(value) for value in column] for column in frame.columns.values()), strict=True)
    return {layer: dict(zip(frame.columns, row, strict=True)) for layer, row in zip(frame.names, rows, strict=True)}


def last_row(connection: sqlite3.Connection) -> int:
    """Return the id of the newest distribution of all runs; 0 without any."""
    return int(connection.execute("SELECT coalesce(max(id), 0) FROM distribution").fetchone()[0])


def last_frames(connection: sqlite3.Connection, stream: int, most: int) -> list[tuple[str, LayerFrame]]:
    """Return the last *most* frames of each kind of a stream, with their kind but without their buckets, in order of time.

    Raises:
        ValueError: A row is damaged.
    """
    found: list[tuple[str, LayerFrame]] = []
    for kind in VALUES:
        query = "SELECT coalesce(max(number) + 1, 0) FROM distribution WHERE stream = ? AND kind = ? AND level = 0"
        (end,) = connection.execute(query, (stream, kind)).fetchone()
        frames = read(connection, stream, kind, 0, first=end - most, part=RowsPart(buckets=False)) if end else []
        found += [(kind, frame) for frame in frames]
    return sorted(found, key=lambda one: one[1].time)


def quantiles(buckets: Buckets, shares: Sequence[float] = QUANTILES) -> list[float]:
    """Return quantiles of the finite values, interpolated within buckets; NaN without any."""
    every = list(cells(buckets))
    total = sum(count for *_, count in every)
    if not total:
        return [nan] * len(shares)
    return [_at(every, share * total) for share in shares]


def _at(every: Iterable[tuple[float, float, int]], rest: float) -> float:
    """Return the value below which *rest* of the values are."""
    high = nan
    for low, high, count in every:
        if rest <= count:
            return low + (high - low) * max(0.0, rest / count)
        rest -= count
    return high


def cells(buckets: Buckets) -> Iterator[tuple[float, float, int]]:
    """Yield lower bound, upper bound and number of values of each bucket, the lowest first."""
    for code, count in sorted(buckets.counts.items(), reverse=True):
        if code >= SIDE:
            yield -_bound(code), -_bound(code) / 2, count
    if buckets.zeros:
        yield 0.0, 0.0, buckets.zeros
    for code, count in sorted(buckets.counts.items()):
        if code < SIDE:
            yield _bound(code) / 2, _bound(code), count


def _bound(code: int) -> float:
    return float(2.0 ** min(index_of(code), HIGHEST))


def _counts(buckets: Buckets) -> dict[str, Any]:
    every = [(high, count) for _, high, count in cells(buckets)]
    bounds, counts = zip(*every, strict=True) if every else ((), ())
    return {"zeros": buckets.zeros, "nonfinite": buckets.nonfinite, "bounds": bounds, "counts": counts}


def _frames(connection: sqlite3.Connection, window: LayerWindow, part: RowsPart) -> list[LayerFrame]:
    """Return at most ``window.points`` frames, each merged from the frames of all ranks in its part of the steps."""
    streams = _streams(connection, window)
    if len(streams) > 1:
        part = part._replace(column="")  # the whole of several ranks follows from several columns
    by_rank = [_of_rank(connection, stream, window, part) for stream in streams]
    every = [frame for frames in by_rank for frame in frames]
    if not every:
        return []
    steps = sorted({frame.step for frame in every})
    wide = -(-len(steps) // window.points)
    cell = {step: place // wide for place, step in enumerate(steps)}
    cells: dict[int, list[LayerFrame]] = {}
    for frames in by_rank:
        parts: dict[int, list[LayerFrame]] = {}
        for frame in frames:
            parts.setdefault(cell[frame.step], []).append(frame)
        for place, several in parts.items():
            cells.setdefault(place, []).append(several[0] if len(several) == 1 else merge_steps(several))
    return [merge_ranks(cells[place]) for place in sorted(cells)]


def _streams(connection: sqlite3.Connection, window: LayerWindow) -> list[int]:
    rows = connection.execute(
        "SELECT stream.id, attempt, rank FROM stream JOIN run ON run.id = stream.run WHERE uid = ? AND NOT deleted "
        "AND EXISTS (SELECT 1 FROM distribution WHERE stream = stream.id AND kind = ?) ORDER BY rank",
        (window.run, window.kind),
    ).fetchall()
    attempt = max((row[1] for row in rows), default=0) if window.attempt is None else window.attempt
    wanted = [id_ for id_, number, rank in rows if number == attempt and (not window.ranks or rank in window.ranks)]
    return wanted[:RANKS]


def _of_rank(connection: sqlite3.Connection, stream: int, window: LayerWindow, part: RowsPart) -> list[LayerFrame]:
    """Return the frames of the highest level that still has ``window.points`` of them, and of what it lacks yet."""
    steps = window.first, window.last
    # Of a trimmed run, single steps that are in merged ones are gone.
    query = "SELECT coalesce(min(number), 1) > 0 FROM distribution WHERE stream = ? AND kind = ? AND level = 0"
    (level,) = connection.execute(query, (stream, window.kind)).fetchone()
    if window.by == "time":
        steps = connection.execute(
            "SELECT coalesce(min(first), 1), coalesce(max(step), 0) FROM distribution "
            "WHERE stream = ? AND kind = ? AND level <= ? AND time BETWEEN ? AND ?",
            (stream, window.kind, level, window.first * 1e6, window.last * 1e6),
        ).fetchone()
    (count,) = connection.execute(
        "SELECT count(*) FROM distribution WHERE stream = ? AND kind = ? AND level = ? AND step BETWEEN ? AND ?",
        (stream, window.kind, level, *steps),
    ).fetchone()
    while count // MERGED >= window.points:
        count //= MERGED
        level += 1
    frames: list[LayerFrame] = []
    number = 0
    for lower in range(level, -1, -1):
        frames += read(connection, stream, window.kind, lower, first=number, window=steps, part=part)
        query = "SELECT coalesce(max(number) + 1, 0) FROM distribution WHERE stream = ? AND kind = ? AND level = ?"
        number = MERGED * connection.execute(query, (stream, window.kind, lower)).fetchone()[0]
    return frames


HEADER = ("layer", "norm", "update ratio", "gradient", "zeros", "largest output", "entropy", "alert")


def alerts_by_layer(alerts: Iterable[Values]) -> dict[str, list[str]]:
    """Return the names of alerts by the layer, or other key, that they are about."""
    found: dict[str, dict[str, None]] = {}
    for one in alerts:
        found.setdefault(one["labels"].get("key", ""), {})[one["alert"]] = None
    return {key: list(names) for key, names in found.items()}


def ranked(kinds: Values, alerts: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """Return the layers that stand out most first.

    Args:
        kinds: What `history.read.layers.newest` has as ``kinds``.
        alerts: Names of alerts by layer; layers with one come first, then those without a gradient, then those whose update
            ratio is furthest from the median of all, whose largest output furthest above it, or whose entropy furthest below.

    Returns:
        ``layer``, ``norm``, ``update_ratio``; of the gradient ``gradient``, its norm, and ``zeros``, the share of zeros; of
        the output ``largest``; of attention ``entropy``, the lowest of the layer's heads; None for what was not measured; and
        ``alerts``.
    """
    weights, gradients, outputs, heads = (
        kinds[kind]["layers"] if kind in kinds else {} for kind in ("weights", "gradients", "activations", "attention")
    )
    entropies = dict(_entropies(heads))
    ratios = {name: one.get("update_ratio") for name, one in weights.items() if one.get("update_ratio") != "nan"}
    moved = _apart(ratios)
    large = _apart({name: one.get("largest") for name, one in outputs.items()})
    spread = _apart(entropies)

    def order(name: str) -> tuple[bool, bool, float]:
        apart = max(abs(moved.get(name, 0.0)), large.get(name, 0.0), -spread.get(name, 0.0))
        return name not in alerts, gradients.get(name, {}).get("norm", inf) != 0, -apart

    return [
        {
            "layer": name,
            "norm": weights.get(name, {}).get("norm"),
            "update_ratio": ratios.get(name),
            "gradient": gradients.get(name, {}).get("norm"),
            "zeros": gradients.get(name, {}).get("zeros"),
            "largest": outputs.get(name, {}).get("largest"),
            "entropy": entropies.get(name),
            "alerts": alerts.get(name, []),
        }
        for name in sorted(dict.fromkeys([*weights, *gradients, *outputs, *entropies]), key=order)
    ]


def row(layer: Values) -> tuple[str, ...]:
    """Return the cells of a layer for a table with `HEADER`."""
    *values, alerts = list(layer.values())[1:]
    return shown(layer["layer"]), *map(number, values), shown(", ".join(alerts))


def _entropies(heads: Mapping[str, Values]) -> Iterator[tuple[str, float]]:
    """Yield the lowest entropy of the heads of each layer."""
    lowest: dict[str, float] = {}
    for head, one in heads.items():
        if isinstance(one["entropy"], int | float):
            layer = head.rpartition("/")[0]
            lowest[layer] = min(lowest.get(layer, inf), one["entropy"])
    yield from lowest.items()


def _apart(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the decimal logarithm of each positive value as a multiple of their median."""
    positive = {name: value for name, value in values.items() if isinstance(value, int | float) and 0 < value < inf}
    usual = median(positive.values()) if positive else 1.0
    return {name: log10(value / usual) for name, value in positive.items()}
