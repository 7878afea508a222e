"""Export a run, or a part of its samples, as CSV, JSON or JSON lines, in small pieces.

The run's data come without its last step, its last loss and what was trimmed. Events, alerts and captures are
always complete; the files of captures are apart.

The lines of CSV and JSON lines are pushes: values of one rank, step and time. Keys are in the order in which they began.
Pushes of more than `GROUP` keys are split, so that a run of a million keys needs no more memory than one of `GROUP`.
Numbers are written so that reading restores every bit; NaN and infinities are ``nan``, ``inf`` and ``-inf``.
"""

import json
import sqlite3
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from trackside_daemon.history.capture_rows import captures
from trackside_daemon.history.codec import decode_axis
from trackside_daemon.history.files.layer_lines import layer_lines
from trackside_daemon.history.files.media_lines import media_lines
from trackside_daemon.history.files.merging import Chunk, Line, merge
from trackside_daemon.history.files.selection import ALL, Selection, machine_series, selected_streams
from trackside_daemon.history.media.index import history_of
from trackside_daemon.history.read import alert_reader, reader
from trackside_daemon.history.read.series import (
    LogTail,
    Readable,
    StoredSeries,
    Window,
    by_id,
    find,
    reload,
    samples,
)
from trackside_daemon.history.schema import BLOCK_BITS
from trackside_daemon.history.series_name import series_labels
from trackside_daemon.model.capture import as_json
from trackside_daemon.model.metric import json_value
from trackside_daemon.model.text import csv_line, rfc3339

Format = Literal["csv", "json", "jsonl", "long"]
FORMATS: tuple[Format, ...] = get_args(Format)[:3]  # those that an import reads
COLUMNS = ("attempt", "rank", "step", "time")  # the first columns of our CSV; one column per key follows

DERIVED = frozenset({"step", "loss", "trimmed"})
CHUNK_BYTES = 64 * 1024
GROUP = 4096  # series of a rank that are read at once
MAX_COLUMNS = 16_384  # keys of a CSV file, as many as spreadsheets have columns
PAGE = 256  # events or alerts that are read at once


class TooManyKeysError(Exception):
    """The run has more keys than CSV has columns."""


class _Rank(NamedTuple):
    """At most `GROUP` series, with samples left, of a rank of an attempt, in the order in which they began."""

    attempt: int
    rank: int
    series: list[StoredSeries]


def export(database: Readable, uid: str, form: Format, selection: Selection = ALL) -> Iterator[bytes]:
    """Return the exported run in pieces of any length.

    Args:
        database: Read while the pieces are iterated over.
        uid: The run's id.
        form: One of `FORMATS`.
        selection: Part of the samples; CSV has a column for each selected key, even without samples in the window.

    Raises:
        UnknownRunError: There is no such run.
        TooManyKeysError: There are more keys than CSV has columns.
        ValueError: A block is damaged; this may happen after some pieces.
    """
    # Each read is a short transaction, so that the WAL of a history that is written meanwhile stays small.
    with database.reading() as connection:
        run = {name: value for name, value in reader.head(connection, uid).items() if name not in DERIVED}
    write: dict[Format, Callable[[Readable, dict[str, Any], Selection], Iterator[str]]] = {
        "csv": _csv,
        "json": _json,
        "jsonl": _jsonl,
        "long": _long,
    }
    return _encode_chunks(write[form](database, run, selection))


def _encode_chunks(texts: Iterable[str]) -> Iterator[bytes]:
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size >= CHUNK_BYTES:
            yield "".join(chunk).encode()
            chunk = []
            size = 0
    if chunk:
        yield "".join(chunk).encode()


