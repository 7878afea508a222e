"""Records between the daemon and its ingest worker, over a Unix socket pair."""

import array
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import NamedTuple

Piece = bytes | memoryview


_HEAD = struct.Struct("=BBB")  # kind, number of descriptors, number of parts; the length of each part follows as u32
_READ_BYTES = 1 << 18
SEND_BYTES = 1 << 17  # of the kernel's buffer: what is in it has no turns, so that all owners wait for it
_BUFFERS = 512  # of one sendmsg(2), whose limit is 1,024 (IOV_MAX)
_DESCRIPTORS = 16  # room for descriptors in one recvmsg(2), which ends after a piece that has one
RECORD_BYTES = 64 << 20  # a longer record comes from a worker that is out of order


class RecordKind(IntEnum):
    """The kinds of records.

    The worker sends ``READY`` once it accepts connections; ``CONNECTED`` with a connection's id, uid, pid and name of its key
    before its first message, and with its pidfd if there is one; ``MESSAGE`` with the connection's id and the frames;
    ``DISCONNECTED`` with an id; ``REFUSED`` with a reason, one for each connection or message; ``LOG`` with a warning. The
    daemon sends ``MESSAGE`` with an id and frames. ``PING`` is returned as it came.
    """

    READY = 0
    CONNECTED = 1
    MESSAGE = 2
    DISCONNECTED = 3
    REFUSED = 4
    LOG = 5
    PING = 6


class ChannelRecord(NamedTuple):
    """A received record; *descriptor* is -1 if none came with it."""

    kind: RecordKind
    parts: list[bytes]
    descriptor: int = -1


class ChannelClosed(Exception):  # noqa: N818 - a state, and no failure of this end
    """The other process has closed its end, or has ended."""


class Channel:
    """One end of the channel, for one thread. No call waits.

    Args:
        end: The socket, which this closes.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.setblocking(False)
        self._unsent: deque[tuple[Piece, int]] = deque()
        self._unsent_bytes = 0
        self._received = bytearray()
        self._descriptors: deque[int] = deque()

    @property
    def unsent(self) -> int:
        """The bytes that wait for room in the socket."""
        return self._unsent_bytes

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def add(self, kind: RecordKind, parts: Sequence[Piece] = (), descriptor: int = -1) -> None:
        """Add a record for the next `flush`, with a descriptor to pass on, which is closed after that."""
        head = _HEAD.pack(kind, descriptor >= 0, len(parts)) + struct.pack(f"={len(parts)}I", *map(len, parts))
        if descriptor >= 0:
            # As one piece, so that the descriptor cannot arrive with another record.
            self._append(b"".join((head, *parts)), descriptor)
            return
        self._append(head)
        for part in parts:
            if len(part):  # an empty buffer would look like one that is sent in part
                self._append(part)

    def flush(self) -> None:
        """Send as much as the socket accepts.

        Raises:
            ChannelClosed: The other end is closed.
        """
        while self._unsent:
            try:
                sent = self._send()
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosed from error
            self._forget(sent)

    def receive(self) -> list[ChannelRecord]:
        """Return the records that have arrived; one call reads the socket once.

        Raises:
            ChannelClosed: The other end is closed, and everything that it sent has been read.
        """
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, socket.CMSG_SPACE(4 * _DESCRIPTORS), flags)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ChannelClosed from error
        if not data:
            raise ChannelClosed
        for _, _, numbers in ancillary:
            self._descriptors.extend(array.array("i", numbers))
        self._received += data
        records = []
        with memoryview(self._received) as view:
            start = 0
            while (ends := _ends(view, start)) is not None:
                records.append(self._record(view, start, ends))
                start = ends[-1]
        del self._received[:start]
        return records

    def close(self) -> None:
        """Close the socket and all descriptors that were not passed on."""
        self._socket.close()
        for descriptor in (*self._descriptors, *(number for _, number in self._unsent if number >= 0)):
            os.close(descriptor)
        self._descriptors.clear()
        self._unsent.clear()

    def _append(self, piece: Piece, descriptor: int = -1) -> None:
        self._unsent.append((piece, descriptor))
        self._unsent_bytes += len(piece)

    def _send(self) -> int:
        piece, descriptor = self._unsent[0]
        if descriptor >= 0:
            return socket.send_fds(self._socket, [piece], [descriptor])
        pieces: list[Piece] = []
        for piece, descriptor in self._unsent:
            if descriptor >= 0 or len(pieces) == _BUFFERS:
                break
            pieces.append(piece)
        return self._socket.sendmsg(pieces)

    def _forget(self, sent: int) -> None:
        """Remove the first *sent* bytes."""
        self._unsent_bytes -= sent
        while sent:
            piece, descriptor = self._unsent.popleft()
            if descriptor >= 0:
                os.close(descriptor)
            if sent < len(piece):
                self._unsent.appendleft((memoryview(piece)[sent:], -1))
                return
            sent -= len(piece)

    def _record(self, view: memoryview, start: int, ends: list[int]) -> ChannelRecord:
        kind, descriptors, _ = _HEAD.unpack_from(view, start)
        # None has arrived if this process is out of descriptors.
        descriptor = self._descriptors.popleft() if descriptors and self._descriptors else -1
        return ChannelRecord(RecordKind(kind), [bytes(view[a:b]) for a, b in pairwise(ends)], descriptor)


def _ends(view: memoryview, start: int) -> list[int] | None:
    """Return where the head of the record at *start* ends, and each part; None if it has not arrived whole.

    Raises:
        ChannelClosed: It is longer than `RECORD_BYTES`.
    """
    if len(view) - start < _HEAD.size:
        return None
    _, _, count = _HEAD.unpack_from(view, start)
    body = start + _HEAD.size + 4 * count
    if len(view) < body:
        return None
    ends = list(accumulate(struct.unpack_from(f"={count}I", view, start + _HEAD.size), initial=body))
    if ends[-1] - start > RECORD_BYTES:
        raise ChannelClosed
    return ends if ends[-1] <= len(view) else None


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the daemon's end and the worker's."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in ends:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    return ends
