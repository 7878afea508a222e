"""Endpoints of runs: lists, series, events, exports, imports and changes."""

from __future__ import annotations

import asyncio
import io
import logging
import shutil
import sqlite3
import time
from contextlib import suppress
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from trackside_daemon.diagnosis.accounts import read_run
from trackside_daemon.diagnosis.report import MAX_SIZE, SIZE, read_contents
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.history.files.export import FORMATS, TooManyKeysError, export
from trackside_daemon.history.files.items import FormatError
from trackside_daemon.history.files.selection import count
from trackside_daemon.history.read import reader, run_columns
from trackside_daemon.history.read.charts import POINTS
from trackside_daemon.history.read.reader import RunFilter
from trackside_daemon.history.read.summary import MAX_SUMMARIES, SUMMARIES
from trackside_daemon.history.record import run_changes
from trackside_daemon.model.records import ENDED
from trackside_daemon.model.text import byte_size
from trackside_daemon.web.api import current_values
from trackside_daemon.web.api.bands import rank_bands
from trackside_daemon.web.api.history_access import json_response, read_listing
from trackside_daemon.web.api.query_params import parse_bounded, parse_number, parse_window
from trackside_daemon.web.api.series import (
    MAX_BUCKETS,
    concatenate,
    export_selection,
    find_series,
    read_charts,
    stream_points,
    stream_series,
)
from trackside_daemon.web.http.server import ABORT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from trackside_daemon.model.answer import Answer
    from trackside_daemon.model.state import State
    from trackside_daemon.web.api.history_access import HistoryAccess

    Ask = Callable[[str, str], tuple[frozenset[int], Sequence[Answer]]]
    AskLayers = Callable[[str, int], frozenset[int]]

TYPES = {"csv": "text/csv", "json": "application/json", "jsonl": "application/jsonl"}
MAX_POINTS = 20_000
MAX_METRICS = 64  # keys whose values a list of runs has
MAX_OFFSET = 999_999_999
MAX_IMPORTS = 4  # imports that run at once; others wait without occupying a thread

DEFAULT_LAYER_STEPS = 100
MAX_LAYER_STEPS = 10_000

MAX_IMPORT_BYTES = 16 * 1024**3  # size limit of an imported file


log = logging.getLogger("trackside")

_decode = msgspec.json.decode


class _Description(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that describes a run; None leaves what it has."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    notes: Annotated[str, msgspec.Meta(max_length=10_000)] | None = None
    tags: (
        Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]], msgspec.Meta(max_length=64)] | None
    ) = None