def _csv(database: Readable, run: dict[str, Any], selection: Selection) -> Iterator[str]:
    columns: dict[str, int] = {}
    parts: list[tuple[str, Sequence[StoredSeries], Iterator[Line]]] = []

    def add(place: str, series: Sequence[StoredSeries], lines: Iterator[Line]) -> None:
        for one in series:
            columns.setdefault(one.key, len(columns))
        if len(columns) > MAX_COLUMNS:
            raise TooManyKeysError(
                f"run {run['id']!r} has more than {MAX_COLUMNS} keys, too many for a CSV file; select keys, or export it "
                "as jsonl"
            )
        parts.append((place, series, lines))

    for attempt, rank, series in _ranks(database, run["id"], selection, MAX_COLUMNS):
        add(f"{attempt},{rank}", series, merge(_all_samples(database, series, selection.window)))
    if selection.resources:
        machine = machine_series(database, run["id"], selection.window)
        add("", machine.series, machine.lines(database))
    return _csv_lines(parts, columns)


def _csv_lines(
    parts: Iterable[tuple[str, Sequence[StoredSeries], Iterator[Line]]], columns: Mapping[str, int]
) -> Iterator[str]:
    """Yield the header, and a line for each push, then for each time of the machine, which has no attempt, rank and step."""
    keys = list(columns)
    yield csv_line([*COLUMNS, *keys])
    for place, part, lines in parts:
        column = [columns[series.key] for series in part]
        for step, time, places, values in lines:
            cells = [""] * len(keys)
            for number, value in zip(places, values, strict=True):
                cells[column[number]] = repr(value)  # the shortest text from which the same float is read
            begin = f"{place},{step}" if place else ",,"
            yield f"{begin},{_seconds(time)},{','.join(cells)}\n"


def _long(database: Readable, run: dict[str, Any], selection: Selection) -> Iterator[str]:
    """Yield a line of CSV for each value, with a column for each label that a series of the machine has."""
    machine = machine_series(database, run["id"], selection.window) if selection.resources else None
    of_series = [series_labels(series.key) for series in machine.series] if machine else []
    labels = sorted({name for one in of_series for name in one} - set(COLUMNS))
    yield csv_line(["time", "metric", *COLUMNS[:3], *labels, "value"])
    nothing = "," * len(labels)
    for attempt, rank, series in _ranks(database, run["id"], selection, GROUP):
        keys = [csv_line([one.key]).rstrip("\n") for one in series]
        for step, time, places, values in merge(_all_samples(database, series, selection.window)):
            moment = rfc3339(time / 1e6)
            for place, value in zip(places, values, strict=True):
                yield f"{moment},{keys[place]},{attempt},{rank},{step}{nothing},{value!r}\n"
    if machine:
        heads = [
            csv_line([series.key.partition("{")[0], *(own.get(name, "") for name in (*COLUMNS[:3], *labels))])
            for series, own in zip(machine.series, of_series, strict=True)
        ]
        for _, time, places, values in machine.lines(database):
            moment = rfc3339(time / 1e6)
            for place, value in zip(places, values, strict=True):
                yield f"{moment},{heads[place].rstrip(chr(10))},{value!r}\n"


def _jsonl(database: Readable, run: dict[str, Any], selection: Selection) -> Iterator[str]:
    yield f"{_dumps({'kind': 'run', **run})}\n"
    for attempt, rank, rank_series in _ranks(database, run["id"], selection, GROUP):
        begin = f'{{"kind":"samples","attempt":{attempt},"rank":{rank},"step":'
        keys = [f"{json.dumps(series.key)}:" for series in rank_series]
        for step, time, places, values in merge(_all_samples(database, rank_series, selection.window)):
            pushed = ",".join([keys[number] + _number(value) for number, value in zip(places, values, strict=True)])
            yield f'{begin}{step},"time":{time / 1e6!r},"values":{{{pushed}}}}}\n'
    for layers in _layers(database, run["id"], selection):
        yield f"{_dumps({'kind': 'layers', **layers})}\n"
    for moment, measured in _machine_values(database, run["id"], selection):
        yield f'{{"kind":"resources","time":{moment},"values":{measured}}}\n'
    for event in _events(database, run["id"]):
        yield f"{_dumps({'kind': 'event', 'event': event.pop('kind'), **event})}\n"
    for alert in _alerts(database, run["id"]):
        yield f"{_dumps({'kind': 'alert', **alert})}\n"
    for capture in _captures(database, run["id"]):
        yield f"{_dumps({'kind': 'capture', 'capture': capture})}\n"
    for media in _media(database, run["id"], selection):
        yield f"{_dumps({'kind': 'media', **media})}\n"


