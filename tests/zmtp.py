"""ZeroMQ's protocol by hand (ZMTP 3, NULL), for clients that say of themselves what no library lets them say."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

from processes import DEADLINE

if TYPE_CHECKING:
    import socket


def shake_hands(connection: socket.socket, **properties: bytes) -> None:
    """Complete the handshake on a fresh connection, with further properties that this client claims."""
    connection.settimeout(DEADLINE)
    connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    _read(connection, 64)
    named = {"Socket-Type": b"DEALER", **properties}
    pairs = (bytes([len(name)]) + name.encode() + pack(">I", len(value)) + value for name, value in named.items())
    ready = b"\x05READY" + b"".join(pairs)
    connection.sendall(bytes([4, len(ready)]) + ready)
    _, size = _read(connection, 2)
    assert _read(connection, size).startswith(b"\x05READY")


def send(connection: socket.socket, frames: list[bytes]) -> None:
    """Send a message."""
    for place, frame in enumerate(frames, 1):
        connection.sendall(bytes([2 if place == len(frames) else 3]) + pack(">Q", len(frame)) + frame)


def _read(connection: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        more = connection.recv(size - len(read))
        assert more, "the connection was closed amid the handshake"
        read += more
    return read
