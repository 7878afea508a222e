"""What is made once a second for all who listen, and not at all while nobody does."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from starlette.concurrency import run_in_threadpool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

LISTENERS = 100
"""What comes on top is answered 503."""

PERIOD = 1.0
CALM_SECONDS = 15.0
"""So often there is a comment, for proxies that close what is silent."""

COMMENT = b": trackside\n\n"

log = logging.getLogger("trackside")


class Frame(NamedTuple):
    """What all are told, and besides who listens to a run, by its id."""

    overview: bytes
    runs: Mapping[str, bytes]


class Listener:
    """Whoever listens. Of frames that he does not take the newest replaces the one before.

    Args:
        run: The id of the run that he listens to; empty for none.

    Attributes:
        over: Set when there are no more.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self._frame: Frame | None = None
        self.over = asyncio.Event()
        self._news = asyncio.Event()

    def put(self, frame: Frame) -> None:
        """The newest."""
        self._frame = frame
        self._news.set()

    def end(self) -> None:
        """There are no more."""
        self.over.set()
        self._news.set()

    async def next(self) -> list[bytes] | None:
        """What of the newest frame that was not taken is for him, waited for; None at the end."""
        await self._news.wait()
        frame, self._frame = self._frame, None
        if self.over.is_set() or frame is None:
            return None
        self._news.clear()
        return [one for one in (frame.overview, frame.runs.get(self.run, b"")) if one]


class FullError(Exception):
    """As many listen as may."""


class Stream:
    """Tells all who listen; all but `stop` is for the loop that serves.

    Args:
        make: Makes a frame, with what is to be told of some runs, in a thread.
    """

    def __init__(self, make: Callable[[Collection[str]], Frame]) -> None:
        self._make = make
        self._listeners: set[Listener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._going: asyncio.Task[None] | None = None
        self._last: Frame | None = None
        self._due = self._calm = 0.0
        self._stopped = self._failed = False

    def join(self, run: str = "") -> Listener:
        """Listen from now on; what was made within the last second is told at once.

        Raises:
            FullError: Too many do, or the daemon ends.
        """
        if self._stopped or len(self._listeners) >= LISTENERS:
            raise FullError
        self._loop = asyncio.get_running_loop()
        listener = Listener(run)
        self._listeners.add(listener)
        if self._last is not None and self._loop.time() < self._due:
            listener.put(self._last)
        if self._going is None or self._going.done():
            self._going = asyncio.ensure_future(self._go(self._loop))
        return listener

    def leave(self, listener: Listener) -> None:
        """Listen no more; after the last nothing is made."""
        self._listeners.discard(listener)
        if not self._listeners and self._going is not None:
            self._going.cancel()
            self._going = None

    def stop(self) -> None:
        """End all, from any thread."""
        self._stopped = True
        if self._loop is not None:
            with suppress(RuntimeError):  # its loop is closed: nobody listens
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._going is not None:
            self._going.cancel()
        for one in self._listeners:
            one.end()

    async def _go(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            await asyncio.sleep(self._due - loop.time())
            begun = loop.time()
            self._due = self._due + PERIOD if begun < self._due + PERIOD / 2 else begun + PERIOD
            wanted = {one.run for one in self._listeners} - {""}
            frame = await self._made(wanted)
            if loop.time() >= self._calm:
                self._calm = loop.time() + CALM_SECONDS
                frame = frame._replace(overview=frame.overview + COMMENT)
            self._last = frame
            for one in self._listeners:
                one.put(frame)

    async def _made(self, wanted: Collection[str]) -> Frame:
        """A frame; an empty one when that fails, so that those who listen stay."""
        try:
            frame = await run_in_threadpool(self._make, wanted)
        except Exception:
            if not self._failed:
                log.exception("the overview cannot be made; further failures are not logged")
            self._failed = True
            return Frame(b"", {})
        self._failed = False
        return frame


def event(name: str, data: bytes) -> bytes:
    """A server-sent event; *data* is one line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
