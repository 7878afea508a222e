"""Access to the history for API endpoints: reads in threads, changes through the writer, errors as HTTP responses."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from trackside_daemon.history.database import ClosedError
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.web.api.query_params import parse_bounded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from trackside_daemon.history.database import Database
    from trackside_daemon.history.record.store import Store
    from trackside_daemon.history.record.writer import Writer

DEFAULT_LISTED = 1000  # events or alerts in one answer
MAX_LISTED = 10_000

# Threads that read the history, each for half of the time at most. A chart over a thousand ranks computes for a second, and the
# charts of a page would leave no time to the threads that accept pushes.
THREADS = 2
MOST_REST = 2.0  # seconds

CHANGE_TIMEOUT = 15.0  # seconds that a change waits for the writer

_encode = msgspec.json.Encoder().encode


class HistoryAccess:
    """Reads and changes the history, and translates errors to HTTP errors.

    Args:
        database: For reads.
        writer: For changes.
    """

    def __init__(self, database: Database, writer: Writer) -> None:
        self.database = database
        self.writer = writer
        self._executor = ThreadPoolExecutor(THREADS, "trackside-read")
        self._rest = threading.local()

    async def read(self, query: Callable[[Any], Any]) -> Any:
        """Run a query in one read transaction, in a thread, and return its result."""

        def run_query() -> Any:
            with self.database.reading() as connection:
                return query(connection)

        return await self.compute(run_query)

    async def compute(self, work: Callable[[], Any]) -> Any:
        """Run a function that reads the history in one of `THREADS` threads, and return its result."""
        loop = asyncio.get_running_loop()
        return await self._translated(loop.run_in_executor(self._executor, self._paced, work))

    async def run_in_thread(self, work: Callable[[], Any]) -> Any:
        """Run a function that may wait for others in a thread, and return its result."""
        return await self._translated(run_in_threadpool(work))

    def close(self) -> None:
        """Cancel the reads that have not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _paced(self, work: Callable[[], Any]) -> Any:
        """Run a function after the rest that follows the last one of this thread."""
        time.sleep(max(0.0, getattr(self._rest, "until", 0.0) - time.monotonic()))
        began = time.thread_time()
        try:
            return work()
        finally:
            self._rest.until = time.monotonic() + min(MOST_REST, time.thread_time() - began)

    async def _translated(self, result: Awaitable[Any]) -> Any:
        try:
            return await result
        except UnknownRunError as error:
            raise HTTPException(404, str(error)) from None
        except ClosedError as error:
            raise HTTPException(503, f"there is no history at the moment: {error}") from None
        except (ValueError, sqlite3.Error) as error:  # a damaged block or file
            raise HTTPException(500, f"{self.database.path}: {error}") from error

    async def change(self, change: Callable[[Store], Any]) -> Any:
        """Have the writer make a change, and return its result; wait at most `CHANGE_TIMEOUT`."""
        self.check_writable()
        future = asyncio.wrap_future(self.writer.call(change))
        await asyncio.wait([future], timeout=CHANGE_TIMEOUT)
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


async def read_listing(
    history: HistoryAccess,
    request: Request,
    read: Callable[[Any, str, int], list[dict[str, Any]]],
    most: int = MAX_LISTED,
) -> list[dict[str, Any]]:
    """Return the newest ``limit`` entries, of the requested ``run`` or of all runs.

    Args:
        history: The history.
        request: The request.
        read: Receives the connection, the run's id (empty for all) and the limit.
        most: The largest limit.
    """
    params = request.query_params
    limit = parse_bounded(params, "limit", DEFAULT_LISTED, most)

    def query(connection: Any) -> list[dict[str, Any]]:
        return read(connection, reader.resolve(connection, params["run"]) if params.get("run") else "", limit)

    entries: list[dict[str, Any]] = await history.read(query)
    return entries


def json_response(content: Any) -> Response:
    """Return a JSON response."""
    return Response(encode_json(content), media_type="application/json")


def encode_json(content: Any) -> bytes:
    """Return content as JSON in one line."""
    try:
        return _encode(content)
    except UnicodeEncodeError:  # half a surrogate pair, which an escape in a run's configuration can produce
        return _encode(json.loads(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")))
