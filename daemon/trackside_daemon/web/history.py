"""The pages of `/api/v1` that are about runs: their list, their series, what happened to them; and what changes them."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import sqlite3
import time
from contextlib import suppress
from math import inf
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from trackside_daemon.history import changing, charts, reader, series
from trackside_daemon.history.charts import POINTS
from trackside_daemon.history.files.export import FORMS, count, export
from trackside_daemon.history.files.importing import ImportingError, Reading, write
from trackside_daemon.history.files.items import FormError
from trackside_daemon.history.reader import Filter, UnknownRunError
from trackside_daemon.history.series import Series, Tail, Window
from trackside_daemon.metric import json_number
from trackside_daemon.training.families import ENDED
from trackside_daemon.web import api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.datastructures import QueryParams
    from starlette.requests import Request

    from trackside_daemon.history.database import Database
    from trackside_daemon.history.reader import Found
    from trackside_daemon.history.store import Store
    from trackside_daemon.history.writer import Writer
    from trackside_daemon.state import State

TYPES = {"csv": "text/csv", "json": "application/json", "jsonl": "application/jsonl"}
MOST_POINTS = 20_000
MOST_SERIES = 1000
MOST_BUCKETS = 200_000
"""One question answers at most so many series, and buckets of all of them together."""

CHANGE_SECONDS = 15.0
"""Whoever changes something waits for the writer so long."""

IMPORTS = 4
"""So many files are read at once; others wait, and hold no thread."""

IMPORT_BYTES = 16 * 1024**3
"""A larger file is not taken."""

_FAR = 9e12
"""Seconds whose microseconds fit into a column."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


