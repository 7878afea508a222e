"""One HTTP request and its response, in a bounded time however slow the server is."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from errno import EAGAIN
from http.client import HTTPConnection, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

if TYPE_CHECKING:
    import ssl

PATIENCE_SECONDS = 10.0  # seconds that the connection may be idle
LONGEST_SECONDS = 30.0  # seconds that the whole exchange may last


class HttpExchange:
    """HTTP request with a deadline.

    Args:
        context: Trusted certificates.
        proxied: Use the proxy that the environment names, if any.
    """

    def __init__(self, context: ssl.SSLContext, *, proxied: bool) -> None:
        self._late = threading.Event()
        self._sockets: list[socket.socket] = []
        proxies = [] if proxied else [ProxyHandler({})]
        self._opener = build_opener(_NoRedirects, _Plain(self._connect), _Secure(self._connect, context), *proxies)

    def run(self, request: Request, longest: int = 0) -> bytes:
        """Send a request, read the status of the response, and return at most *longest* bytes of its body.

        Raises:
            TimeoutError: The exchange took too long.
            OSError: Error of `urllib` or `http.client`; they also raise `http.client.HTTPException` and `ValueError`.
        """
        # A socket timeout bounds each read only, so a slow server could keep the request open for ever.
        timer = threading.Timer(LONGEST_SECONDS, self._abort)
        timer.daemon = True
        answer = b""
        try:
            timer.start()
        except RuntimeError:
            raise OSError(EAGAIN, "no thread can be started to bound its time; raise the limit of threads") from None
        try:
            with self._opener.open(request, timeout=PATIENCE_SECONDS) as response:
                answer = bytes(response.read(longest)) if longest else b""
        except Exception:
            if not self._late.is_set():
                raise
        finally:
            timer.cancel()
            for opened in self._sockets:
                opened.close()
        if self._late.is_set():  # an exchange that was cut off may appear to have a response
            raise TimeoutError
        return answer

    def _connect(self, *arguments: Any) -> socket.socket:
        opened = socket.create_connection(*arguments)
        # TLS wraps the first handle, so keep a second one to shut the connection down.
        self._sockets.append(opened.dup())
        if self._late.is_set():
            self._abort()
        return opened

    def _abort(self) -> None:
        self._late.set()
        for opened in list(self._sockets):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)


class _Connection(HTTPConnection):
    """Connection that reads the response even if the server disconnects before it has read the whole request."""

    def send(self, data: Any) -> None:
        """See `HTTPConnection`."""
        if self.sock is None:
            self.connect()
        with suppress(BrokenPipeError, ConnectionResetError):
            super().send(data)


class _SecureConnection(_Connection, HTTPSConnection):
    """`_Connection` with TLS."""


class _Plain(HTTPHandler):
    """Handler that connects by *connect*."""

    def __init__(self, connect: Any) -> None:
        super().__init__()
        self._connect = connect

    def http_open(self, req: Request) -> Any:
        """See `HTTPHandler`."""
        return self.do_open(_factory(_Connection, self._connect), req)


class _Secure(HTTPSHandler):
    """Handler for TLS that connects by *connect*."""

    def __init__(self, connect: Any, context: ssl.SSLContext) -> None:
        super().__init__()
        self._connect, self._trust = connect, context

    def https_open(self, req: Request) -> Any:
        """See `HTTPSHandler`."""
        return self.do_open(_factory(_SecureConnection, self._connect), req, context=self._trust)


class _NoRedirects(HTTPRedirectHandler):
    """Handler that follows no redirects, because a message with secrets is for one server only."""

    def redirect_request(self, *_: object) -> None:
        """Return None, which follows no redirect."""


def _factory(kind: type[HTTPConnection], connect: Any) -> Any:
    """Return a factory of connections of this kind that connect by *connect*."""

    def make(*arguments: Any, **options: Any) -> HTTPConnection:
        connection = kind(*arguments, **options)
        connection._create_connection = connect  # type: ignore[attr-defined]  # noqa: SLF001  there is no other way
        return connection

    return make