def _layers(database: Readable, uid: str, selection: Selection) -> Iterator[dict[str, Any]]:
    for stream, attempt, rank in _selected(database, uid, selection):
        id_ = 0
        while id_ >= 0:
            with database.reading() as connection:
                lines = list(layer_lines(connection, stream, id_))
            for _, line in lines:
                yield {"attempt": attempt, "rank": rank, **line}
            id_ = lines[-1][0] if lines else -1


def _selected(database: Readable, uid: str, selection: Selection) -> list[tuple[int, int, int]]:
    """Return the streams whose distributions are exported: none with selected keys or a window."""
    if selection.keys or not selection.window.whole:
        return []
    with database.reading() as connection:
        return selected_streams(connection, uid, selection)


def _json(database: Readable, run: dict[str, Any], selection: Selection) -> Iterator[str]:
    yield f'{{"run": {_dumps(run)},\n"series": ['
    between = "\n"
    for attempt, rank, rank_series in _ranks(database, run["id"], selection, GROUP):
        for series, chunks in zip(rank_series, _all_samples(database, rank_series, selection.window), strict=True):
            yield f'{between}{{"attempt":{attempt},"rank":{rank},"key":{json.dumps(series.key)},"points":['
            yield from _points(chunks)
            yield "]}"
            between = ",\n"
    if selection.resources:
        yield '],\n"resources": ['
        for place, (time, values) in enumerate(_machine_values(database, run["id"], selection)):
            yield f'{"," if place else ""}\n{{"time":{time},"values":{values}}}'
    events = ",".join(f"\n{_dumps(event)}" for event in _events(database, run["id"]))
    alerts = ",".join(f"\n{_dumps(alert)}" for alert in _alerts(database, run["id"]))
    captures = ",".join(f"\n{_dumps(capture)}" for capture in _captures(database, run["id"]))
    yield f'],\n"events": [{events}],\n"alerts": [{alerts}],\n"captures": [{captures}]'
    between = ',\n"media": [\n'
    for media in _media(database, run["id"], selection):
        yield between + _dumps(media)
        between = ",\n"
    yield "]}\n" if between == ",\n" else "}\n"


def _media(database: Readable, uid: str, selection: Selection) -> Iterator[dict[str, Any]]:
    """Yield images, texts and tables: none with selected keys or a window."""
    if selection.keys or not selection.window.whole:
        return
    with database.reading() as connection:
        history = history_of(connection)
    yield from media_lines(history, uid)


def _machine_values(database: Readable, uid: str, selection: Selection) -> Iterator[tuple[str, str]]:
    """Yield time and values of the machine, as JSON."""
    if selection.resources:
        machine = machine_series(database, uid, selection.window)
        keys = [f"{json.dumps(series.key)}:" for series in machine.series]
        for _, time, places, values in machine.lines(database):
            pushed = ",".join([keys[number] + _number(value) for number, value in zip(places, values, strict=True)])
            yield repr(time / 1e6), f"{{{pushed}}}"


def _points(chunks: Iterable[Chunk]) -> Iterator[str]:
    between = ""
    for steps, times, values in chunks:
        points = [
            f"[{step},{time / 1e6!r},{_number(value)}]" for step, time, value in zip(steps, times, values, strict=True)
        ]
        yield between + ",".join(points)
        between = ","


def _all_samples(database: Readable, rank_series: Sequence[StoredSeries], window: Window) -> list[Iterator[Chunk]]:
    """Return an iterator over the samples in a window for each series of a rank."""
    tail = LogTail(None, rank_series[0].stream) if rank_series else None
    return [samples(database, series, tail, window) for series in rank_series]