class HistoryPages:
    """Answers from the history, and for runs that live from the state too.

    Args:
        state: What is on ``/metrics``.
        database: Is read, in threads of their own.
        writer: Makes the changes.
    """

    def __init__(self, state: State, database: Database, writer: Writer) -> None:
        self._state = state
        self._database = database
        self._writer = writer
        self._importing = asyncio.Semaphore(IMPORTS)

    async def runs(self, request: Request) -> Response:
        """The runs, the newest first; those on ``/metrics`` with the numbers of their ranks."""
        asked = request.query_params
        wanted = Filter(
            name=asked.get("name", ""),
            tag=asked.get("tag", ""),
            state=asked.get("state", ""),
            since=_number(asked, "since"),
            until=_number(asked, "until"),
            limit=_count(asked, "limit", 0, 10_000_000),
        )
        live = api.runs(self._state, time.monotonic())
        return _json(
            {"runs": await self._read(lambda connection: _merged(reader.runs(connection, wanted), live, wanted))}
        )

    async def run(self, request: Request) -> Response:
        """All that is known of one run but its samples."""
        return _json(await self._read(lambda connection: reader.run(connection, _resolve(connection, request))))

    async def series(self, request: Request) -> Response:
        """Series of one or more runs: buckets of each, or with ``points=0`` every sample."""
        asked = request.query_params
        names = [request.path_params["id"]] if "id" in request.path_params else asked.getlist("run")
        if not names:
            raise HTTPException(400, "run: say which, by its id or name; it may be repeated")
        points = _count(asked, "points", POINTS, MOST_POINTS)
        window = _window(asked)
        found = await self._read(lambda connection: _find(connection, names, asked))
        if not points:
            return StreamingResponse(_stream(self._database, found, window), media_type="application/json")
        points = min(points, max(2, MOST_BUCKETS // max(1, len(found))))
        return _json({"series": await self._in_thread(lambda: _charts(self._database, found, window, points))})

    async def one_series(self, request: Request) -> Response:
        """One key of a run, its attempts one behind the other: buckets, or with ``points=0`` every sample."""
        asked = request.query_params
        if len(asked.getlist("key")) != 1:
            raise HTTPException(400, "key: say which one; for several, ask /api/v1/series")
        points = _count(asked, "points", POINTS, MOST_POINTS)
        window = _window(asked)
        found = await self._read(lambda connection: _find(connection, [request.path_params["id"]], asked))
        if not found:
            raise HTTPException(404, f"key {asked['key']!r}: run {request.path_params['id']!r} has none of that name")
        if not points:
            return StreamingResponse(_stream_points(self._database, found, window), media_type="application/json")
        points = max(1, points // len(found))
        charts = await self._in_thread(lambda: _charts(self._database, found, window, points))
        return _json({"key": asked["key"], "points": [point for chart in charts for point in chart["points"]]})

    async def events(self, request: Request) -> Response:
        """What happened, oldest first."""
        return await self._listed(request, "events", reader.events)

    async def alerts(self, request: Request) -> Response:
        """The alerts that fire or have fired, oldest first."""
        return await self._listed(request, "alerts", reader.alerts)

    async def pin(self, request: Request) -> Response:
        """Keep a run whatever the bounds are, or no longer: ``{"pinned": true}``."""
        try:
            pinned = _decode(await request.body(), type=dict[str, bool])["pinned"]
        except (msgspec.MsgspecError, KeyError):
            raise HTTPException(400, 'the body is {"pinned": true} or {"pinned": false}') from None
        uid = await self._read(lambda connection: _resolve(connection, request))
        await self._change(lambda store: changing.pin(store, uid, pinned=pinned))
        return _json({"pinned": pinned})

    async def delete(self, request: Request) -> Response:
        """Delete a run that has ended, with all its samples."""
        uid = await self._read(lambda connection: _resolve(connection, request))
        await self._change(lambda store: changing.delete(store, uid, live=False))
        return _json({"deleted": uid})

    async def export(self, request: Request) -> Response:
        """All samples of a run as a file, streamed; ``X-Trackside-Samples`` says how many there are."""
        form = request.query_params.get("format", "csv")
        if form not in FORMS:
            raise HTTPException(400, f"format: {', '.join(FORMS)}, not {form!r}")
        uid = await self._read(lambda connection: _resolve(connection, request))
        headers = {"X-Trackside-Samples": str(await run_in_threadpool(count, self._database, uid))}
        return StreamingResponse(export(self._database, uid, form), headers=headers, media_type=TYPES[form])

    async def import_(self, request: Request) -> Response:
        """Bring a run in from the file that is the request's body."""
        asked = request.query_params
        called = {"id": asked.get("id", ""), "name": asked.get("name", "")}
        name = unquote(request.headers.get("x-file-name", "")) or "body"
        self._refuse_when_stuck()
        with await self._body(request) as file:
            try:
                async with self._importing:
                    taken = await run_in_threadpool(
                        lambda: write(self._writer, Reading(file, name, **called, begin=time.time()))
                    )
            except FormError as error:
                raise HTTPException(400, str(error)) from None
            except ImportingError as error:
                raise HTTPException(409, str(error)) from None
            except (ArithmeticError, RecursionError, ValueError) as error:
                raise HTTPException(400, f"{name}: it holds what no history can: {error}") from None
        return _json({"run": taken.run, "samples": taken.samples, "notes": taken.notes})

    async def _listed(
        self, request: Request, what: str, read: Callable[[Any, str, int], list[dict[str, Any]]]
    ) -> Response:
        asked = request.query_params
        limit = _count(asked, "limit", 1000, 100_000)

        def look(connection: Any) -> list[dict[str, Any]]:
            return read(connection, _known(connection, asked["run"]) if asked.get("run") else "", limit)

        return _json({what: await self._read(look)})

    async def _body(self, request: Request) -> io.BufferedReader:
        """What is sent, in a file without a name beside the history: nothing is left of it, whatever happens."""
        directory = self._database.path.parent
        try:
            file = TemporaryFile(dir=directory)  # noqa: SIM115  the caller closes it
            try:
                most = min(IMPORT_BYTES, shutil.disk_usage(directory).free // 2)
                size = 0
                async for piece in request.stream():
                    size += len(piece)
                    _fits(size, most, directory)
                    await run_in_threadpool(file.write, piece)
                await run_in_threadpool(file.seek, 0)
            except BaseException:
                with suppress(OSError):  # what could not be written is tried again
                    file.close()
                raise
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise HTTPException(507, f"{directory}: the file cannot be kept there while it is read: {reason}") from None
        except ClientDisconnect:
            raise HTTPException(400, "the file broke off") from None
        return io.BufferedReader(file.detach())

    async def _read(self, look: Callable[[Any], Any]) -> Any:
        """What *look* finds in one moment's view of the history."""

        def read() -> Any:
            with self._database.reading() as connection:
                return look(connection)

        return await self._in_thread(read)

    async def _in_thread(self, read: Callable[[], Any]) -> Any:
        """What *read* finds in the history."""
        try:
            return await run_in_threadpool(read)
        except UnknownRunError as error:
            raise HTTPException(404, str(error)) from None
        except (ValueError, sqlite3.Error) as error:  # a block that is damaged, or the file
            raise HTTPException(500, f"{self._database.path}: {error}") from error

    async def _change(self, change: Callable[[Store], Any]) -> Any:
        """Have the writer change something, and wait until it is done, or for `CHANGE_SECONDS`."""
        self._refuse_when_stuck()
        future = asyncio.wrap_future(self._writer.call(change))
        await asyncio.wait([future], timeout=CHANGE_SECONDS)
        if not future.done():
            future.cancel()
            raise HTTPException(503, "the history is busy; the change may still be made, so look before you ask again")
        try:
            return future.result()
        except asyncio.CancelledError:
            raise HTTPException(503, "the daemon stops, and the change was not made") from None
        except ValueError as error:
            raise HTTPException(409, str(error)) from None
        except sqlite3.Error as error:
            raise HTTPException(503, f"the history cannot be written: {error}") from None

    def _refuse_when_stuck(self) -> None:
        if self._writer.stuck:
            raise HTTPException(503, "the history cannot be written at the moment; the log says why")


def _fits(size: int, most: int, directory: Path) -> None:
    if size > most:
        raise HTTPException(
            507, f"{directory}: there is room for a file of {most / 1e6:.0f} MB; make more, or import it in parts"
        )


def _merged(kept: list[dict[str, Any]], live: dict[str, Any], wanted: Filter) -> list[dict[str, Any]]:
    """The list, with what the page says of runs that are on it; those that are not kept yet come first."""
    on_page = {run["id"]: run for run in live["runs"]}
    for run in kept:
        current = on_page.pop(run["id"], None)
        if current is None or current["attempt"] != run["attempt"]:
            run["ranks"] = []
            continue
        run.update(current)
        newest = [rank for rank in current["ranks"] if "step" in rank]
        if newest:
            run["step"] = max(int(rank["step"]) for rank in newest)
            run["loss"] = newest[0].get("loss")
    everything = not any((wanted.name, wanted.tag, wanted.state, wanted.since, wanted.until))
    fresh = [run for run in on_page.values() if run["state"] not in ENDED]
    return [*fresh, *kept] if everything else kept


def _known(connection: Any, name: str) -> str:
    return reader.resolve(connection, name)


def _resolve(connection: Any, request: Request) -> str:
    return _known(connection, request.path_params["id"])


def _find(connection: Any, names: list[str], asked: QueryParams) -> list[Found]:
    """The series that a question means."""
    keys = asked.getlist("key") or None
    ranks = asked.getlist("rank")
    try:
        wanted = None if not ranks else () if ranks == ["all"] else [_whole(rank) for rank in ranks]
        attempt = _whole(asked["attempt"]) if "attempt" in asked else None
    except ValueError:
        raise HTTPException(400, "rank and attempt are numbers; rank=all for every rank") from None
    found = [
        one
        for uid in dict.fromkeys(_known(connection, name) for name in names)
        for one in reader.series(connection, uid, keys, wanted, attempt)
    ]
    if len(found) > MOST_SERIES:
        raise HTTPException(400, f"{len(found)} series are more than {MOST_SERIES}; name keys, ranks or an attempt")
    return found


def _charts(database: Database, found: list[Found], window: Window, points: int) -> list[dict[str, Any]]:
    """Each in a view of its own, since the WAL cannot shrink meanwhile."""
    made = []
    for each in found:
        with database.reading() as connection:
            one = _again(connection, each)
            chart = charts.chart(connection, one.series, one.tail, _of_run(connection, one, window), points)
        made.append(
            {
                **_named(one),
                "samples": chart.samples,
                "unit": chart.unit,
                "trimmed": chart.trimmed,
                "points": [_point(point) for point in chart.points],
            }
        )
    return made


def _again(connection: Any, one: Found) -> Found:
    """The series as it is now, if some of its tail was packed since it was found."""
    packed = connection.execute("SELECT id, packed FROM series WHERE stream = ? AND key = ?", one.series[:2]).fetchone()
    if (packed or (0, 0)) == (one.series.id, one.series.packed):
        return one
    tail = Tail(connection, one.series.stream)
    now = series.find(connection, one.series.stream, tail, [one.series.key])
    return one._replace(series=now[0] if now else Series(*one.series[:2]), tail=tail)


def _of_run(connection: Any, one: Found, window: Window) -> Window:
    """A window of the machine's series: those have no steps, and go on before and after the run."""
    if one.rank is not None:
        return window
    began, ended = reader.span(connection, _known(connection, one.run))
    low, high = (window.low, window.high) if window.by == "time" else (-inf, inf)
    return Window("time", max(low, began), min(high, inf if ended is None else ended))


def _stream(database: Database, found: list[Found], window: Window) -> Iterator[bytes]:
    """``{"series": […]}`` with every sample, piece by piece."""
    yield b'{"series":['
    for number, one in enumerate(found):
        yield (b"," if number else b"") + _encode(_named(one))[:-1] + b',"points":['
        yield from _pieces(database, [one], window)
        yield b"]}"
    yield b"]}"


def _stream_points(database: Database, found: list[Found], window: Window) -> Iterator[bytes]:
    yield b'{"key":' + _encode(found[0].series.key) + b',"points":['
    yield from _pieces(database, found, window)
    yield b"]}"


def _pieces(database: Database, found: list[Found], window: Window) -> Iterator[bytes]:
    """Every sample in the window as ``[step, time, value]``, a block at a time."""
    first = True
    for one in found:
        with database.reading() as connection:
            wanted = _of_run(connection, one, window)
        for columns in series.samples(database, one.series):
            steps, times, values = series.cut(*columns, wanted)
            if len(steps):
                rows = [
                    (step, time / 1e6, json_number(value))
                    for step, time, value in zip(steps, times, values, strict=True)
                ]
                yield (b"" if first else b",") + _encode(rows)[1:-1]
                first = False


def _named(one: Found) -> dict[str, Any]:
    return {"run": one.run, "attempt": one.attempt, "rank": one.rank, "key": one.series.key}


def _point(point: list[float]) -> list[float | str]:
    step, moment, *values = point
    return [step, moment, *map(json_number, values)]


def _window(asked: QueryParams) -> Window:
    by = asked.get("by", "step")
    if by not in ("step", "time"):
        raise HTTPException(400, f"by: step or time, not {by!r}")
    most = _FAR if by == "time" else 2.0**63
    low, high = _number(asked, "from", most), _number(asked, "to", most)
    return Window("time" if by == "time" else "step", -inf if low is None else low, inf if high is None else high)


def _number(asked: QueryParams, name: str, most: float = _FAR) -> float | None:
    text = asked.get(name, "")
    try:
        number = float(text) if text else None
    except ValueError:
        number = float("nan")
    if number is not None and not abs(number) <= most:
        raise HTTPException(400, f"{name}: {text[:60]!r} is not a number from -{most:g} to {most:g}")
    return number


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise ValueError(text)
    return int(text)


def _count(asked: QueryParams, name: str, default: int, most: int) -> int:
    text = asked.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) > most:
        raise HTTPException(400, f"{name}: {text[:60]!r} is not a number from 0 to {most}")
    return int(text)


def _json(content: Any) -> Response:
    try:
        body = _encode(content)
    except UnicodeEncodeError:  # half a surrogate pair, which an escape in a configuration can write
        body = _encode(json.loads(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")))
    return Response(body, media_type="application/json")
