"""The thread that serves HTTP."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from asyncio.sslproto import SSLProtocol
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trackside_daemon.web.http.auth_config import IN_FORCE, REFUSED, Access
from trackside_daemon.web.http.config_file import Listening
from trackside_daemon.web.http.connection_limit import Door
from trackside_daemon.web.http.tls import admits

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp, Receive, Scope, Send

    from trackside_daemon.web.http.config_file import ConfigFile

CONNECTIONS = 256
"""What comes on top is answered 503."""

SILENT_SECONDS = 10.0
"""A connection that has not asked anything for so long is closed, so that idle ones do not keep scrapes out.

One that does not end its TLS handshake in that time is closed, too, or any request's head that it has begun.
"""

ABORT = "trackside.abort"
"""Where the server leaves what closes a request's connection at once, with all that was not sent on it."""

LEAVE_SECONDS = 1.0
"""Who was refused is hung up on after so long, though he does not close his end of TLS."""

BACKLOG = 128
TLS_BUFFER = 32 * 1024
"""Bytes that asyncio sets aside for each connection; 256 KiB, its own choice, would be spent on silent ones, too."""


class WebServer:
    """Serves an application in a thread of its own.

    Args:
        app: What to serve.
        listener: From `address.listen`.
        web_config: By which TLS is spoken, and with whom.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket, web_config: ConfigFile) -> None:
        self._access = Access(app, web_config)
        config = _Config(
            self._access,
            web_config,
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
            backlog=BACKLOG,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._listener = listener
        self._thread = threading.Thread(target=self._serve, name="trackside-web", daemon=True)

    def start(self) -> None:
        """Begin to answer, and return when it does."""
        self._thread.start()
        while self._thread.is_alive() and not self._server.begun.wait(0.1):
            pass

    def stop(self) -> None:
        """Answer what is under way, then end."""
        self._server.leave()
        self._thread.join()
        self._access.close()

    def behind(self) -> float:
        """Seconds that its loop has owed a turn, of which each call asks for one."""
        return self._server.behind()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))


class _Config(uvicorn.Config):
    """Uvicorn's, and the web configuration."""

    def __init__(self, app: ASGIApp, web_config: ConfigFile, **settings: Any) -> None:
        super().__init__(app, **settings)
        self.web_config = web_config


class _Connection(H11Protocol):
    """Uvicorn's, but one that opens and then says nothing does not stay, nor does one that TLS no longer admits."""

    config: _Config

    def __init__(self, door: Door, *given: Any) -> None:
        super().__init__(*given)
        self._door = door
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._want_request()
        peer: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if peer is not None:
            self.app = _Admitted(self.app, self.config.web_config, peer, transport)
        self.app = _Abortable(self.app, transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. Uvicorn's own clock stops here, though what came may be no whole request."""
        super().data_received(data)
        self._want_request()

    def on_response_complete(self) -> None:
        """See `H11Protocol`."""
        super().on_response_complete()
        if self.transport.is_closing():
            self.connections.discard(self)  # it may linger, and takes no other's place meanwhile
            if self.scope.get(REFUSED):
                self.loop.call_later(LEAVE_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        super().connection_lost(exc)
        self._end_deadline()

    def _want_request(self) -> None:
        """Have a request within the time, counted from the first byte that is of none."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_deadline()
            self._door.asked(self.transport.get_extra_info("socket").fileno())
        elif self._deadline is None:
            self._deadline = self.loop.call_later(SILENT_SECONDS, self.transport.close)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Abortable:
    """Tells each request how to close its connection: one that does not read what is sent ends in no other way."""

    def __init__(self, app: Any, transport: asyncio.Transport) -> None:
        self._app = app
        self._transport = transport

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ABORT] = self._transport.abort
        await self._app(scope, receive, send)


class _Admitted:
    """Passes requests on while their connection is one that would be let in now; else it ends without an answer.

    As after a restart, a client that may come asks again by a new connection.
    """

    def __init__(self, app: Any, web_config: ConfigFile, peer: ssl.SSLObject, transport: asyncio.Transport) -> None:
        self._app = app
        self._web_config = web_config
        self._peer = peer
        self._transport = transport

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        now = self._web_config.current()
        if now.tls is not None and admits(self._peer, now.tls):
            scope[IN_FORCE] = now
            await self._app(scope, receive, send)
            return
        self._transport.abort()
        while (await receive())["type"] != "http.disconnect":
            pass


class _Server(uvicorn.Server):
    """Uvicorn without its ten wake-ups a second: nothing here needs a clock."""

    config: _Config

    def __init__(self, config: _Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving = threading.Event()
        self._left: asyncio.Event | None = None
        self._asked = 0.0
        self.begun = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Each connection shakes hands for itself, so that a silent one delays no other."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self.config.web_config.scheme == "https":
            context = Listening(ssl.PROTOCOL_TLS_SERVER)
            context.file = self.config.web_config
            tls = {"ssl": context, "ssl_handshake_timeout": SILENT_SECONDS}
            SSLProtocol.max_size = TLS_BUFFER  # type: ignore[attr-defined]
        self.servers = []
        for door in map(Door, sockets or ()):
            make = partial(_Connection, door, self.config, self.server_state, self.lifespan.state)
            self.servers.append(await loop.create_server(make, sock=door, backlog=BACKLOG, **tls))
        self.started = True

    async def main_loop(self) -> None:
        """Wait to be told to leave."""
        self._left = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.begun.set()
        if not self._leaving.is_set():
            await self._left.wait()

    def behind(self) -> float:
        """Seconds since a turn was asked for that has not come; asks for one when none is. For one thread to call."""
        if asked := self._asked:
            return time.monotonic() - asked
        if self._loop is None:
            return 0.0
        self._asked = time.monotonic()
        with suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._asked = 0.0

    def leave(self) -> None:
        """End `main_loop`; from any thread."""
        self._leaving.set()
        if self._loop is not None and self._left is not None:
            with suppress(RuntimeError):  # its loop is closed: it has left already
                self._loop.call_soon_threadsafe(self._left.set)
