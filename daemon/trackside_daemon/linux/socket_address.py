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
_LOOPBACK = {4: ip_address("127.0.0.1"), 6: ip_address("::1")}


def format_address(listener: socket.socket) -> str:
    """Return the address of a TCP socket as ``HOST:PORT``, an IPv6 host in brackets."""
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{host}:{port}"


def listeners(port: int, proc: Path = Path("/proc")) -> Iterator[tuple[int, str, IPv4Address | IPv6Address]]:
    """Yield the uid, the inode and the address of each socket of this network namespace that listens on a TCP port."""
    for fields in _sockets(_LISTENS, proc):
        if _end(fields[1])[1] == port:
            yield int(fields[7]), fields[9], _end(fields[1])[0]


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
    """Return the users who get connections to a TCP port of this machine, other than root, this one and those with a *trusted* uid.

    A socket that listens at just this address gets them, else one at all addresses of its version, else one at all.
    """
    found = [(uid, address) for uid, _, address in listeners(port, proc)]
    known, users = {0, os.getuid(), *trusted}, set[int]()
    for one in own_addresses(host) if {uid for uid, _ in found} - known else ():
        exact = {uid for uid, address in found if address == one}
        wild = [(uid, address.version) for uid, address in found if address.is_unspecified]
        users |= exact or {uid for uid, version in wild if version == one.version} or {uid for uid, _ in wild}
    return sorted(users - known)


def own_addresses(host: str, flags: int = 0) -> set[IPv4Address | IPv6Address]:
    """Return the addresses that a host stands for and that are this machine's, for ``0.0.0.0`` that of loopback.

    Of a name, this may wait for its server; *flags* are those of getaddrinfo(3).
    """
    found = set()
    with suppress(OSError, UnicodeError):
        for family, kind, _, _, place in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM, flags=flags):
            address = _plain(str(place[0]))
            is_own = address.is_loopback or address.is_unspecified
            with suppress(OSError), socket.socket(family, kind) as probe:
                # The kernel chooses the address itself as the source if it is this machine's; connect(2) of UDP sends nothing.
                probe.connect(place)
                is_own = is_own or _plain(probe.getsockname()[0]) == address
            if is_own:
                found.add(_LOOPBACK[address.version] if address.is_unspecified else address)
    return found


def _plain(text: str) -> IPv4Address | IPv6Address:
    return _address(ip_address(text.partition("%")[0]).packed)
