"""One request by HTTP and its answer, in a bounded time however slowly the server speaks."""

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

PATIENCE_SECONDS = 10.0
"""So long no byte may come or go."""

LONGEST_SECONDS = 30.0
"""So long all of it may take."""


class Exchange:
    """One of them.

    Args:
        context: Whom to trust.
        proxied: Whether a proxy may be used that the environment names.
    """

    def __init__(self, context: ssl.SSLContext, *, proxied: bool) -> None:
        self._late = threading.Event()
        self._opened: list[socket.socket] = []
        proxies = [] if proxied else [ProxyHandler({})]
        self._opener = build_opener(_NoRedirects, _Plain(self._connect), _Secure(self._connect, context), *proxies)

    def run(self, request: Request) -> None:
        """Send it, and hear the answer's status.

        Raises:
            TimeoutError: It took too long.
            OSError: What `urllib` and `http.client` raise; so do `http.client.HTTPException` and `ValueError`.
        """
        timer = threading.Timer(LONGEST_SECONDS, self._end)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:
            raise OSError(EAGAIN, "no thread can be started to bound its time; raise the limit of threads") from None
        try:
            self._opener.open(request, timeout=PATIENCE_SECONDS).close()
        except Exception:
            if not self._late.is_set():
                raise
        finally:
            timer.cancel()
            for one in self._opened:
                one.close()
        if self._late.is_set():  # what was cut off may look like an answer
            raise TimeoutError

    def _connect(self, *given: Any) -> socket.socket:
        """A connection; a second handle to it stays ours, since TLS takes the first."""
        opened = socket.create_connection(*given)
        self._opened.append(opened.dup())
        if self._late.is_set():
            self._end()
        return opened

    def _end(self) -> None:
        self._late.set()
        for one in list(self._opened):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Hearing(HTTPConnection):
    """A server may answer before it has read all, and hang up: what it answered is heard."""

    def send(self, data: Any) -> None:
        """See `HTTPConnection`."""
        if self.sock is None:
            self.connect()
        with suppress(BrokenPipeError, ConnectionResetError):
            super().send(data)


class _HearingSecurely(_Hearing, HTTPSConnection):
    """The same by TLS."""


class _Plain(HTTPHandler):
    """Connects by *connect*."""

    def __init__(self, connect: Any) -> None:
        super().__init__()
        self._connect = connect

    def http_open(self, req: Request) -> Any:
        """See `HTTPHandler`."""
        return self.do_open(_made(_Hearing, self._connect), req)


class _Secure(HTTPSHandler):
    """The same by TLS."""

    def __init__(self, connect: Any, context: ssl.SSLContext) -> None:
        super().__init__()
        self._connect, self._trust = connect, context

    def https_open(self, req: Request) -> Any:
        """See `HTTPSHandler`."""
        return self.do_open(_made(_HearingSecurely, self._connect), req, context=self._trust)


class _NoRedirects(HTTPRedirectHandler):
    """What is for one server is for no other."""

    def redirect_request(self, *_: object) -> None:
        """None are followed."""


def _made(kind: type[HTTPConnection], connect: Any) -> Any:
    """What makes a connection of this kind that connects by *connect*."""

    def make(*given: Any, **named: Any) -> HTTPConnection:
        made = kind(*given, **named)
        made._create_connection = connect  # type: ignore[attr-defined]  # noqa: SLF001  there is no other way
        return made

    return make
