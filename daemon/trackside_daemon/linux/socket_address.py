"""Addresses of sockets as text, and who listens on a port."""

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_LISTENS = "0A"


def format_address(listener: socket.socket) -> str:
    """Return the address of a TCP socket as ``HOST:PORT``, an IPv6 host in brackets."""
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{host}:{port}"


def listeners(port: int, proc: Path = Path("/proc")) -> Iterator[tuple[int, str]]:
    """Yield the uid and the inode of each socket of this network namespace that listens on a TCP port."""
    for table in (proc / "net/tcp", proc / "net/tcp6"):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield int(fields[7]), fields[9]


def strangers(host: str, port: int, trusted: Collection[int], proc: Path = Path("/proc")) -> list[int]:
    """Return the users who listen on a TCP port of this machine, other than root, this one and those with a *trusted* uid."""
    known = (0, os.getuid(), *trusted)
    others = {uid for uid, _ in listeners(port, proc) if uid not in known}
    return sorted(others) if others and is_of_this_machine(host) else []


def is_of_this_machine(host: str) -> bool:
    """Return whether a name or an address is one of this machine, as ``0.0.0.0`` is; of a name, this may wait for its server."""
    with suppress(OSError, UnicodeError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)  # which fails with the address of another machine
                return True
    return False
