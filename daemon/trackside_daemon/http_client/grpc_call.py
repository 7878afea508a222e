"""Call a method of a gRPC server at a Unix socket: one request over HTTP/2, without a library (RFC 9113, RFC 7541)."""

import socket
import time
from pathlib import Path

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8  # types of frames
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 1, 1, 4, 8
_STREAM = 1
_WINDOW = 2**31 - 1  # so that the server need not wait for room

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def call(path: Path, method: str, seconds: float, longest: int) -> bytes:
    """Return the answer of a method, such as ``/v1.PodResourcesLister/List``, to an empty message.

    Args:
        path: The server's socket.
        method: The path of the method.
        seconds: Longest time that it may take.
        longest: Most bytes of the answer.

    Raises:
        TimeoutError: It takes longer.
        OSError: Nothing listens at the socket, or this user may not connect.
        ValueError: The answer is an error, too long or malformed.
    """
    until = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(str(path))
        connection.sendall(_request(method))
        data = bytearray()
        while True:
            kind, flags, stream, payload = _read_frame(connection, until, longest)
            if kind in (SETTINGS, PING) and not flags & _ACK:
                connection.sendall(_frame(kind, _ACK, 0, payload if kind == PING else b""))
            elif kind == GOAWAY or (kind == RST_STREAM and stream == _STREAM):
                raise ValueError(f"{path}: {method} was refused")
            elif kind == DATA and stream == _STREAM:
                data += payload[1 : len(payload) - payload[0]] if flags & _PADDED and payload else payload
                if len(data) > longest:
                    raise ValueError(f"{path}: {method} answered more than {longest} bytes")
            if stream == _STREAM and kind in (DATA, HEADERS) and flags & _END_STREAM:
                break
    size = int.from_bytes(data[1:5], "big")
    if len(data) < 5 or data[0] or len(data) < 5 + size:  # an error has headers only
        raise ValueError(f"{path}: {method} answered no message")
    return bytes(data[5 : 5 + size])


def _request(method: str) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    # Each a literal without indexing; texts of less than 127 bytes have their length in one byte.
    block = b"".join(b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in pair) for pair in fields.items())
    return b"".join(
        (
            _PREFACE,
            _frame(SETTINGS, 0, 0, b"\0\4" + _WINDOW.to_bytes(4, "big")),  # SETTINGS_INITIAL_WINDOW_SIZE
            _frame(WINDOW_UPDATE, 0, 0, (_WINDOW - 65535).to_bytes(4, "big")),
            _frame(HEADERS, _END_HEADERS, _STREAM, block),
            _frame(DATA, _END_STREAM, _STREAM, bytes(5)),  # not compressed, of no bytes
        )
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _read_frame(connection: socket.socket, until: float, longest: int) -> tuple[int, int, int, bytes]:
    """Return type, flags, stream and payload of the next frame."""
    head = _read(connection, 9, until)
    size = int.from_bytes(head[:3], "big")
    if size > longest:
        raise ValueError(f"a frame has {size} bytes")
    return head[3], head[4], int.from_bytes(head[5:9], "big") & _WINDOW, _read(connection, size, until)


def _read(connection: socket.socket, size: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        if (left := until - time.monotonic()) <= 0:  # also of a server that never stops to send
            raise TimeoutError
        connection.settimeout(left)
        part = connection.recv(size - len(data))
        if not part:
            raise ValueError("the server closed the connection")
        data += part
    return bytes(data)
