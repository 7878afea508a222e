"""Writes a run with all of its samples, or a part of them, as CSV, JSON or JSON lines, a little at a time.

Each read is a short transaction, so that the WAL of a history that is written meanwhile stays small. What is told of
the run is what its samples do not tell: its last step and loss, and what was trimmed of it, are left out. Events and
alerts are told whole, whatever part of the samples is chosen.

The lines of CSV and JSON lines are pushes: values that share rank, step and time. Keys stand in the order in which they
began. Numbers are written so that they are read back to the last bit; NaN and infinities as ``nan``, ``inf``, ``-inf``.
"""

from __future__ import annotations

import csv
import io
import json
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from trackside_daemon.history.files.merging import merge
from trackside_daemon.history.read import reader, series
from trackside_daemon.history.read.series import EVERYTHING, LogTail, Readable, StoredSeries, Window, cut, find
from trackside_daemon.history.record.packing import decode_axis
from trackside_daemon.history.schema import BLOCK_BITS

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trackside_daemon.history.files.merging import Chunk

Format = Literal["csv", "json", "jsonl"]
FORMATS: tuple[Format, ...] = get_args(Format)
COLUMNS = ("attempt", "rank", "step", "time")
"""The first columns of our CSV; a key each are those behind them."""

DERIVED = frozenset({"step", "loss", "trimmed"})
CHUNK_BYTES = 64 * 1024


class Selection(NamedTuple):
    """What of a run's samples is meant.

    Attributes:
        keys: Only these; *ranks* likewise; empty for all.
        attempt: Only this; None for all.
        window: Only what is in it.
    """

    keys: tuple[str, ...] = ()
    ranks: frozenset[int] = frozenset()
    attempt: int | None = None
    window: Window = EVERYTHING


ALL = Selection()


class _Rank(NamedTuple):
    """The series of a rank of an attempt that have samples left, in the order in which they began."""

    attempt: int
    rank: int
    series: list[StoredSeries]


def export(database: Readable, uid: str, form: Format, part: Selection = ALL) -> Iterator[bytes]:
    """The run, in pieces of any length.

    Args:
        database: Read in short transactions while the pieces are asked for.
        uid: The run's id.
        form: One of `FORMATS`.
        part: What of its samples; CSV has a column for each key of it, also where the window has none.

    Raises:
        UnknownRunError: There is no such run.
        ValueError: A block is damaged; some pieces may have been given by then.
    """
    with database.reading() as connection:
        run = {name: value for name, value in reader.head(connection, uid).items() if name not in DERIVED}
    write: dict[Format, Callable[[Readable, dict[str, Any], Selection], Iterator[str]]] = {
        "csv": _csv,
        "json": _json,
        "jsonl": _jsonl,
    }
    return _gathered(write[form](database, run, part))


def count(database: Readable, uid: str, part: Selection = ALL) -> int:
    """How many samples an export of the run has; of one that is written meanwhile, about."""
    total = 0
    with database.reading() as connection:
        streams = _streams(connection, uid, part)
    for stream, _, _ in streams:
        with database.reading() as connection:
            tail = LogTail(connection, stream)
            inside: dict[int, int] = {}
            for one in find(connection, stream, tail, part.keys or None):
                total += _packed(connection, one, part.window, inside) if one.id else 0
                total += len(cut(*tail.read(one), part.window)[0])
    return total


def missing_keys(database: Readable, uid: str, part: Selection) -> list[str] | None:
    """The keys of a part that nothing of the run has; None when the part has no rank at all."""
    with database.reading() as connection:
        streams = _streams(connection, uid, part)
    left = dict.fromkeys(part.keys)
    for stream, _, _ in streams if left else ():
        with database.reading() as connection:
            for one in find(connection, stream, LogTail(connection, stream), list(left)):
                del left[one.key]
    return list(left) if streams else None


def _packed(connection: sqlite3.Connection, one: StoredSeries, window: Window, inside: dict[int, int]) -> int:
    """How many samples of a series are in blocks; *inside* remembers it of each axis at an edge of the window."""
    ids = (one.id << BLOCK_BITS, one.id + 1 << BLOCK_BITS)
    left = "SELECT coalesce(sum(count), 0) FROM block WHERE id >= ? AND id < ? AND data NOT NULL"
    if window.whole:
        return int(connection.execute(left, ids).fetchone()[0])
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
            inside[axis] = sum(low <= at <= high for at in decode_axis(data)[by == "time"])
        total += inside[axis]
    return total


def _gathered(texts: Iterable[str]) -> Iterator[bytes]:
    waiting: list[str] = []
    size = 0
    for text in texts:
        waiting.append(text)
        size += len(text)
        if size >= CHUNK_BYTES:
            yield "".join(waiting).encode()
            waiting, size = [], 0
    if waiting:
        yield "".join(waiting).encode()


def _csv(database: Readable, run: dict[str, Any], part: Selection) -> Iterator[str]:
    ranks = list(_ranks(database, run["id"], part))
    keys = list(dict.fromkeys(one.key for rank in ranks for one in rank.series))
    header = io.StringIO()
    unusual = any(not key.isprintable() for key in keys)  # the module leaves a lone CR bare
    quoted = csv.writer(header, lineterminator="\n", quoting=csv.QUOTE_ALL if unusual else csv.QUOTE_MINIMAL)
    quoted.writerow([*COLUMNS, *keys])
    yield header.getvalue()
    columns = {key: number for number, key in enumerate(keys)}
    for attempt, rank, found in ranks:
        begin = f"{attempt},{rank},"
        place = [columns[one.key] for one in found]
        for step, time, places, values in merge(_all_samples(database, found, part.window)):
            cells = [""] * len(keys)
            for number, value in zip(places, values, strict=True):
                cells[place[number]] = repr(value)
            yield f"{begin}{step},{_seconds(time)},{','.join(cells)}\n"


