"""The thread that serves HTTP."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp

CONNECTIONS = 256
"""What comes on top is answered 503."""

SILENT_SECONDS = 10.0
"""A connection that has not asked anything for so long is closed, so that idle ones do not keep scrapes out."""


class WebServer:
    """Serves an application in a thread of its own.

    Args:
        app: What to serve.
        listener: From `address.listen`.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            interface="asgi3",
            loop="asyncio",
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._listener = listener
        self._thread = threading.Thread(target=self._serve, name="trackside-web", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what is under way, then end."""
        self._server.leave()
        self._thread.join()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))


class _Connection(H11Protocol):
    """Uvicorn's, but one that opens and then says nothing does not stay."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(SILENT_SECONDS, self._leave_unless_asked)

    def _leave_unless_asked(self) -> None:
        if self.cycle is None:
            self.transport.close()


class _Server(uvicorn.Server):
    """Uvicorn without its ten wake-ups a second: nothing here needs a clock."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving = threading.Event()
        self._left: asyncio.Event | None = None

    async def main_loop(self) -> None:
        """Wait to be told to leave."""
        self._left = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if not self._leaving.is_set():
            await self._left.wait()

    def leave(self) -> None:
        """End `main_loop`; from any thread."""
        self._leaving.set()
        if self._loop is not None and self._left is not None:
            with suppress(RuntimeError):  # its loop is closed: it has left already
                self._loop.call_soon_threadsafe(self._left.set)
