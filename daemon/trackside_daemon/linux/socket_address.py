"""Addresses of sockets as text, and who listens on a port or has connected."""

import os
import pwd
import socket
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

_ESTABLISHED, _LISTENS = "01", "0A"
_IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"


def format_address(listener: socket.socket) -> str:
    """Return the address of a TCP socket as ``HOST:PORT``, an IPv6 host in brackets."""
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{host}:{port}"


def listeners(port: int, proc: Path = Path("/proc")) -> Iterator[tuple[int, str]]:
    """Yield the uid and the inode of each socket of this network namespace that listens on a TCP port."""
    for fields in _sockets(_LISTENS, proc):
        if int(fields[1].rpartition(":")[2], 16) == port:
            yield int(fields[7]), fields[9]


def user_of(client: tuple[str, int], server: tuple[str, int], proc: Path = Path("/proc")) -> int | None:
    """Return the uid of the client of a connection within this machine; None if it is not known, or has closed its end."""
    ends = [(_address(ip_address(host).packed), port) for host, port in (client, server)]
    found = (int(fields[7]) for fields in _sockets(_ESTABLISHED, proc) if [_end(one) for one in fields[1:3]] == ends)
    return next(found, None)


def may_push(uid: int | None, group: int | None) -> bool:
    """Return whether a user may use a socket of this user and a group; None is one that is not known."""
    if uid is None or uid in (0, os.getuid()) or group is None:
        return uid in (0, os.getuid())
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return False
    return group in os.getgrouplist(user.pw_name, user.pw_gid)


def _sockets(state: str, proc: Path) -> Iterator[list[str]]:
    """Yield the fields of the TCP sockets in a state, from /proc/net/tcp and tcp6 (proc_net(5))."""
    for table in (proc / "net/tcp", proc / "net/tcp6"):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == state:
                yield fields


def _end(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    """Return the address and the port of an end of a socket; each 32 bits of the address are a number of this machine."""
    host, _, port = text.partition(":")
    words = (int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(host), 8))
    return _address(b"".join(words)), int(port, 16)


def _address(packed: bytes) -> IPv4Address | IPv6Address:
    """Return an address; that of IPv4 in IPv6, to which Java connects, as that of IPv4."""
    return ip_address(packed.removeprefix(_IPV4_IN_IPV6) if len(packed) == 16 else packed)


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