def _jsonl(database: Readable, run: dict[str, Any], part: Selection) -> Iterator[str]:
    yield f"{_dumps({'kind': 'run', **run})}\n"
    for attempt, rank, found in _ranks(database, run["id"], part):
        begin = f'{{"kind":"samples","attempt":{attempt},"rank":{rank},"step":'
        keys = [f"{json.dumps(one.key)}:" for one in found]
        for step, time, places, values in merge(_all_samples(database, found, part.window)):
            pushed = ",".join([keys[number] + _number(value) for number, value in zip(places, values, strict=True)])
            yield f'{begin}{step},"time":{time / 1e6!r},"values":{{{pushed}}}}}\n'
    for event in _events(database, run["id"]):
        yield f"{_dumps({'kind': 'event', 'event': event.pop('kind'), **event})}\n"
    for alert in _alerts(database, run["id"]):
        yield f"{_dumps({'kind': 'alert', **alert})}\n"


def _json(database: Readable, run: dict[str, Any], part: Selection) -> Iterator[str]:
    yield f'{{"run": {_dumps(run)},\n"series": ['
    between = "\n"
    for attempt, rank, found in _ranks(database, run["id"], part):
        for one, chunks in zip(found, _all_samples(database, found, part.window), strict=True):
            yield f'{between}{{"attempt":{attempt},"rank":{rank},"key":{json.dumps(one.key)},"points":['
            yield from _points(chunks)
            yield "]}"
            between = ",\n"
    events = ",".join(f"\n{_dumps(event)}" for event in _events(database, run["id"]))
    alerts = ",".join(f"\n{_dumps(alert)}" for alert in _alerts(database, run["id"]))
    yield f'],\n"events": [{events}],\n"alerts": [{alerts}]}}\n'


def _points(chunks: Iterable[Chunk]) -> Iterator[str]:
    between = ""
    for steps, times, values in chunks:
        points = [
            f"[{step},{time / 1e6!r},{_number(value)}]" for step, time, value in zip(steps, times, values, strict=True)
        ]
        yield between + ",".join(points)
        between = ","


def _all_samples(database: Readable, found: Sequence[StoredSeries], window: Window) -> list[Iterator[Chunk]]:
    """The samples of each of a rank's series that are in a window."""
    tail = LogTail(None, found[0].stream) if found else None
    return [series.samples(database, one, tail, window) for one in found]


def _streams(connection: sqlite3.Connection, uid: str, part: Selection) -> list[tuple[int, int, int]]:
    found = connection.execute(
        "SELECT stream.id, stream.attempt, stream.rank FROM stream JOIN run ON run.id = stream.run "
        "WHERE run.uid = ? AND NOT run.deleted ORDER BY stream.attempt, stream.rank",
        (uid,),
    )
    return [
        (stream, attempt, rank)
        for stream, attempt, rank in found
        if part.attempt in (None, attempt) and (not part.ranks or rank in part.ranks)
    ]


def _ranks(database: Readable, uid: str, part: Selection) -> Iterator[_Rank]:
    with database.reading() as connection:
        streams = _streams(connection, uid, part)
    for stream, attempt, rank in streams:
        with database.reading() as connection:
            tail = LogTail(connection, stream)
            axes: dict[int, tuple[int, int]] = {}
            begun = [
                (_first(connection, one, tail, axes), one) for one in find(connection, stream, tail, part.keys or None)
            ]
        left = [(first, one) for first, one in begun if first is not None]
        left.sort(key=lambda pair: pair[0])
        yield _Rank(attempt, rank, [one for _, one in left])


def _first(
    connection: sqlite3.Connection, one: StoredSeries, tail: LogTail, axes: dict[int, tuple[int, int]]
) -> tuple[int, int] | None:
    """Time and step of the first sample that is left of a series; what *axes* begin with is remembered there."""
    found = connection.execute(
        "SELECT axis FROM block WHERE id >= (SELECT id << 24 | trimmed FROM series WHERE id = ?) AND id < ? "
        "AND data NOT NULL ORDER BY id LIMIT 1",
        (one.id, one.id + 1 << BLOCK_BITS),
    ).fetchone()
    if found is None:
        steps, times, _ = tail.read(one)
        return (times[0], steps[0]) if len(steps) else None
    if found[0] not in axes:
        steps, times = decode_axis(connection.execute("SELECT data FROM axis WHERE id = ?", found).fetchone()[0])
        axes[found[0]] = (times[0], steps[0])
    return axes[found[0]]


def _events(database: Readable, uid: str) -> Iterator[dict[str, Any]]:
    with database.reading() as connection:
        found = reader.events(connection, uid, -1)
    return _own(found)


def _alerts(database: Readable, uid: str) -> Iterator[dict[str, Any]]:
    with database.reading() as connection:
        found = reader.alerts(connection, reader.AlertFilter(uid, limit=-1))
    return _own(found)


def _own(found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Without the run, which is the file's."""
    return ({name: value for name, value in one.items() if name not in {"id", "run", "name"}} for one in found)


def _seconds(time: int) -> str:
    """Microseconds as seconds with 6 digits."""
    whole, rest = divmod(abs(time), 1_000_000)
    return f"{'-' if time < 0 else ''}{whole}.{rest:06d}"


def _number(value: float) -> str:
    text = repr(value)
    return f'"{text}"' if "n" in text else text  # of floats, only nan, inf and -inf have one


def _dumps(value: Any) -> str:
    """Compact JSON, in which NaN and infinities are texts."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if not isinstance(value, float) or isfinite(value) else repr(value)
