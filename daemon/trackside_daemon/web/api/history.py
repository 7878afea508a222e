"""The pages of `/api/v1` that are about runs: their list, their series, what happened to them; and what changes them."""

from __future__ import annotations

import asyncio
import io
import shutil
import time
from contextlib import suppress
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from trackside_daemon.history.files.export import FORMS, count, export
from trackside_daemon.history.files.importing import ImportingError, Reading, write
from trackside_daemon.history.files.items import FormError
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.charts import POINTS
from trackside_daemon.history.read.reader import Filter
from trackside_daemon.history.record import commands
from trackside_daemon.model.records import ENDED
from trackside_daemon.web.api import current_values
from trackside_daemon.web.api.bands import bands
from trackside_daemon.web.api.history_access import as_json, listed
from trackside_daemon.web.api.query_params import bounded, number, window
from trackside_daemon.web.api.series import MOST_BUCKETS, behind, drawn, find, part, stream, stream_points

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from starlette.requests import Request

    from trackside_daemon.model.state import State
    from trackside_daemon.web.api.history_access import Kept

    Ask = Callable[[str, str], tuple[frozenset[int], Sequence["Answer"]]]
    AskLayers = Callable[[str, int], frozenset[int]]

TYPES = {"csv": "text/csv", "json": "application/json", "jsonl": "application/jsonl"}
MOST_POINTS = 20_000
IMPORTS = 4
"""So many files are read at once; others wait, and hold no thread."""

LAYER_STEPS, MOST_LAYER_STEPS = 100, 10_000

IMPORT_BYTES = 16 * 1024**3
"""A larger file is not taken."""


_decode = msgspec.json.decode


