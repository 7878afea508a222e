"""The listener: it takes in a bounded number of connections."""

from __future__ import annotations

import errno
import logging
import os
import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

OPEN = 512
"""Connections at a time, also those that have not ended their TLS handshake; what comes on top is closed."""

NEW = 128
"""Of these, that have not asked anything yet; for one on top the oldest makes way, so that silent ones bar nobody."""

log = logging.getLogger("trackside")


class Door(socket.socket):
    """A listener for asyncio, which takes what comes and has no bound of its own before a handshake's end.

    Args:
        listener: One that is bound and listens; it is left to who gives it.
    """

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=os.dup(listener.fileno()))
        self._open: WeakSet[socket.socket] = WeakSet()
        self._new: dict[int, socket.socket] = {}
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._said = False

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.socket`.

        Raises:
            ConnectionAbortedError: Who came was turned away.
        """
        try:
            made, address = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or self._spare is None:
                raise
            self._turn_away()
            raise ConnectionAbortedError from None
        if len(self._open) >= OPEN:
            self._open = WeakSet(one for one in self._open if one.fileno() >= 0)
        if len(self._open) >= OPEN:
            made.close()
            raise ConnectionAbortedError
        self._open.add(made)
        self._await(made)
        return made, address

    def asked(self, descriptor: int) -> None:
        """A connection is no longer new."""
        self._new.pop(descriptor, None)

    def close(self) -> None:
        """See `socket.socket`."""
        super().close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _await(self, made: socket.socket) -> None:
        self._new.pop(made.fileno(), None)
        if len(self._new) >= NEW:
            self._new = {number: one for number, one in self._new.items() if one.fileno() >= 0}
        if len(self._new) >= NEW:
            with suppress(OSError):  # it has hung up
                self._new.pop(next(iter(self._new))).shutdown(socket.SHUT_RDWR)
        self._new[made.fileno()] = made

    def _turn_away(self) -> None:
        """Take one in by a descriptor kept for that, and close it: else it would wait, and the loop turn, for ever."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        with suppress(OSError):
            super().accept()[0].close()
        with suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        if not self._said:
            self._said = True
            log.error("no file descriptor is left, so connections are closed unanswered; raise LimitNOFILE, ulimit -n")