def _ranks(database: Readable, uid: str, selection: Selection, size: int) -> Iterator[_Rank]:
    with database.reading() as connection:
        selected = selected_streams(connection, uid, selection)
    for stream, attempt, rank in selected:
        ids = array("q")
        fresh = []
        with database.reading() as connection:
            tail = LogTail(connection, stream)
            for series in find(connection, stream, tail, selection.keys or None):
                ids.append(series.id) if series.id else fresh.append(series)
        for first in range(0, len(ids) + len(fresh), size):
            unpacked = fresh[max(0, first - len(ids)) : max(0, first + size - len(ids))]
            with database.reading() as connection:
                tail.refresh(connection)
                axes: dict[int, tuple[int, int]] = {}
                group = [*by_id(connection, ids[first : first + size]), *(reload(connection, one) for one in unpacked)]
                begun = [(_first(connection, series, tail, axes), series) for series in group]
            remaining = [(begin, series) for begin, series in begun if begin is not None]
            remaining.sort(key=lambda pair: pair[0])
            yield _Rank(attempt, rank, [series for _, series in remaining])


def _first(
    connection: sqlite3.Connection, series: StoredSeries, tail: LogTail, axes: dict[int, tuple[int, int]]
) -> tuple[int, int] | None:
    """Return time and step of the first remaining sample of a series; *axes* caches those of axes."""
    row = connection.execute(
        "SELECT axis FROM block WHERE id >= (SELECT id << 24 | trimmed FROM series WHERE id = ?) AND id < ? "
        "AND data NOT NULL ORDER BY id LIMIT 1",
        (series.id, series.id + 1 << BLOCK_BITS),
    ).fetchone()
    if row is None:
        steps, times, _ = tail.read(series)
        return (times[0], steps[0]) if len(steps) else None
    if row[0] not in axes:
        steps, times = decode_axis(connection.execute("SELECT data FROM axis WHERE id = ?", row).fetchone()[0])
        axes[row[0]] = (times[0], steps[0])
    return axes[row[0]]


def _events(database: Readable, uid: str) -> Iterator[dict[str, Any]]:
    return _rows(database, uid, "SELECT id FROM event WHERE run = ? ORDER BY id", reader.event)


def _alerts(database: Readable, uid: str) -> Iterator[dict[str, Any]]:
    return _rows(database, uid, "SELECT id FROM alert WHERE run = ? ORDER BY started, id", alert_reader.alert)


def _captures(database: Readable, uid: str) -> list[dict[str, Any]]:
    """Return the captures of a run with their summaries."""
    with database.reading() as connection:
        return [as_json(capture) for capture in captures(connection, uid)]


def _rows(
    database: Readable, uid: str, query: str, read: Callable[[sqlite3.Connection, int], dict[str, Any] | None]
) -> Iterator[dict[str, Any]]:
    """Yield rows of a run, by the ids that *query* returns, without id, run and name."""
    with database.reading() as connection:
        run = connection.execute("SELECT id FROM run WHERE uid = ?", (uid,)).fetchone()
        ids = array("q", (id_ for (id_,) in connection.execute(query, run or (0,))))
    for first in range(0, len(ids), PAGE):
        with database.reading() as connection:
            rows = [row for id_ in ids[first : first + PAGE] if (row := read(connection, id_)) is not None]
        for row in rows:
            yield {name: value for name, value in row.items() if name not in {"id", "run", "name"}}


def _seconds(time: int) -> str:
    """Return microseconds as seconds with 6 decimal places."""
    whole, rest = divmod(abs(time), 1_000_000)
    return f"{'-' if time < 0 else ''}{whole}.{rest:06d}"


def _number(value: float) -> str:
    text = repr(value)
    return f'"{text}"' if "n" in text else text  # of floats, only nan, inf and -inf have one


def _dumps(value: Any) -> str:
    """Return compact JSON, with NaN and infinities as texts."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(json_value(value), separators=(",", ":"), allow_nan=False)
