"""Handlers of the overview's endpoints: one document, or a stream of server-sent events."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trackside_daemon.history.read import reader
from trackside_daemon.history.read.live_values import LatestValues
from trackside_daemon.history.read.live_values import state as state_of
from trackside_daemon.history.read.reader import UnknownRunError
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import json_number
from trackside_daemon.model.state import State
from trackside_daemon.questions.question import Question, RunName
from trackside_daemon.web.api.history_access import HistoryAccess, encode_json, json_response, parsed
from trackside_daemon.web.api.overview.overview import Overview
from trackside_daemon.web.api.overview.rates import attempt_from_info
from trackside_daemon.web.http.auth_token import error_response
from trackside_daemon.web.http.server import ABORT, wait_for_disconnect

MAX_LISTENERS = 100  # listeners at once; further ones get status 503

PERIOD = 1.0
KEEPALIVE_SECONDS = 15.0  # interval of comments that keep proxies from closing a silent connection

COMMENT = b": trackside\n\n"

log = logging.getLogger("trackside")
MAX_SERIES = 4096  # series of a run in one event; beyond that, the lowest ranks of each key
SEND_TIMEOUT = 30.0
END_TIMEOUT = 0.5  # seconds that the end of a stream is awaited when the daemon stops

# X-Accel-Buffering: without it, nginx collects events before it forwards them.
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class OverviewFrame(NamedTuple):
    """The events of one second: the overview for all listeners, and one event per run by its id."""

    overview: bytes
    runs: Mapping[str, bytes]


class Listener:
    """One client of the stream. A newer frame replaces one that the client has not read yet.

    Args:
        run: The id of the run that the client listens to; empty for none.

    Attributes:
        ended: Set when no more frames follow.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self._frame: OverviewFrame | None = None
        self.ended = asyncio.Event()
        self._available = asyncio.Event()

    def put(self, frame: OverviewFrame) -> None:
        """Offer a new frame."""
        self._frame = frame
        self._available.set()

    def end(self) -> None:
        """End the stream for this client."""
        self.ended.set()
        self._available.set()

    async def next(self) -> list[bytes] | None:
        """Wait for an unread frame and return its events for this client; None at the end of the stream."""
        await self._available.wait()
        frame, self._frame = self._frame, None
        if self.ended.is_set() or frame is None:
            return None
        self._available.clear()
        return [data for data in (frame.overview, frame.runs.get(self.run, b"")) if data]


class ListenersFullError(Exception):
    """The limit of listeners is reached, or the daemon is stopping."""


