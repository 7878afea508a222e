"""Writes a run with all of its samples as CSV, JSON or JSON lines, a little at a time.

Each read is a short transaction, so that the WAL of a history that is written meanwhile stays small. What is told of
the run is what its samples do not tell: its last step and loss, and what was trimmed of it, are left out.

The lines of CSV and JSON lines are pushes: values that share rank, step and time. Keys stand in the order in which they
began. Numbers are written so that they are read back to the last bit; NaN and infinities as ``nan``, ``inf``, ``-inf``.
"""

from __future__ import annotations

import csv
import io
import json
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from trackside_daemon.history import reader, series
from trackside_daemon.history.files.merging import merge
from trackside_daemon.history.packing import decode_axis
from trackside_daemon.history.schema import BLOCK_BITS
from trackside_daemon.history.series import Readable, Series, Tail, find

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trackside_daemon.history.files.merging import Chunk

Form = Literal["csv", "json", "jsonl"]
FORMS: tuple[Form, ...] = get_args(Form)
COLUMNS = ("attempt", "rank", "step", "time")
"""The first columns of our CSV; a key each are those behind them."""

DERIVED = frozenset({"metrics", "step", "loss", "trimmed"})
CHUNK_BYTES = 64 * 1024


class _Rank(NamedTuple):
    """The series of a rank of an attempt that have samples left, in the order in which they began."""

    attempt: int
    rank: int
    series: list[Series]


def export(database: Readable, uid: str, form: Form) -> Iterator[bytes]:
    """The run, in pieces of any length.

    Args:
        database: Read in short transactions while the pieces are asked for.
        uid: The run's id.
        form: One of `FORMS`.

    Raises:
        UnknownRunError: There is no such run.
        ValueError: A block is damaged; some pieces may have been given by then.
    """
    with database.reading() as connection:
        run = {name: value for name, value in reader.run(connection, uid).items() if name not in DERIVED}
    write: dict[Form, Callable[[Readable, dict[str, Any]], Iterator[str]]] = {
        "csv": _csv,
        "json": _json,
        "jsonl": _jsonl,
    }
    return _gathered(write[form](database, run))


def count(database: Readable, uid: str) -> int:
    """How many samples an export of the run has; of one that is written meanwhile, about."""
    total = 0
    with database.reading() as connection:
        streams = _streams(connection, uid)
    for stream, _, _ in streams:
        with database.reading() as connection:
            tail = Tail(connection, stream)
            for one in find(connection, stream, tail):
                left = "SELECT coalesce(sum(count), 0) FROM block WHERE id >= ? AND id < ? AND data NOT NULL"
                ids = (one.id << BLOCK_BITS, one.id + 1 << BLOCK_BITS)
                total += connection.execute(left, ids).fetchone()[0] if one.id else 0
                total += len(tail.read(one)[0])
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


def _csv(database: Readable, run: dict[str, Any]) -> Iterator[str]:
    ranks = list(_ranks(database, run["id"]))
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
        for step, time, places, values in merge(_all_samples(database, found)):
            cells = [""] * len(keys)
            for number, value in zip(places, values, strict=True):
                cells[place[number]] = repr(value)
            yield f"{begin}{step},{_seconds(time)},{','.join(cells)}\n"


def _jsonl(database: Readable, run: dict[str, Any]) -> Iterator[str]:
    yield f"{_dumps({'kind': 'run', **run})}\n"
    for attempt, rank, found in _ranks(database, run["id"]):
        begin = f'{{"kind":"samples","attempt":{attempt},"rank":{rank},"step":'
        keys = [f"{json.dumps(one.key)}:" for one in found]
        for step, time, places, values in merge(_all_samples(database, found)):
            pushed = ",".join([keys[number] + _number(value) for number, value in zip(places, values, strict=True)])
            yield f'{begin}{step},"time":{time / 1e6!r},"values":{{{pushed}}}}}\n'
    for event in _events(database, run["id"]):
        yield f"{_dumps({'kind': 'event', 'event': event.pop('kind'), **event})}\n"
    for alert in _alerts(database, run["id"]):
        yield f"{_dumps({'kind': 'alert', **alert})}\n"


def _json(database: Readable, run: dict[str, Any]) -> Iterator[str]:
    yield f'{{"run": {_dumps(run)},\n"series": ['
    between = "\n"
    for attempt, rank, found in _ranks(database, run["id"]):
        for one, chunks in zip(found, _all_samples(database, found), strict=True):
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


def _all_samples(database: Readable, found: Sequence[Series]) -> list[Iterator[Chunk]]:
    """The samples of each of a rank's series."""
    tail = Tail(None, found[0].stream) if found else None
    return [series.samples(database, one, tail) for one in found]


def _streams(connection: sqlite3.Connection, uid: str) -> list[tuple[int, int, int]]:
    return connection.execute(
        "SELECT stream.id, stream.attempt, stream.rank FROM stream JOIN run ON run.id = stream.run "
        "WHERE run.uid = ? AND NOT run.deleted ORDER BY stream.attempt, stream.rank",
        (uid,),
    ).fetchall()


def _ranks(database: Readable, uid: str) -> Iterator[_Rank]:
    with database.reading() as connection:
        streams = _streams(connection, uid)
    for stream, attempt, rank in streams:
        with database.reading() as connection:
            tail = Tail(connection, stream)
            axes: dict[int, tuple[int, int]] = {}
            begun = [(_first(connection, one, tail, axes), one) for one in find(connection, stream, tail)]
        left = [(first, one) for first, one in begun if first is not None]
        left.sort(key=lambda pair: pair[0])
        yield _Rank(attempt, rank, [one for _, one in left])


def _first(
    connection: sqlite3.Connection, one: Series, tail: Tail, axes: dict[int, tuple[int, int]]
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
        found = reader.alerts(connection, uid, -1)
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
