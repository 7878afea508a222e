"""Datagrams as libkineto sends them, and a client that sends them."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING
from uuid import uuid4

from trackside.captures.kineto import SOCKET
from trackside_daemon.captures.kineto.protocol import DATAGRAM_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEADER = struct.Struct("<Q32s")


def datagram(kind: bytes, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind) + payload


def request(*pids: int, accepts: bool = True) -> bytes:
    """Return a request of a process, its own id first."""
    ids = pids or (os.getpid(), os.getppid())
    return datagram(b"req", struct.pack(f"<iiq{len(ids)}i", 2 if accepts else 0, len(ids), 0, *ids))


def registration(pid: int) -> bytes:
    return datagram(b"ctxt", struct.pack("<iiq", 0, pid, 0))


class Client:
    """A socket next to the daemon's, as each PyTorch process has one."""

    def __init__(self, directory: Path, name: str = "") -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(name or f"{directory}/dynoconfigclient{uuid4()}")
        self._socket.settimeout(60.0)
        self._daemon = str(directory / SOCKET)

    def send(self, *datagrams: bytes) -> None:
        for one in datagrams:
            self._socket.sendto(one, self._daemon)

    def ask(self, *pids: int, accepts: bool = True) -> None:
        self.send(request(*pids, accepts=accepts))

    def answer(self) -> str:
        """Wait for an answer, and return its text."""
        received = self._socket.recv(DATAGRAM_BYTES)
        size, kind = HEADER.unpack_from(received)
        assert kind.rstrip(b"\0") == b"req"
        assert size == len(received) - HEADER.size
        return received[HEADER.size :].decode()

    def close(self) -> None:
        self._socket.close()


def counts(samples: Sequence[object]) -> dict[str, float]:
    """Return the refused datagrams by reason, without zeros."""
    return {sample.labels[0]: sample.value for sample in samples if sample.value}  # type: ignore[attr-defined]