class OverviewStream:
    """Produces frames and offers them to all listeners. All methods but `stop` run in the server's event loop.

    Args:
        make: Makes a frame, in a thread; receives the ids of the runs that clients listen to.
        period: Seconds between two frames.
        keep_alive: See `KEEPALIVE_SECONDS`.
        most: See `MAX_LISTENERS`.
    """

    def __init__(
        self,
        make: Callable[[Collection[str]], OverviewFrame],
        *,
        period: float = PERIOD,
        keep_alive: float = KEEPALIVE_SECONDS,
        most: int = MAX_LISTENERS,
    ) -> None:
        self._make, self._period, self._keep_alive, self._most = make, period, keep_alive, most
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producer: asyncio.Task[None] | None = None
        self._last: OverviewFrame | None = None
        self._next_frame = 0.0
        self._next_keepalive = 0.0
        self._stopped = False
        self._failed = False

    def subscribe(self, run: str = "") -> Listener:
        """Add a listener; it receives a frame of the last second at once.

        Raises:
            ListenersFullError: There are `MAX_LISTENERS`, or the daemon is stopping.
        """
        if self._stopped or len(self._listeners) >= self._most:
            raise ListenersFullError
        self._loop = asyncio.get_running_loop()
        listener = Listener(run)
        self._listeners.add(listener)
        if self._last is not None and self._loop.time() < self._next_frame:
            listener.put(self._last)
        if self._producer is None or self._producer.done():
            self._producer = asyncio.ensure_future(self._produce(self._loop))
        return listener

    def unsubscribe(self, listener: Listener) -> None:
        """Remove a listener; without listeners no frames are made."""
        self._listeners.discard(listener)
        if not self._listeners and self._producer is not None:
            self._producer.cancel()
            self._producer = None

    def stop(self) -> None:
        """End the stream for all listeners; callable from any thread."""
        self._stopped = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, so there are no listeners
                self._loop.call_soon_threadsafe(self.disconnect)

    def disconnect(self) -> None:
        """End the stream for the present listeners; new ones may subscribe."""
        if self._producer is not None:
            self._producer.cancel()
        for listener in self._listeners:
            listener.end()

    async def _produce(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            await asyncio.sleep(self._next_frame - loop.time())
            begun = loop.time()
            on_time = begun < self._next_frame + self._period / 2
            # After a long delay the grid starts anew, so that no frames follow in quick succession.
            self._next_frame = (self._next_frame if on_time else begun) + self._period
            runs = {listener.run for listener in self._listeners} - {""}
            frame = await self._make_frame(runs)
            if loop.time() >= self._next_keepalive:
                self._next_keepalive = loop.time() + self._keep_alive
                frame = frame._replace(overview=frame.overview + COMMENT)
            self._last = frame
            for listener in self._listeners:
                listener.put(frame)

    async def _make_frame(self, runs: Collection[str]) -> OverviewFrame:
        """Return a frame; an empty one when that fails, so that listeners stay connected."""
        try:
            frame = await run_in_threadpool(self._make, runs)
        except Exception:
            if not self._failed:
                log.exception("the overview cannot be produced; further failures are not logged")
            self._failed = True
            return OverviewFrame(b"", {})
        self._failed = False
        return frame


def format_event(name: str, data: bytes) -> bytes:
    """Return a server-sent event; *data* is one line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


class StreamOfRun(Question, frozen=True, kw_only=True):
    """The parameters of a request for the stream."""

    run: RunName = ""


class OverviewApi:
    """Answers requests for the overview and its stream.

    Args:
        state: The newest value of every series.
        history: The history.
        overview: Builds the overview.
        send_timeout: Seconds after which a listener that reads nothing is disconnected.
    """

    def __init__(
        self, state: State, history: HistoryAccess, overview: Overview, send_timeout: float = SEND_TIMEOUT
    ) -> None:
        self._state = state
        self._history = history
        self._overview = overview
        self._send_timeout = send_timeout
        self._newest: dict[str, LatestValues] = {}
        self._stream = OverviewStream(self._make_frame)

    def stop(self) -> None:
        """End the streams; callable from any thread."""
        self._stream.stop()

    def disconnect(self) -> None:
        """End the present streams; to be called in the server's event loop."""
        self._stream.disconnect()

    async def overview(self, _request: Request) -> Response:
        """Return the current overview: the host, its GPUs, Ray, the live and lingering runs, and the firing alerts."""
        return json_response(await self._history.run_in_thread(self._overview.build))

    async def stream(self, request: Request) -> Response:
        """Stream the overview once a second as server-sent events."""
        run = parsed(StreamOfRun, request).run
        if run:
            run = await self._history.read(lambda connection: self._resolve(connection, run))
        if request.method == "HEAD":
            return Response(headers=HEADERS)
        return _EventStreamResponse(self._stream, run, self._send_timeout)

    def _resolve(self, connection: Any, text: str) -> str:
        """Return a run's id, also for a run that the history has not written yet."""
        try:
            return reader.resolve(connection, text)
        except UnknownRunError:
            for name, id_, _ in self._live_runs():
                if text in (name, id_):
                    return id_
            raise

    def _live_runs(self) -> list[tuple[str, str, str | None]]:
        """Return name, id and state of the runs on ``/metrics``."""
        infos, states = self._state.values(time.monotonic(), f.RUN_INFO, f.STATE)
        active = {name: state for (name, state), value in states.items() if value == 1.0}
        return [(labels[0], attempt_from_info(labels)[0], active.get(labels[0])) for labels in infos]

    def _make_frame(self, run_ids: Collection[str]) -> OverviewFrame:
        overview = format_event("overview", encode_json(self._overview.build()))
        self._newest = {run: self._newest.get(run) or LatestValues(run) for run in run_ids}
        events = {}
        for run, newest in self._newest.items():
            with suppress(sqlite3.Error, ValueError, UnknownRunError):  # the overview has logged it
                events[run] = format_event("run", encode_json(self._run_json(newest)))
        return OverviewFrame(overview, events)

    def _run_json(self, newest: LatestValues) -> dict[str, Any]:
        """Return the newest values of a run; a run that the history has not written yet has none."""
        state = next((state for _, id_, state in self._live_runs() if id_ == newest.uid), None)
        with self._history.database.reading() as connection:
            newest.refresh(connection)
            if state is None:
                state = state_of(connection, newest.uid)
        return {
            "id": newest.uid,
            "state": state,
            "step": newest.step(),
            "time": time.time(),
            "values": {
                key: {rank: [value.step, value.time, json_number(value.value)] for rank, value in sorted(ranks.items())}
                for key, ranks in _limit_series(newest.values).items()
            },
        }


class _EventStreamResponse(Response):
    """Sends events to one client until it disconnects, stops reading, or the daemon stops.

    Args:
        stream: The source of the events.
        run: The id of a run; empty for none.
        send_timeout: Seconds after which it is disconnected if it reads nothing.
    """

    def __init__(self, stream: OverviewStream, run: str, send_timeout: float) -> None:
        super().__init__(headers=HEADERS)
        # Starlette sets it to 0 for an empty body.
        del self.headers["Content-Length"]
        self._stream = stream
        self._run = run
        self._send_timeout = send_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            listener = self._stream.subscribe(self._run)
        except ListenersFullError:
            message = (
                f"the stream already has {MAX_LISTENERS} listeners; close one of their pages, or use /api/v1/overview"
            )
            await error_response(503, "busy", message, {"Retry-After": "5"})(scope, receive, send)
            return
        disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
        sending = asyncio.ensure_future(self._send_events(listener, send))
        ended = asyncio.ensure_future(listener.ended.wait())
        try:
            await asyncio.wait((disconnected, sending, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await asyncio.wait((disconnected, sending), timeout=END_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if not disconnected.done() and not (sending.done() and sending.result()):
                # The client reads nothing, so a regular close would wait for its buffer to empty.
                scope.get(ABORT, disconnected.cancel)()
                await asyncio.wait((disconnected,))
        finally:
            self._stream.unsubscribe(listener)
            for task in (disconnected, sending, ended):
                task.cancel()
            await asyncio.gather(disconnected, sending, ended, return_exceptions=True)

    async def _send_events(self, listener: Listener, send: Send) -> bool:
        """Send events to the end of the stream and return True; return False when the client stops reading."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while (events := await listener.next()) is not None:
            for data in events:
                message = {"type": "http.response.body", "body": data, "more_body": True}
                try:
                    await asyncio.wait_for(send(message), self._send_timeout)
                except asyncio.TimeoutError:
                    return False
        await send({"type": "http.response.body", "body": b""})
        return True


def _limit_series(values: dict[str, dict[int, Any]]) -> dict[str, dict[int, Any]]:
    """Return at most `MAX_SERIES` series, with the same number of ranks for each key, the lowest ones."""
    if sum(map(len, values.values())) <= MAX_SERIES:
        return values
    per_key = max(1, MAX_SERIES // len(values))
    keys = list(values.items())[:MAX_SERIES]
    return {key: dict(sorted(ranks.items())[:per_key]) for key, ranks in keys}
