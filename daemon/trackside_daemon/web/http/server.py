"""The HTTP server, which runs uvicorn in its own thread, and limits the requests that it handles at once."""

import asyncio
import socket
import ssl
import threading
import time
from asyncio.sslproto import SSLProtocol
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from trackside_daemon.web.http.auth_config import ACTIVE_CONFIG, REFUSED, WebConfigMiddleware
from trackside_daemon.web.http.auth_token import error_response
from trackside_daemon.web.http.config_file import ConfigFile, ReloadingContext
from trackside_daemon.web.http.connection_limit import LIMITS, HttpLimits, LimitedListener
from trackside_daemon.web.http.tls import client_is_allowed

WAITS = "/api/v1/mcp"

# ASGI scope key: a function that closes the request's connection at once and drops unsent data.
ABORT = "trackside.abort"

# Seconds until a refused client's connection is aborted if the client does not close its side of TLS.
REFUSED_LINGER_SECONDS = 1.0

BACKLOG = 128

# Bytes of asyncio's receive buffer per TLS connection; the default of 256 KiB is wasted on idle connections.
TLS_BUFFER = 32 * 1024


class RequestLimit:
    """Middleware that refuses a request while too many others of its kind are in progress.

    It counts requests, not connections, so that idle connections use up no room.
    """

    def __init__(self, app: ASGIApp, limits: HttpLimits) -> None:
        self._app = app
        self._most = {"": limits.requests, WAITS: limits.waits}
        self._reserved = limits.reserved
        self._active: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        kind = _kind(scope["path"])
        # No lock is needed: all requests run in the event loop's thread.
        if self._active[kind] >= self._most.get(kind, self._reserved):
            headers = {"Connection": "close", "Retry-After": "1"}
            refusal = error_response(503, "busy", "too many requests are in progress; try again", headers)
            await refusal(scope, receive, send)
            return
        self._active[kind] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._active[kind] -= 1


def _kind(path: str) -> str:
    """Return the reserve that a request uses; empty for none."""
    if path in {"/metrics", WAITS}:
        return path
    return "/-/" if path.startswith("/-/") else ""


class WebServer:
    """Serves an application in a thread.

    Args:
        app: The application.
        listener: The socket from `address.listen`.
        web_config: The web configuration, which decides on TLS and client certificates.
        limits: See `HttpLimits`.
    """

    def __init__(
        self, app: ASGIApp, listener: socket.socket, web_config: ConfigFile, limits: HttpLimits = LIMITS
    ) -> None:
        self._middleware = WebConfigMiddleware(app, web_config)
        config = _Config(
            RequestLimit(self._middleware, limits),
            web_config,
            limits,
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
            backlog=BACKLOG,
            timeout_keep_alive=limits.keep_alive,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._listener = listener
        self._thread = threading.Thread(target=self._serve, name="trackside-web", daemon=True)

    def start(self) -> None:
        """Start the thread and return once it serves requests."""
        self._thread.start()
        # In short waits: if the thread fails, the event is never set.
        while self._thread.is_alive() and not self._server.serving.wait(0.1):
            pass

    def stop(self) -> None:
        """Finish the running requests, then stop. You may call it without `start`."""
        self._server.request_stop()
        if self._thread.is_alive():
            self._thread.join()
        self._middleware.close()

    def loop_delay(self) -> float:
        """Return the seconds that a callback has waited for the event loop; 0 when none is pending.

        Each call sends a callback to the loop unless one is pending.
        """
        return self._server.loop_delay()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))


class _Config(uvicorn.Config):
    """Uvicorn's configuration, extended by the web configuration."""

    def __init__(self, app: ASGIApp, web_config: ConfigFile, limits: HttpLimits, **settings: Any) -> None:
        super().__init__(app, **settings)
        self.limits = limits
        self.web_config = web_config


