"""The thread that serves HTTP."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp

REQUESTS_AT_ONCE = 40


class WebServer:
    """Serves an application in a thread of its own.

    Args:
        app: What to serve.
        listener: From `address.listen`.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            limit_concurrency=REQUESTS_AT_ONCE,
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
            self._loop.call_soon_threadsafe(self._left.set)
