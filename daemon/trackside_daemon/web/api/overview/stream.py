"""A stream of frames, one a second, produced once for all listeners and only while there are any."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from starlette.concurrency import run_in_threadpool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

MAX_LISTENERS = 100  # listeners at once; further ones get status 503

PERIOD = 1.0
KEEPALIVE_SECONDS = 15.0  # interval of comments that keep proxies from closing a silent connection

COMMENT = b": trackside\n\n"

log = logging.getLogger("trackside")


class Frame(NamedTuple):
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
        self._frame: Frame | None = None
        self.ended = asyncio.Event()
        self._available = asyncio.Event()

    def put(self, frame: Frame) -> None:
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


class FullError(Exception):
    """The limit of listeners is reached, or the daemon is stopping."""


class Stream:
    """Produces frames and offers them to all listeners. All methods but `stop` run in the server's event loop.

    Args:
        make: Makes a frame, in a thread; receives the ids of the runs that clients listen to.
    """

    def __init__(self, make: Callable[[Collection[str]], Frame]) -> None:
        self._make = make
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._producer: asyncio.Task[None] | None = None
        self._last: Frame | None = None
        self._next_frame = 0.0
        self._next_keepalive = 0.0
        self._stopped = False
        self._failed = False

    def subscribe(self, run: str = "") -> Listener:
        """Add a listener; it receives a frame of the last second at once.

        Raises:
            FullError: There are `MAX_LISTENERS`, or the daemon is stopping.
        """
        if self._stopped or len(self._listeners) >= MAX_LISTENERS:
            raise FullError
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
            on_time = begun < self._next_frame + PERIOD / 2
            # After a long delay the grid starts anew, so that no frames follow in quick succession.
            self._next_frame = self._next_frame + PERIOD if on_time else begun + PERIOD
            runs = {listener.run for listener in self._listeners} - {""}
            frame = await self._make_frame(runs)
            if loop.time() >= self._next_keepalive:
                self._next_keepalive = loop.time() + KEEPALIVE_SECONDS
                frame = frame._replace(overview=frame.overview + COMMENT)
            self._last = frame
            for listener in self._listeners:
                listener.put(frame)

    async def _make_frame(self, runs: Collection[str]) -> Frame:
        """Return a frame; an empty one when that fails, so that listeners stay connected."""
        try:
            frame = await run_in_threadpool(self._make, runs)
        except Exception:
            if not self._failed:
                log.exception("the overview cannot be produced; further failures are not logged")
            self._failed = True
            return Frame(b"", {})
        self._failed = False
        return frame


def format_event(name: str, data: bytes) -> bytes:
    """Return a server-sent event; *data* is one line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
