"""Endpoints of runs: exports, imports, changes, and questions to their processes."""

import asyncio
import io
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from tempfile import TemporaryFile
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from trackside.os_errors import os_error_text
from trackside_daemon.documents import html, markdown, plots
from trackside_daemon.documents.report import charts, document
from trackside_daemon.history.files.items import FormatError
from trackside_daemon.history.media import index
from trackside_daemon.history.read import reader
from trackside_daemon.history.record import run_changes
from trackside_daemon.model.capture import RankAnswer
from trackside_daemon.model.records import AHEAD_SECONDS
from trackside_daemon.model.text import byte_size
from trackside_daemon.questions.artifacts import Media
from trackside_daemon.questions.diagnosis import Report
from trackside_daemon.questions.question import OfRun, Question
from trackside_daemon.questions.series import Export
from trackside_daemon.web.api.history_access import (
    HistoryAccess,
    SamplesResponse,
    decoded_body,
    json_response,
    parsed,
    unchanged,
)

Ask = Callable[[str, str], tuple[frozenset[int], Sequence[RankAnswer]]]
AskLayers = Callable[[str, int], frozenset[int]]


TYPES = {"csv": "text/csv", "long": "text/csv", "json": "application/json", "jsonl": "application/jsonl"}
# What a run wrote is hostile: it has the type of its kind, which the store has checked, and nothing runs or embeds it.
MEDIA_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Content-Disposition": "attachment",
}
MAX_IMPORTS = 4  # imports that run at once; others wait without occupying a thread

MAX_IMPORT_BYTES = 16 * 1024**3  # size limit of an imported file


class LayersRequest(Question, frozen=True, kw_only=True):
    """The parameters of a request for the norms of all layers."""

    steps: Annotated[int, msgspec.Meta(le=10_000, description="Number of steps.")] = 100


class Import(Question, frozen=True, kw_only=True):
    """The parameters of an import."""

    name: Annotated[str, msgspec.Meta(description="The run's name, which replaces the one in the file.")] = ""
    id: Annotated[str, msgspec.Meta(description="The run's id, which replaces the one in the file.")] = ""


class ReportFile(OfRun, frozen=True, kw_only=True):
    """The parameters of a request for a report as a file."""

    format: Annotated[
        Literal["html", "markdown", "svg"], msgspec.Meta(description="html, markdown, or svg: the chart of `key`.")
    ] = "html"
    key: Annotated[str, msgspec.Meta(description="The key of the chart for svg.")] = ""


class DescribeBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that describes a run; None leaves what it has."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    notes: Annotated[str, msgspec.Meta(max_length=10_000)] | None = None
    notes_before: str | None = None  # those that an edit began from; None to replace any
    tags: (
        Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]], msgspec.Meta(max_length=64)] | None
    ) = None


class AnnotationBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that writes a note at a step or a time of a run; without a text, it removes the one there."""

    text: Annotated[str, msgspec.Meta(max_length=1000)]
    step: Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)] | None = None
    time: Annotated[float, msgspec.Meta(ge=0, lt=2**33)] | None = None


class PinBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that pins or unpins a run."""

    pinned: bool