class Answer(Protocol):
    """What a rank has answered, after so many seconds; with a body or without."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102
    @property
    def body(self) -> Any: ...  # noqa: D102


class HistoryPages:
    """Answers from the history, and for runs that live from the state too.

    Args:
        state: What is on ``/metrics``.
        kept: The history.
        ask: Asks the clients of a run that live: the ranks that were asked, and what each has answered.
        ask_layers: Has those that watch a model tell the norms of all layers for so many steps: the ranks that were told.
    """

    def __init__(self, state: State, kept: Kept, ask: Ask, ask_layers: AskLayers) -> None:
        self._state = state
        self._ask = ask
        self._ask_layers = ask_layers
        self._kept = kept
        self._importing = asyncio.Semaphore(IMPORTS)

    async def runs(self, request: Request) -> Response:
        """The runs, the newest first; those on ``/metrics`` with the numbers of their ranks."""
        asked = request.query_params
        wanted = Filter(
            name=asked.get("name", ""),
            tag=asked.get("tag", ""),
            state=asked.get("state", ""),
            since=number(asked, "since"),
            until=number(asked, "until"),
            limit=bounded(asked, "limit", 0, 10_000_000),
            launch=asked.get("launch", ""),
        )
        live = current_values.runs(self._state, time.monotonic())
        return as_json(
            {"runs": await self._kept.read(lambda connection: _merged(reader.runs(connection, wanted), live, wanted))}
        )

    async def run(self, request: Request) -> Response:
        """All that is known of one run but its samples."""
        return as_json(await self._kept.read(lambda connection: reader.run(connection, _resolve(connection, request))))

    async def stacks(self, request: Request) -> Response:
        """Where each thread of a run's processes is, from their own mouths: also when their main thread hangs."""
        return await self._asked(request, "stacks?", lambda body: {"threads": body.threads})

    async def ping(self, request: Request) -> Response:
        """How long a run's processes take to answer."""
        return await self._asked(request, "ping", lambda _: {})

    async def layers(self, request: Request) -> Response:
        """Have a run that watches its model tell the norms of all layers for some steps."""
        steps = bounded(request.query_params, "steps", LAYER_STEPS, MOST_LAYER_STEPS)
        uid = await self._kept.read(lambda connection: _resolve(connection, request))
        asked = await self._kept.in_thread(lambda: self._ask_layers(uid, steps))
        if not asked:
            raise _unheard(request)
        return as_json({"steps": steps, "ranks": sorted(asked)})

    async def _asked(self, request: Request, kind: str, told: Callable[[Any], dict[str, Any]]) -> Response:
        uid = await self._kept.read(lambda connection: _resolve(connection, request))
        asked, answers = await self._kept.in_thread(lambda: self._ask(kind, uid))
        if not asked:
            raise _unheard(request)
        ranks = [{"rank": one.rank, "seconds": one.seconds, **told(one.body)} for one in answers]
        return as_json({"ranks": ranks, "silent": sorted(asked - {one.rank for one in answers})})

    async def series(self, request: Request) -> Response:
        """Series of one or more runs: buckets of each, or with ``points=0`` every sample."""
        asked = request.query_params
        names = [request.path_params["id"]] if "id" in request.path_params else asked.getlist("run")
        if not names:
            raise HTTPException(400, "run: say which, by its id or name; it may be repeated")
        points = bounded(asked, "points", POINTS, MOST_POINTS)
        band = asked.get("ranks")
        if band not in (None, "band") or (band and not points):
            raise HTTPException(400, "ranks: band, with points above 0; rank=all gives every rank for itself")
        wanted = window(asked)
        found = await self._kept.read(lambda connection: find(connection, names, asked))
        if not points:
            return StreamingResponse(stream(self._kept.database, found, wanted), media_type="application/json")
        points = min(points, max(2, MOST_BUCKETS // max(1, len(found))))
        charts = await self._kept.in_thread(lambda: drawn(self._kept.database, found, wanted, points))
        return as_json({"series": bands(charts, wanted.by) if band else charts})

    async def one_series(self, request: Request) -> Response:
        """One key of a run, its attempts one behind the other: buckets, or with ``points=0`` every sample."""
        asked = request.query_params
        if len(asked.getlist("key")) != 1:
            raise HTTPException(400, "key: say which one; for several, ask /api/v1/series")
        points = bounded(asked, "points", POINTS, MOST_POINTS)
        wanted = window(asked)
        found = await self._kept.read(lambda connection: find(connection, [request.path_params["id"]], asked))
        if not found:
            raise HTTPException(404, f"key {asked['key']!r}: run {request.path_params['id']!r} has none of that name")
        if not points:
            return StreamingResponse(stream_points(self._kept.database, found, wanted), media_type="application/json")
        points = max(1, points // len(found))
        charts = await self._kept.in_thread(lambda: drawn(self._kept.database, found, wanted, points))
        return as_json({"key": asked["key"], **behind(charts)})

    async def events(self, request: Request) -> Response:
        """What happened, oldest first."""
        return as_json({"events": await listed(self._kept, request, reader.events)})

    async def pin(self, request: Request) -> Response:
        """Keep a run whatever the bounds are, or no longer: ``{"pinned": true}``."""
        try:
            pinned = _decode(await request.body(), type=dict[str, bool])["pinned"]
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
            raise HTTPException(400, 'the body is {"pinned": true} or {"pinned": false}') from None
        uid = await self._kept.read(lambda connection: _resolve(connection, request))
        await self._kept.change(lambda store: commands.pin(store, uid, pinned=pinned))
        return as_json({"pinned": pinned})

    async def delete(self, request: Request) -> Response:
        """Delete a run that has ended, with all its samples."""
        uid = await self._kept.read(lambda connection: _resolve(connection, request))
        await self._kept.change(lambda store: commands.delete(store, uid, live=False))
        return as_json({"deleted": uid})

    async def export(self, request: Request) -> Response:
        """Samples of a run as a file, streamed; ``X-Trackside-Samples`` says how many there are, to HEAD too."""
        asked = request.query_params
        form = asked.get("format", "csv")
        if form not in FORMS:
            raise HTTPException(400, f"format: {', '.join(FORMS)}, not {form!r}")
        uid = await self._kept.read(lambda connection: _resolve(connection, request))
        chosen = await self._kept.in_thread(lambda: part(self._kept.database, uid, asked))
        samples = await self._kept.in_thread(lambda: count(self._kept.database, uid, chosen))
        headers = {"X-Trackside-Samples": str(samples)}
        if request.method == "HEAD":
            answer = Response(headers=headers, media_type=TYPES[form])
            del answer.headers["content-length"]  # how long the file is, nobody knows yet
            return answer
        pieces = await self._kept.in_thread(lambda: export(self._kept.database, uid, form, chosen))
        return StreamingResponse(pieces, headers=headers, media_type=TYPES[form])

    async def import_(self, request: Request) -> Response:
        """Bring a run in from the file that is the request's body."""
        asked = request.query_params
        called = {"id": asked.get("id", ""), "name": asked.get("name", "")}
        name = unquote(request.headers.get("x-file-name", "")) or "body"
        self._kept.refuse_when_stuck()
        with await self._body(request) as file:
            try:
                async with self._importing:
                    taken = await run_in_threadpool(
                        lambda: write(self._kept.writer, Reading(file, name, **called, begin=time.time()))
                    )
            except FormError as error:
                raise HTTPException(400, str(error)) from None
            except ImportingError as error:
                raise HTTPException(409, str(error)) from None
            except (ArithmeticError, RecursionError, ValueError) as error:
                raise HTTPException(400, f"{name}: it holds what no history can: {error}") from None
        return as_json({"run": taken.run, "samples": taken.samples, "notes": taken.notes})

    async def _body(self, request: Request) -> io.BufferedReader:
        """What is sent, in a file without a name beside the history: nothing is left of it, whatever happens."""
        directory = self._kept.database.path.parent
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
    everything = not any((wanted.name, wanted.tag, wanted.state, wanted.since, wanted.until, wanted.launch))
    fresh = [run for run in on_page.values() if run["state"] not in ENDED]
    return [*fresh, *kept] if everything else kept


def _unheard(request: Request) -> HTTPException:
    return HTTPException(404, f"run {request.path_params['id']!r} has no process that speaks to this daemon now")


def _resolve(connection: Any, request: Request) -> str:
    return reader.resolve(connection, request.path_params["id"])
