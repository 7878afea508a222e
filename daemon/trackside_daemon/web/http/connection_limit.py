"""A listening socket that limits the number of open connections."""

import errno
import logging
import os
import socket
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakSet

from trackside.log_once import LogOnce

_BUSY = b'{"error":{"reason":"busy","message":"too many connections; try again"}}'
UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_BUSY), _BUSY)
)

log = logging.getLogger("trackside")


class HttpLimits(NamedTuple):
    """Limits of the web server.

    Attributes:
        connections: Open connections, including those still in their TLS handshake. One more closes the connection that has
            been idle longest; if none is idle, it is closed itself.
        idle: Open connections without a request, the first or a further one. One more closes the one that has been idle
            longest, so that idle clients lock nobody out.
        requests: Requests at once. Further ones get status 503.
        reserved: Requests at once for /metrics, and as many for /-/…, which do not count towards *requests*: many streams of
            the dashboard must not stop a scrape, nor make a liveness probe restart the daemon.
        waits: Messages of agents at once, likewise: most of them wait for an event, which costs next to nothing.
        request_seconds: Time until a connection without a complete request is closed, the first or a further one, so that
            idle ones do not lock out scrapes; also of an unfinished TLS handshake and of an unfinished request head.
        keep_alive: Seconds of a connection without a request after its last response.
    """

    connections: int = 1536
    idle: int = 128
    requests: int = 256
    reserved: int = 64
    waits: int = 1024
    request_seconds: float = 10.0
    keep_alive: float = 10


LIMITS = HttpLimits()


class LimitedListener(socket.socket):
    """A listening socket for asyncio with a limit on open connections.

    asyncio accepts every connection and has no limit before the end of the TLS handshake.

    Args:
        listener: A bound, listening socket. It is duplicated, and the caller still closes the original.
        limits: The limits.
        encrypted: Whether its connections use TLS, so that one that is rejected can get no answer.
    """

    def __init__(self, listener: socket.socket, limits: HttpLimits, *, encrypted: bool = False) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=os.dup(listener.fileno()))
        self._limits, self._encrypted = limits, encrypted
        self._open: WeakSet[socket.socket] = WeakSet()
        # By descriptor; of the idle ones, the longest idle comes first.
        self._idle: dict[int, socket.socket] = {}
        self._active: dict[int, socket.socket] = {}
        # Without a descriptor in reserve, a process at its limit could not even accept a connection to close it.
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._logged = LogOnce()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; see `socket.socket.accept`.

        Raises:
            ConnectionAbortedError: The connection was rejected.
        """
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or self._spare is None:
                raise
            self._reject_one()
            raise ConnectionAbortedError from None
        # Closed sockets stay in the set until they are garbage-collected, so they are removed before the limit applies.
        if len(self._open) >= self._limits.connections:
            self._open = WeakSet(entry for entry in self._open if entry.fileno() >= 0)
        if len(self._open) >= self._limits.connections and not self._close_idle():
            self._reject(connection)
            raise ConnectionAbortedError
        self._open.add(connection)
        self._add_idle(connection)
        return connection, address

    def mark_active(self, descriptor: int) -> None:
        """Record that a connection has sent a request, so that it no longer counts as idle."""
        if (connection := self._idle.pop(descriptor, None)) is not None:
            self._active[descriptor] = connection

    def mark_idle(self, descriptor: int) -> None:
        """Record that a connection has its response, so that it counts as idle from now on."""
        connection = self._active.pop(descriptor, None)
        if connection is not None and connection.fileno() >= 0:
            self._add_idle(connection)

    def close(self) -> None:
        """Close the socket; see `socket.socket.close`."""
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _add_idle(self, connection: socket.socket) -> None:
        # A closed connection may have had the same descriptor. Without its entry, the new one is the last of the dict.
        self._idle.pop(connection.fileno(), None)
        self._active.pop(connection.fileno(), None)
        if len(self._idle) >= self._limits.idle:
            self._idle = {number: entry for number, entry in self._idle.items() if entry.fileno() >= 0}
        if len(self._idle) >= self._limits.idle:
            self._close_idle()
        self._idle[connection.fileno()] = connection

    def _close_idle(self) -> bool:
        """Close the connection that has been idle longest, and return whether there was one."""
        for number, connection in list(self._idle.items()):
            if connection.fileno() < 0:
                del self._idle[number]
            elif not _has_request(connection):
                del self._idle[number]
                # Not close(): asyncio still uses the descriptor, and closes it when it sees the end of the stream.
                with suppress(OSError):  # the peer has already disconnected
                    connection.shutdown(socket.SHUT_RDWR)
                return True
        return False

    def _reject(self, connection: socket.socket) -> None:
        """Answer with status 503 and close a connection."""
        with connection, suppress(OSError):
            connection.setblocking(False)
            if not self._encrypted:
                connection.send(UNAVAILABLE)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(65536)  # an unread request would make the kernel drop the answer

    def _reject_one(self) -> None:
        """Accept a waiting connection with the spare descriptor and close it."""
        # A connection that stays in the backlog makes the event loop spin.
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        with suppress(OSError):
            self._reject(super().accept()[0])
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if self._logged.first():
            log.error("out of file descriptors; connections get status 503; raise LimitNOFILE or ulimit -n")


def _has_request(connection: socket.socket) -> bool:
    """Return whether bytes wait in a connection: of a burst, the event loop has not read all requests yet."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:  # nothing yet, or the peer has disconnected
        return False
