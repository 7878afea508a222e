"""Access to the history for API endpoints: answers in threads, changes through the writer, errors as HTTP responses."""

import asyncio
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from trackside_daemon.history.database import ClosedError, Database
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.reader import UnknownKeyError, UnknownRunError
from trackside_daemon.history.record.store import RecordStore
from trackside_daemon.history.record.writer import Writer
from trackside_daemon.questions.question import InvalidError, Live, MissingError, Question, parse
from trackside_daemon.web.http.server import ABORT, wait_for_disconnect

T = TypeVar("T")
Q = TypeVar("Q", bound=Question)

# Threads that read the history, each for half of the time at most. A chart over a thousand ranks computes for a second, and the
# charts of a page would leave no time to the threads that accept pushes.
THREADS = 2
MAX_REST_SECONDS = 2.0  # seconds
BURST_SECONDS = 0.25  # without a rest, after a thread had nothing to do: the charts of a page that opens

CHANGE_TIMEOUT = 15.0
BODY_BYTES = 2**20  # of a request that brings no file

log = logging.getLogger("trackside")

_encode = msgspec.json.Encoder().encode


class SamplesResponse(StreamingResponse):
    """A stream of samples that breaks off when they cannot be read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        except (ValueError, sqlite3.Error) as error:
            log.error("an answer breaks off: the history cannot be read: %s", error)  # noqa: TRY400  a file's fault, no traceback
            # The client must see that samples are missing, and a status cannot be sent any more.
            scope[ABORT]()
            await wait_for_disconnect(receive)


class HistoryAccess:
    """Answers questions and changes the history, and translates errors to HTTP errors.

    Args:
        database: For reads.
        writer: For changes.
        live: What the daemon knows besides.
        change_timeout: Seconds that a change waits for the writer.
    """

    def __init__(self, database: Database, writer: Writer, live: Live, change_timeout: float = CHANGE_TIMEOUT) -> None:
        self.database = database
        self.writer = writer
        self.live = live
        self._change_timeout = change_timeout
        self._executor = ThreadPoolExecutor(THREADS, "trackside-read")
        self._rest = threading.local()

    async def respond(self, kind: type[Question], request: Request) -> Response:
        """Answer the question in a request."""
        question = parsed(kind, request)
        if question.is_stream:
            pieces = await self.compute(partial(question.pieces, self.database))
            return SamplesResponse(pieces, media_type="application/json")
        return json_response(await self.answer(question))

    async def answer(self, question: Question) -> dict[str, Any]:
        """Answer a question."""
        found: dict[str, Any] = await self._translated(self.ask(question))
        return found

    async def ask(self, question: Question) -> dict[str, Any]:
        """Answer a question; its errors are not translated."""
        found = await self._run_paced(partial(question.answer, self.database, self.live)) if question.reads else {}
        return await run_in_threadpool(question.complete, found, self.live) if question.waits() else found

    async def resolve(self, request: Request) -> str:
        """Return the id of the run in the path of a request."""
        return str(await self.read(lambda connection: reader.resolve(connection, request.path_params["id"])))

    async def read(self, query: Callable[[Any], Any]) -> Any:
        """Run a query in one read transaction, in a thread, and return its result."""

        def run_query() -> Any:
            with self.database.reading() as connection:
                return query(connection)

        return await self.compute(run_query)

    async def compute(self, work: Callable[[], Any]) -> Any:
        """Run a function that reads the history in one of `THREADS` threads, and return its result."""
        return await self._translated(self._run_paced(work))

    async def run_in_thread(self, work: Callable[[], Any]) -> Any:
        """Run a function that may wait for others in a thread, and return its result."""
        return await self._translated(run_in_threadpool(work))

    def close(self) -> None:
        """Cancel the reads that have not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _run_paced(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._paced, work)

    def _paced(self, work: Callable[[], Any]) -> Any:
        """Run a function after the rest that is due for the ones before it in this thread."""
        now = time.monotonic()
        until = max(getattr(self._rest, "until", 0.0), now - BURST_SECONDS)
        time.sleep(max(0.0, until - now))
        began, computed = time.monotonic(), time.thread_time()
        try:
            return work()
        finally:
            used = time.monotonic() - began + min(MAX_REST_SECONDS, time.thread_time() - computed)
            self._rest.until = until + used

    async def _translated(self, result: Awaitable[Any]) -> Any:
        try:
            return await result
        except (MissingError, UnknownKeyError, UnknownRunError) as error:
            raise HTTPException(404, str(error)) from None
        except InvalidError as error:
            raise HTTPException(400, str(error)) from None
        except ClosedError as error:
            raise HTTPException(503, f"there is no history at the moment: {error}") from None
        except (ValueError, sqlite3.Error) as error:  # a damaged block or file
            raise HTTPException(500, f"{self.database.path}: {error}") from error

    async def change(self, change: Callable[[RecordStore], Any]) -> Any:
        """Have the writer make a change, and return its result; wait at most the time for a change."""
        self.check_writable()
        future = asyncio.wrap_future(self.writer.call(change))
        await asyncio.wait([future], timeout=self._change_timeout)
        if not future.done():
            future.cancel()
            raise HTTPException(503, "the history is busy; the change may still happen, so check before you retry")
        try:
            return future.result()
        except asyncio.CancelledError:
            raise HTTPException(503, "the daemon is stopping; the change was not made") from None
        except ValueError as error:
            raise HTTPException(409, str(error)) from None
        except sqlite3.Error as error:
            raise HTTPException(503, f"the history cannot be written: {error}") from None

    def check_writable(self) -> None:
        """Raise HTTP 503 while the history cannot be written."""
        if self.writer.stuck:
            raise HTTPException(503, f"the history cannot be written at the moment: {self.writer.problem}")


def parsed(kind: type[Q], request: Request) -> Q:
    """Return the parameters of a request."""
    try:
        return parse(kind, request.path_params, request.query_params.multi_items())
    except InvalidError as error:
        raise HTTPException(400, str(error)) from None


async def body_of(request: Request, most: int = BODY_BYTES) -> bytes:
    """Return the body of a request, which would fill the memory if it had no end."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > most:
            raise HTTPException(400, f"the body has at most {most:,} bytes")
    return bytes(data)


async def decoded_body(request: Request, kind: type[T], shape: str) -> T:
    """Return the body of a request, which may be empty; an error says its *shape*."""
    try:
        return msgspec.json.decode((await body_of(request)).strip() or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"the body must be {shape} ({str(error)[:200]})") from None


def unchanged(request: Request, tag: str) -> tuple[dict[str, str], Response | None]:
    """Return the headers of a file that never changes, and the answer to a client that has it; None to one that has not.

    It asks again each time, because only the daemon knows the token and what was deleted.
    """
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    return headers, Response(status_code=304, headers=headers) if headers["ETag"] in known else None


def json_response(content: Any) -> Response:
    """Return a JSON response."""
    return Response(encode_json(content), media_type="application/json")


def encode_json(content: Any) -> bytes:
    """Return content as JSON in one line."""
    try:
        return _encode(content)
    except UnicodeEncodeError:  # half a surrogate pair, which an escape in a run's configuration can produce
        return _encode(json.loads(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")))