class _SamplesResponse(StreamingResponse):
    """A stream of samples that breaks off when they cannot be read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        except (ValueError, sqlite3.Error) as error:
            log.error("an answer breaks off: the history cannot be read: %s", error)  # noqa: TRY400  a file's fault, no traceback
            # The client must see that samples are missing, and a status cannot be sent any more.
            scope[ABORT]()
            while (await receive())["type"] != "http.disconnect":
                pass


class HistoryApi:
    """Answers requests about runs, from the history and, for live runs, from the state.

    Args:
        state: The newest value of every series.
        history: The history.
        ask: Sends a question to the connected clients of a run, and returns the asked ranks and their answers.
        ask_layers: Requests all layer norms for a number of steps, and returns the ranks that received the request.
        prices: Returns the configured prices.
        deleted: Called after a run was deleted.
    """

    def __init__(
        self,
        state: State,
        history: HistoryAccess,
        ask: Ask,
        ask_layers: AskLayers,
        prices: Callable[[], CostSection] = CostSection,
        *,
        deleted: Callable[[], object] = lambda: None,
    ) -> None:
        self._state = state
        self._ask = ask
        self._ask_layers = ask_layers
        self._history = history
        self._prices = prices
        self._deleted = deleted
        self._importing = asyncio.Semaphore(MAX_IMPORTS)

    async def runs(self, request: Request) -> Response:
        """List the runs, newest first; live runs have the values of their ranks."""
        params = request.query_params
        selection = RunFilter(
            name=params.get("name", ""),
            tag=params.get("tag", ""),
            state=params.get("state", ""),
            since=parse_number(params, "since"),
            until=parse_number(params, "until"),
            limit=parse_bounded(params, "limit", 0, reader.MAX_RUNS),
            launch=params.get("launch", ""),
        )
        live = current_values.live_runs(self._state, time.monotonic())
        config, metrics = params.get("config") == "true", list(dict.fromkeys(params.getlist("metric")))
        if len(metrics) > MAX_METRICS:
            raise HTTPException(400, f"metric: at most {MAX_METRICS} keys at a time")

        def read(connection: Any) -> list[dict[str, Any]]:
            runs = _merge_live(connection, reader.runs(connection, selection), live, selection)
            configs = run_columns.configurations(connection) if config else {}
            values = run_columns.values(connection, metrics) if metrics else {}
            return [
                {
                    **run,
                    **({"config": configs.get(run["id"])} if config else {}),
                    **({"metrics": values.get(run["id"], {})} if metrics else {}),
                }
                for run in runs
            ]

        return json_response({"runs": await self._history.read(read)})

    async def keys(self, _request: Request) -> Response:
        """List the keys that runs have pushed."""
        return json_response({"keys": await self._history.read(run_columns.keys)})

    async def describe(self, request: Request) -> Response:
        """Set the name, the notes or the tags of a run."""
        try:
            wanted = _decode(await request.body(), type=_Description)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise HTTPException(400, f"the body must have name, notes or tags: {error}") from None
        uid = await self._history.read(lambda connection: _resolve(connection, request))
        await self._history.change(
            lambda store: run_changes.describe(store, uid, name=wanted.name, notes=wanted.notes, tags=wanted.tags)
        )
        return json_response(await self._history.read(lambda connection: reader.head(connection, uid)))

    async def run(self, request: Request) -> Response:
        """Return everything about one run except its samples."""
        params = request.query_params
        limit = parse_bounded(params, "limit", SUMMARIES, MAX_SUMMARIES)
        offset = parse_bounded(params, "offset", 0, MAX_OFFSET)
        run = await self._history.read(
            lambda connection: read_run(connection, _resolve(connection, request), limit, offset)
        )
        return json_response(run)

    async def report(self, request: Request) -> Response:
        """Return what a report has about a run."""
        size = parse_bounded(request.query_params, "size", SIZE, MAX_SIZE)
        prices = self._prices()
        contents = await self._history.read(
            lambda connection: read_contents(connection, _resolve(connection, request), prices, size)
        )
        return json_response(contents)

    async def stacks(self, request: Request) -> Response:
        """Return the stack of each thread of a run's processes; works while their main thread hangs."""
        return await self._query_ranks(request, "stacks?", lambda body: {"threads": body.threads})

    async def ping(self, request: Request) -> Response:
        """Return how long a run's processes take to answer."""
        return await self._query_ranks(request, "ping", lambda _: {})

    async def layers(self, request: Request) -> Response:
        """Make a run that watches its model report the norms of all layers for some steps."""
        steps = parse_bounded(request.query_params, "steps", DEFAULT_LAYER_STEPS, MAX_LAYER_STEPS)
        uid = await self._history.read(lambda connection: _resolve(connection, request))
        ranks = await self._history.run_in_thread(lambda: self._ask_layers(uid, steps))
        if not ranks:
            raise _no_process_error(request)
        return json_response({"steps": steps, "ranks": sorted(ranks)})

    async def _query_ranks(self, request: Request, kind: str, fields: Callable[[Any], dict[str, Any]]) -> Response:
        """Ask the processes of a run, and return their answers; *fields* selects the content of an answer's body."""
        uid = await self._history.read(lambda connection: _resolve(connection, request))
        asked, answers = await self._history.run_in_thread(lambda: self._ask(kind, uid))
        if not asked:
            raise _no_process_error(request)
        ranks = [{"rank": answer.rank, "seconds": answer.seconds, **fields(answer.body)} for answer in answers]
        return json_response({"ranks": ranks, "silent": sorted(asked - {answer.rank for answer in answers})})

    async def series(self, request: Request) -> Response:
        """Return series of one or more runs: each in buckets, or with ``points=0`` every sample."""
        params = request.query_params
        names = [request.path_params["id"]] if "id" in request.path_params else params.getlist("run")
        if not names:
            raise HTTPException(400, "run: name at least one run, by its id or name; the parameter may be repeated")
        points = parse_bounded(params, "points", POINTS, MAX_POINTS)
        band = params.get("ranks")
        if band not in (None, "band") or (band and not points):
            raise HTTPException(400, "ranks: must be band, with points above 0; rank=all returns each rank separately")
        selected = parse_window(params)
        series = await self._history.read(lambda connection: find_series(connection, names, params))
        database = self._history.database
        if not points:
            return _SamplesResponse(stream_series(database, series, selected), media_type="application/json")
        # All charts of a response are in memory at once, so many series share the limit.
        points = min(points, max(2, MAX_BUCKETS // max(1, len(series))))
        means = params.get("mean") == "true"
        charts = await self._history.compute(lambda: read_charts(database, series, selected, points, means=means))
        return json_response({"series": rank_bands(charts, selected.by) if band else charts})

    async def one_series(self, request: Request) -> Response:
        """Return one key of a run, its attempts in sequence: in buckets, or with ``points=0`` every sample."""
        params = request.query_params
        run = request.path_params["id"]
        if len(params.getlist("key")) != 1:
            raise HTTPException(400, "key: name exactly one key; for several, use /api/v1/series")
        points = parse_bounded(params, "points", POINTS, MAX_POINTS)
        selected = parse_window(params)
        attempts = await self._history.read(lambda connection: find_series(connection, [run], params))
        if not attempts:
            raise HTTPException(404, f"key {params['key']!r}: run {run!r} has no such key")
        database = self._history.database
        if not points:
            return _SamplesResponse(stream_points(database, attempts, selected), media_type="application/json")
        # The attempts follow each other in one chart, so they share the number of points.
        points = max(1, points // len(attempts))
        charts = await self._history.compute(lambda: read_charts(database, attempts, selected, points))
        return json_response({"key": params["key"], **concatenate(charts)})

    async def events(self, request: Request) -> Response:
        """List events, oldest first."""
        return json_response({"events": await read_listing(self._history, request, reader.events)})

    async def pin(self, request: Request) -> Response:
        """Exempt a run from trimming, or end that: ``{"pinned": true}``."""
        try:
            pinned = _decode(await request.body(), type=dict[str, bool])["pinned"]
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
            raise HTTPException(400, 'the body must be {"pinned": true} or {"pinned": false}') from None
        uid = await self._history.read(lambda connection: _resolve(connection, request))
        await self._history.change(lambda store: run_changes.pin(store, uid, pinned=pinned))
        return json_response({"pinned": pinned})

    async def delete(self, request: Request) -> Response:
        """Delete a run that has ended, with all its samples."""
        uid = await self._history.read(lambda connection: _resolve(connection, request))
        await self._history.change(lambda store: run_changes.delete(store, uid, live=False))
        await self._history.run_in_thread(self._deleted)
        return json_response({"deleted": uid})

    async def export(self, request: Request) -> Response:
        """Stream samples of a run as a file; ``X-Trackside-Samples`` is their number, also for HEAD."""
        params = request.query_params
        form = params.get("format", "csv")
        if form not in FORMATS:
            raise HTTPException(400, f"format: must be {', '.join(FORMATS)}, not {form!r}")
        uid = await self._history.read(lambda connection: _resolve(connection, request))
        chosen = await self._history.compute(lambda: export_selection(self._history.database, uid, params))
        samples = await self._history.compute(lambda: count(self._history.database, uid, chosen))
        headers = {"X-Trackside-Samples": str(samples)}
        if request.method == "HEAD":
            response = Response(headers=headers, media_type=TYPES[form])
            del response.headers["content-length"]  # the length of the file is not known yet
            return response
        try:
            pieces = await self._history.compute(lambda: export(self._history.database, uid, form, chosen))
        except TooManyKeysError as error:
            raise HTTPException(400, str(error)) from None
        return _SamplesResponse(pieces, headers=headers, media_type=TYPES[form])

    async def import_(self, request: Request) -> Response:
        """Import a run from the file in the request's body."""
        from trackside_daemon.history.files.importing import ImportingError, import_run  # seldom needed
        from trackside_daemon.history.files.run_file import open_run_file

        params = request.query_params
        names = {"id": params.get("id", ""), "name": params.get("name", "")}
        name = unquote(request.headers.get("x-file-name", "")) or "body"
        self._history.check_writable()
        with await self._receive_file(request) as file:
            try:
                # Each import occupies a thread of the pool, which all other requests need too.
                async with self._importing:
                    result = await run_in_threadpool(
                        lambda: import_run(self._history.writer, open_run_file(file, name, **names, begin=time.time()))
                    )
            except FormatError as error:
                raise HTTPException(400, str(error)) from None
            except ImportingError as error:
                raise HTTPException(409, str(error)) from None
            except (ArithmeticError, RecursionError, ValueError) as error:
                raise HTTPException(400, f"{name}: contains values that the history cannot hold: {error}") from None
        return json_response({"run": result.run, "samples": result.samples, "notes": result.notes})

    async def _receive_file(self, request: Request) -> io.BufferedReader:
        """Return the request's body as an unnamed file in the history's directory, which vanishes when closed."""
        directory = self._history.database.path.parent
        try:
            file = TemporaryFile(dir=directory)  # noqa: SIM115  the caller closes it
            try:
                # Half of the free space, because the samples in the history need room as well.
                limit = min(MAX_IMPORT_BYTES, shutil.disk_usage(directory).free // 2)
                size = 0
                async for piece in request.stream():
                    size += len(piece)
                    _check_size(size, limit, directory)
                    # In a thread, because a disk that does not answer would stop the event loop.
                    await run_in_threadpool(file.write, piece)
                await run_in_threadpool(file.seek, 0)
            except BaseException:
                with suppress(OSError):  # closing retries the failed write
                    file.close()
                raise
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise HTTPException(
                507, f"{directory}: the file cannot be stored there during the import: {reason}"
            ) from None
        except ClientDisconnect:
            raise HTTPException(400, "the upload was interrupted") from None
        return io.BufferedReader(file.detach())


def _check_size(size: int, limit: int, directory: Path) -> None:
    if size > limit:
        raise HTTPException(
            507,
            f"{directory}: has room for a file of {byte_size(limit)}; free disk space, or import the file in parts",
        )


def _merge_live(
    connection: Any, stored: list[dict[str, Any]], live: dict[str, Any], selection: RunFilter
) -> list[dict[str, Any]]:
    """Return the list from the history with the current values of live runs.

    Without a filter it has all live runs: those that are not written yet come first, those that the limit cut off last.
    """
    current_runs = {run["id"]: run for run in live["runs"]}
    if not any(selection._replace(limit=0)):
        alive = [uid for uid, run in current_runs.items() if run["state"] not in ENDED]
        cut_off = set(alive).difference(run["id"] for run in stored)
        stored += reader.runs(connection, among=cut_off)
        unwritten = cut_off.difference(run["id"] for run in stored)
        stored = [*(_unwritten(current_runs[uid]) for uid in alive if uid in unwritten), *stored]
    for run in stored:
        current = current_runs.get(run["id"])
        if current is None or current["attempt"] != run["attempt"]:
            run["ranks"] = []
            continue
        run.update(current)
        ranks = [rank for rank in current["ranks"] if "step" in rank]
        if ranks:
            run["step"] = max(int(rank["step"]) for rank in ranks)
            run["loss"] = ranks[0].get("loss")
    return stored


def _unwritten(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the list has of a run that is not in the history, as long as that is not known from its ranks."""
    started = min((rank["started"] for rank in run["ranks"] if "started" in rank), default=time.time())
    absent = dict.fromkeys(("ended", "step", "loss"))
    return {"cause": "", "started": started, **absent, "tags": [], "pinned": False, "summary": {}, "notes": "", **run}


def _no_process_error(request: Request) -> HTTPException:
    return HTTPException(404, f"run {request.path_params['id']!r} has no process connected to this daemon now")


def _resolve(connection: Any, request: Request) -> str:
    return reader.resolve(connection, request.path_params["id"])