class _Connection(H11Protocol):
    """Uvicorn's connection, closed when no request arrives in time or when TLS no longer permits the client."""

    config: _Config

    def __init__(self, listener: LimitedListener, *given: Any) -> None:
        super().__init__(*given)
        self._listener = listener
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_deadline()
        peer: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if peer is not None:
            # Made for each connection, because uvicorn's scope does not contain the client's certificate.
            self.app = _ClientCertificateCheck(self.app, self.config.web_config, peer, transport)
        self.app = _AbortHandle(self.app, transport)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes; see `asyncio.Protocol`."""
        super().data_received(data)
        self._update_deadline()  # uvicorn stops its keep-alive timer here, although the request may be incomplete

    def on_response_complete(self) -> None:
        """Finish a response; see `H11Protocol`."""
        super().on_response_complete()
        # uvicorn has already begun the next request if the client has sent several at once.
        if self.cycle.response_complete:
            self._listener.mark_idle(self.transport.get_extra_info("socket").fileno())
        if self.transport.is_closing():
            self.connections.discard(self)  # it may linger, and must not delay a stop meanwhile
            if self.scope.get(REFUSED):
                self.loop.call_later(REFUSED_LINGER_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection; see `asyncio.Protocol`."""
        super().connection_lost(exc)
        self.transport.close()  # uvicorn leaves that out after an error, and Python 3.10 then warns of it
        self._cancel_deadline()

    def _update_deadline(self) -> None:
        """Start the request timeout at the first byte outside a request; cancel it while a request runs."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_deadline()
            self._listener.mark_active(self.transport.get_extra_info("socket").fileno())
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.config.limits.request_seconds, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


@dataclass(eq=False)
class _AbortHandle:
    """Middleware that gives each request a way to abort its connection, for clients that do not read the response."""

    _app: Any
    _transport: asyncio.Transport

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ABORT] = self._transport.abort
        # The rest of the request was no HTTP, or its client has left: nobody reads an answer.
        with suppress(h11.LocalProtocolError, ClientDisconnect):
            await self._app(scope, receive, send)


@dataclass(eq=False)
class _ClientCertificateCheck:
    """Middleware that aborts a connection whose client certificate is no longer permitted.

    As after a restart, a permitted client reconnects.
    """

    _app: Any
    _web_config: ConfigFile
    _peer: ssl.SSLObject
    _transport: asyncio.Transport

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        active = self._web_config.current()
        if active.tls is not None and client_is_allowed(self._peer, active.tls):
            scope[ACTIVE_CONFIG] = active
            await self._app(scope, receive, send)
            return
        self._transport.abort()
        await wait_for_disconnect(receive)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client of a request has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Server(uvicorn.Server):
    """Uvicorn's server without its ten wake-ups a second, which nothing here needs."""

    config: _Config

    def __init__(self, config: _Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = threading.Event()
        self._stopped: asyncio.Event | None = None
        self._probe_sent = 0.0
        self.serving = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Each connection does its own TLS handshake, so that a slow client delays no other."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self.config.web_config.scheme == "https":
            context = ReloadingContext(ssl.PROTOCOL_TLS_SERVER)
            context.file = self.config.web_config
            tls = {"ssl": context, "ssl_handshake_timeout": self.config.limits.request_seconds}
            # asyncio has no parameter for this size. Python 3.10 has no such buffer, so that nothing reads this.
            SSLProtocol.max_size = TLS_BUFFER  # type: ignore[attr-defined]
        self.servers = []
        for socket_ in sockets or ():
            listener = LimitedListener(socket_, self.config.limits, encrypted=bool(tls))
            make = partial(_Connection, listener, self.config, self.server_state, self.lifespan.state)
            self.servers.append(await loop.create_server(make, sock=listener, backlog=BACKLOG, **tls))
        self.started = True

    async def main_loop(self) -> None:
        """Wait for `request_stop`."""
        self._stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.serving.set()
        # `request_stop` may have come before the two attributes above were set.
        if not self._stopping.is_set():
            await self._stopped.wait()

    def loop_delay(self) -> float:
        """See `WebServer.loop_delay`; only one thread may call it."""
        if sent := self._probe_sent:
            return time.monotonic() - sent
        if self._loop is None:
            return 0.0
        self._probe_sent = time.monotonic()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._clear_probe)
        return 0.0

    def _clear_probe(self) -> None:
        self._probe_sent = 0.0

    def request_stop(self) -> None:
        """End `main_loop`; callable from any thread."""
        self._stopping.set()
        if self._loop is not None and self._stopped is not None:
            with suppress(RuntimeError):  # the loop is closed, so the server has stopped already
                self._loop.call_soon_threadsafe(self._stopped.set)
