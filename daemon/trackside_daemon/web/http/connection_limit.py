"""A listening socket that limits the number of open connections."""

from __future__ import annotations

import errno
import logging
import os
import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

# Open connections, including those still in their TLS handshake. One more closes the connection that has been idle
# longest; if none is idle, it is closed itself.
MAX_CONNECTIONS = 512

# Open connections without a request, the first or a further one. One more closes the one that has been idle longest, so
# that idle clients lock nobody out.
MAX_IDLE_CONNECTIONS = 128

log = logging.getLogger("trackside")


class LimitedListener(socket.socket):
    """A listening socket for asyncio with a limit on open connections.

    asyncio accepts every connection and has no limit before the end of the TLS handshake.

    Args:
        listener: A bound, listening socket. It is duplicated, and the caller still closes the original.
    """

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=os.dup(listener.fileno()))
        self._open: WeakSet[socket.socket] = WeakSet()
        # By descriptor; of the idle ones, the longest idle comes first.
        self._idle: dict[int, socket.socket] = {}
        self._active: dict[int, socket.socket] = {}
        # Without a descriptor in reserve, a process at its limit could not even accept a connection to close it.
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._logged = False

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
        if len(self._open) >= MAX_CONNECTIONS:
            self._open = WeakSet(entry for entry in self._open if entry.fileno() >= 0)
        if len(self._open) >= MAX_CONNECTIONS and not self._close_idle():
            connection.close()
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
        if len(self._idle) >= MAX_IDLE_CONNECTIONS:
            self._idle = {number: entry for number, entry in self._idle.items() if entry.fileno() >= 0}
        if len(self._idle) >= MAX_IDLE_CONNECTIONS:
            self._close_idle()
        self._idle[connection.fileno()] = connection

    def _close_idle(self) -> bool:
        """Close the connection that has been idle longest, and return whether there was one."""
        while self._idle:
            connection = self._idle.pop(next(iter(self._idle)))
            if connection.fileno() >= 0:
                # Not close(): asyncio still uses the descriptor, and closes it when it sees the end of the stream.
                with suppress(OSError):  # the peer has already disconnected
                    connection.shutdown(socket.SHUT_RDWR)
                return True
        return False

    def _reject_one(self) -> None:
        """Accept a waiting connection with the spare descriptor and close it."""
        # A connection that stays in the backlog makes the event loop spin.
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        with suppress(OSError):
            super().accept()[0].close()
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if not self._logged:
            self._logged = True
            log.error("out of file descriptors; connections are closed unanswered; raise LimitNOFILE or ulimit -n")
