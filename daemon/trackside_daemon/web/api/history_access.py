"""The history as the pages ask it: reads in threads of their own, changes by its writer, errors as answers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from trackside_daemon.history.read import reader
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.web.api.query_params import bounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from trackside_daemon.history.database import Database
    from trackside_daemon.history.record.store import Store
    from trackside_daemon.history.record.writer import Writer

CHANGE_SECONDS = 15.0
"""Whoever changes something waits for the writer so long."""

_encode = msgspec.json.Encoder().encode


class Kept:
    """What the history has.

    Args:
        database: Is read.
        writer: Makes the changes.
    """

    def __init__(self, database: Database, writer: Writer) -> None:
        self.database = database
        self.writer = writer

    async def read(self, look: Callable[[Any], Any]) -> Any:
        """What *look* finds in one moment's view of the history."""

        def read() -> Any:
            with self.database.reading() as connection:
                return look(connection)

        return await self.in_thread(read)

    async def in_thread(self, read: Callable[[], Any]) -> Any:
        """What *read* finds in the history."""
        try:
            return await run_in_threadpool(read)
        except UnknownRunError as error:
            raise HTTPException(404, str(error)) from None
        except (ValueError, sqlite3.Error) as error:  # a block that is damaged, or the file
            raise HTTPException(500, f"{self.database.path}: {error}") from error

    async def change(self, change: Callable[[Store], Any]) -> Any:
        """Have the writer change something, and wait until it is done, or for `CHANGE_SECONDS`."""
        self.refuse_when_stuck()
        future = asyncio.wrap_future(self.writer.call(change))
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

    def refuse_when_stuck(self) -> None:
        """Answer so while nothing can be written."""
        if self.writer.stuck:
            raise HTTPException(503, "the history cannot be written at the moment; the log says why")


async def listed(
    kept: Kept, request: Request, read: Callable[[Any, str, int], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The newest ``limit`` of something, of the ``run`` that is asked for or of all."""
    asked = request.query_params
    limit = bounded(asked, "limit", 1000, 100_000)

    def look(connection: Any) -> list[dict[str, Any]]:
        return read(connection, reader.resolve(connection, asked["run"]) if asked.get("run") else "", limit)

    found: list[dict[str, Any]] = await kept.read(look)
    return found


def as_json(content: Any) -> Response:
    """An answer."""
    return Response(encoded(content), media_type="application/json")


def encoded(content: Any) -> bytes:
    """JSON in one line."""
    try:
        return _encode(content)
    except UnicodeEncodeError:  # half a surrogate pair, which an escape in a configuration can write
        return _encode(json.loads(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")))