class HistoryApi:
    """Answers requests that change runs, ask their processes, or have a file.

    Args:
        history: The history.
        ask: Sends a question to the connected clients of a run, and returns the asked ranks and their answers.
        ask_layers: Requests all layer norms for a number of steps, and returns the ranks that received the request.
        audit: Audits the checkpoints of a run, by its id, again.
        deleted: Called after a run was deleted.
    """

    def __init__(
        self,
        history: HistoryAccess,
        ask: Ask,
        ask_layers: AskLayers,
        *,
        audit: Callable[[str], object],
        deleted: Callable[[], object] = lambda: None,
    ) -> None:
        self._ask = ask
        self._ask_layers = ask_layers
        self._history = history
        self._audit = audit
        self._deleted = deleted
        self._importing = asyncio.Semaphore(MAX_IMPORTS)

    async def describe_run(self, request: Request) -> Response:
        """Set the name, the notes or the tags of a run."""
        wanted = await decoded_body(request, DescribeBody, '{"name": …, "notes": …, "tags": […]}')
        uid = await self._history.resolve(request)
        changes = msgspec.structs.asdict(wanted)
        await self._history.change(lambda store: run_changes.describe(store, uid, **changes))
        return json_response(await self._history.read(lambda connection: reader.head(connection, uid)))

    async def annotate_run(self, request: Request) -> Response:
        """Write a note at a step or time of a run."""
        wanted = await decoded_body(request, AnnotationBody, '{"text": TEXT, "step": 1200, "time": SECONDS}')
        uid = await self._history.resolve(request)
        moment = time.time() if wanted.time is None else wanted.time
        text = wanted.text.strip()
        if moment > time.time() + AHEAD_SECONDS:  # the newest event tells a wrong clock of the machine
            raise HTTPException(400, "time: a note is a day ahead at most; give Unix seconds, or none for now")
        if not await self._history.change(lambda store: run_changes.annotate(store, uid, text, wanted.step, moment)):
            raise HTTPException(404, f"the run {uid!r} was deleted")
        return json_response({"run": uid, "text": text, "step": wanted.step, "time": moment})

    async def audit_checkpoints(self, request: Request) -> Response:
        """Audit the checkpoints of a run again."""
        run = await self._history.resolve(request)
        self._audit(run)
        return json_response({"run": run})

    async def media_file(self, request: Request) -> Response:
        """Send an image, a text or a table of a run."""
        name, database = request.path_params["file"], self._history.database
        run, items = await self._history.compute(partial(parsed(Media, request).find, database))
        item = next((item for item in items if item.file == name), None)
        if item is None:
            raise HTTPException(404, f"this run has no file {name[:60]!r}; /api/v1/runs/ID/media lists them")
        headers, known = unchanged(request, name)
        if known is not None:
            return known
        try:
            data = await self._history.run_in_thread(lambda: index.content(database.path.parent, run, item))
        except OSError:
            raise HTTPException(404, f"the file {name!r} was deleted") from None
        return Response(data, headers={**MEDIA_HEADERS, **headers}, media_type=index.TYPES[item.kind])

    async def stacks(self, request: Request) -> Response:
        """Return the current stack of each thread of a run's processes."""
        return await self._query_ranks(request, "stacks?", lambda body: {"threads": body.threads})

    async def ping(self, request: Request) -> Response:
        """Measure how long a run's processes take to answer."""
        return await self._query_ranks(request, "ping", lambda _: {})

    async def request_layers(self, request: Request) -> Response:
        """Make a run that watches its model report the gradient norm of each layer for some steps."""
        steps = parsed(LayersRequest, request).steps
        uid = await self._history.resolve(request)
        ranks = await self._history.run_in_thread(lambda: self._ask_layers(uid, steps))
        if not ranks:
            raise _no_process_error(request)
        return json_response({"steps": steps, "ranks": sorted(ranks)})

    async def _query_ranks(self, request: Request, kind: str, fields: Callable[[Any], dict[str, Any]]) -> Response:
        """Ask the processes of a run, and return their answers; *fields* selects the content of an answer's body."""
        uid = await self._history.resolve(request)
        asked, answers = await self._history.run_in_thread(lambda: self._ask(kind, uid))
        if not asked:
            raise _no_process_error(request)
        ranks = [{"rank": answer.rank, "seconds": answer.seconds, **fields(answer.body)} for answer in answers]
        return json_response({"ranks": ranks, "silent": sorted(asked - {answer.rank for answer in answers})})

    async def pin_run(self, request: Request) -> Response:
        """Pin a run, so that the history limits do not delete it, or unpin it."""
        pinned = (await decoded_body(request, PinBody, '{"pinned": true} or {"pinned": false}')).pinned
        uid = await self._history.resolve(request)
        await self._history.change(lambda store: run_changes.pin(store, uid, pinned=pinned))
        return json_response({"pinned": pinned})

    async def delete_run(self, request: Request) -> Response:
        """Delete a run that has ended."""
        uid = await self._history.resolve(request)
        await self._history.change(lambda store: run_changes.delete(store, uid, live=False))
        await self._history.run_in_thread(self._deleted)
        return json_response({"deleted": uid})

    async def export(self, request: Request) -> Response:
        """Download samples of a run as a file."""
        wanted = parsed(Export, request)
        found = await self._history.compute(partial(wanted.open, self._history.database))
        headers, kind = {"X-Trackside-Samples": str(found.samples)}, TYPES[wanted.format]
        if request.method != "HEAD":
            return SamplesResponse(found.chunks, headers=headers, media_type=kind)
        response = Response(headers=headers, media_type=kind)
        del response.headers["content-length"]  # the length of the file is not known yet
        return response

    async def report_file(self, request: Request) -> Response:
        """Download a report of a run: one HTML file that needs no network, Markdown without its curves, or one curve."""
        wanted = parsed(ReportFile, request)
        found = await self._history.answer(Report(id=wanted.id))
        if wanted.format == "svg":
            drawn = [plots.svg(chart, [found["axes"]]) for chart in charts([found]) if chart["key"] == wanted.key]
            if not drawn:
                raise HTTPException(404, f"key {wanted.key!r}: this run has no chart of it")
            return Response(drawn[0], headers=MEDIA_HEADERS, media_type="image/svg+xml")
        write = {"html": html.write, "markdown": markdown.write}[wanted.format]
        text = await self._history.compute(lambda: write(document([found])))
        return Response(text, headers=MEDIA_HEADERS, media_type=f"text/{wanted.format}")

    async def import_run(self, request: Request) -> Response:
        """Import a run from a file."""
        from trackside_daemon.history.files.importing import ImportingError, import_run  # seldom needed
        from trackside_daemon.history.files.run_file import open_run_file

        wanted = parsed(Import, request)
        name = unquote(request.headers.get("x-file-name", "")) or "body"
        self._history.check_writable()
        with await self._receive_file(request) as file:
            try:
                # Each import occupies a thread of the pool, which all other requests need too.
                async with self._importing:
                    result = await run_in_threadpool(
                        lambda: import_run(
                            self._history.writer,
                            open_run_file(file, name, id=wanted.id, name=wanted.name, begin=time.time()),
                        )
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
                    if size > limit:
                        room = (
                            f"has room for a file of {byte_size(limit)}; free disk space, or import the file in parts"
                        )
                        raise HTTPException(507, f"{directory}: {room}")  # noqa: TRY301
                    # In a thread, because a disk that does not answer would stop the event loop.
                    await run_in_threadpool(file.write, piece)
                await run_in_threadpool(file.seek, 0)
            except BaseException:
                with suppress(OSError):  # closing retries the failed write
                    file.close()
                raise
        except OSError as error:
            raise HTTPException(
                507, f"{directory}: the file cannot be stored there during the import: {os_error_text(error)}"
            ) from None
        except ClientDisconnect:
            raise HTTPException(400, "the upload was interrupted") from None
        return io.BufferedReader(file.detach())


def _no_process_error(request: Request) -> HTTPException:
    return HTTPException(404, f"run {request.path_params['id']!r} has no process connected to this daemon now")
