"""The pages of `/api/v1` that show what is now: once, and as a stream."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from trackside_daemon.history.read import reader
from trackside_daemon.history.read.live_values import Newest
from trackside_daemon.history.read.live_values import state as state_of
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.model.metric import json_number
from trackside_daemon.training import families as f
from trackside_daemon.web.api.history_access import as_json, encoded
from trackside_daemon.web.api.overview.rates import attempt_of
from trackside_daemon.web.api.overview.stream import LISTENERS, Frame, FullError, Stream, event
from trackside_daemon.web.http.auth_token import error
from trackside_daemon.web.http.server import ABORT

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from trackside_daemon.model.state import State
    from trackside_daemon.web.api.history_access import Kept
    from trackside_daemon.web.api.overview.overview import Overview
    from trackside_daemon.web.api.overview.stream import Listener

SERIES = 4096
"""So many series of a run are told in an event, of each key the lowest ranks."""

PATIENCE_SECONDS = 30.0
"""A listener that has taken nothing for so long is gone."""

END_SECONDS = 0.5
"""So long the end of a stream is waited for when the daemon stops."""

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}

log = logging.getLogger("trackside")


class OverviewPages:
    """Answers what is now.

    Args:
        state: The newest of every series.
        kept: The history.
        overview: Makes it.
    """

    def __init__(self, state: State, kept: Kept, overview: Overview) -> None:
        self._state = state
        self._kept = kept
        self._overview = overview
        self._newest: dict[str, Newest] = {}
        self._told = Stream(self._frame)

    def stop(self) -> None:
        """End the streams, from any thread."""
        self._told.stop()

    async def overview(self, _request: Request) -> Response:
        """``/api/v1/overview``."""
        return as_json(await self._kept.in_thread(self._overview.make))

    async def stream(self, request: Request) -> Response:
        """``/api/v1/stream``."""
        run = request.query_params.get("run", "")
        if run:
            run = await self._kept.read(lambda connection: self._resolve(connection, run))
        return Response(headers=HEADERS) if request.method == "HEAD" else _Events(self._told, run)

    def _resolve(self, connection: Any, text: str) -> str:
        """A run's id; also of one that the history is about to write."""
        try:
            return reader.resolve(connection, text)
        except UnknownRunError:
            for labels, id_, _ in self._on_page():
                if text in (labels[0], id_):
                    return id_
            raise

    def _on_page(self) -> list[tuple[tuple[str, ...], str, str | None]]:
        """The runs on ``/metrics``: the labels of their info, their ids and states."""
        infos, states = self._state.values(time.monotonic(), f.RUN_INFO, f.STATE)
        active = {name: state for (name, state), value in states.items() if value == 1.0}
        return [(labels, attempt_of(labels)[0], active.get(labels[0])) for labels in infos]

    def _frame(self, wanted: Collection[str]) -> Frame:
        """What all are told."""
        overview = event("overview", encoded(self._overview.make()))
        self._newest = {run: self._newest.get(run) or Newest(run) for run in wanted}
        told = {}
        for run, newest in self._newest.items():
            with suppress(sqlite3.Error, ValueError, UnknownRunError):  # the log has it by the overview
                told[run] = event("run", encoded(self._run(newest)))
        return Frame(overview, told)

    def _run(self, newest: Newest) -> dict[str, Any]:
        """A run that somebody listens to; one that is not written yet has no values."""
        state = next((state for _, id_, state in self._on_page() if id_ == newest.uid), None)
        with self._kept.database.reading() as connection:
            newest.refresh(connection)
            if state is None:
                state = state_of(connection, newest.uid)
        return {
            "id": newest.uid,
            "state": state,
            "step": newest.step(),
            "time": time.time(),
            "values": {
                key: {rank: [one.step, one.time, json_number(one.value)] for rank, one in sorted(ranks.items())}
                for key, ranks in _cut(newest.values).items()
            },
        }


class _Events(Response):
    """What one listener is told until he, the daemon or his patience ends.

    Args:
        stream: What he listens to.
        run: The id of a run; empty for none.
    """

    def __init__(self, stream: Stream, run: str) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["Content-Length"]
        self._stream = stream
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell."""
        try:
            listener = self._stream.join(self._run)
        except FullError:
            many = f"{LISTENERS} listen to the stream already; close a page of them, or ask /api/v1/overview"
            await error(503, "busy", many, {"Retry-After": "5"})(scope, receive, send)
            return
        gone = asyncio.ensure_future(_gone(receive))
        telling = asyncio.ensure_future(self._tell(listener, send))
        over = asyncio.ensure_future(listener.over.wait())
        try:
            await asyncio.wait((gone, telling, over), return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                await asyncio.wait((gone, telling), timeout=END_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not gone.done() and not (telling.done() and telling.result()):
                scope.get(ABORT, gone.cancel)()
                await asyncio.wait((gone,))
        finally:
            self._stream.leave(listener)
            for task in (gone, telling, over):
                task.cancel()
            await asyncio.gather(gone, telling, over, return_exceptions=True)

    async def _tell(self, listener: Listener, send: Send) -> bool:
        """Whether all was taken, to the end."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while (pieces := await listener.next()) is not None:
            for one in pieces:
                message = {"type": "http.response.body", "body": one, "more_body": True}
                try:
                    await asyncio.wait_for(send(message), PATIENCE_SECONDS)
                except asyncio.TimeoutError:
                    return False
        await send({"type": "http.response.body", "body": b""})
        return True


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _cut(values: dict[str, dict[int, Any]]) -> dict[str, dict[int, Any]]:
    """At most `SERIES` of them, of each key as many ranks as of the others."""
    if sum(map(len, values.values())) <= SERIES:
        return values
    each = max(1, SERIES // len(values))
    kept = list(values.items())[:SERIES]
    return {key: dict(sorted(ranks.items())[:each]) for key, ranks in kept}
