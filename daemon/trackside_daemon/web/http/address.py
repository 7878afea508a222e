"""The port that HTTP is served on: bound before anything heavy is imported, and explained when it is taken."""

from __future__ import annotations

import errno
import logging
import os
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.web.http.config_file import ConfigFile

log = logging.getLogger("trackside")


class AddressError(Exception):
    """The address cannot be listened on; the message says why and what to do."""


def listen(address: str) -> socket.socket:
    """Bind ``HOST:PORT``.

    Raises:
        AddressError: It is no address, or is taken: by whom, and which port near it is free.
    """
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise AddressError(f"web.listen-address: {address!r} is not HOST:PORT, such as 127.0.0.1:21790")
    try:
        family, *_, target = socket.getaddrinfo(
            host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressError(f"web.listen-address: {address}: {error}; give HOST:PORT of this machine") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else the second answer of a connection waits 40 ms
    try:
        listener.bind(target)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise AddressError(_explain(address, family, target, error)) from error
    return listener


def written(listener: socket.socket) -> str:
    """Where it listens, as ``HOST:PORT``."""
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{host}:{port}"


def _explain(address: str, family: int, target: tuple[Any, ...], error: OSError) -> str:
    if error.errno != errno.EADDRINUSE:
        return f"web.listen-address: {address}: {(error.strerror or str(error)).lower()}; choose another"
    host, port, *rest = target
    near = range(port + 2, min(port + 100, 65536))
    free = next((one for one in near if _is_free(family, (host, one, *rest))), 0)
    return (
        f"web.listen-address: {address} is taken by {_holder(port)}; stop it, or use another port:"
        f" --web.listen-address={address.rpartition(':')[0]}:{free}"
    )


def _is_free(family: int, target: tuple[Any, ...]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(target)
        except OSError:
            return False
        return True


def _holder(port: int) -> str:
    """Who listens on a port: /proc/net/tcp has the socket's inode, /proc/PID/fd whose it is."""
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(descriptor.readlink()) in inodes for descriptor in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:
            continue
    return "a process of another user"


def unsafe(address: str, web_config: ConfigFile) -> Iterator[str]:
    """What is unsafe about serving ``HOST:PORT``, a line each."""
    if not ip_address(address.rpartition(":")[0].strip("[]")).is_loopback:
        reached = f"{address} can be reached from other machines, and"
        if not web_config.authenticates:
            yield f"{reached} /metrics is open to all of them; users or client certificates in --web.config.file close it"
        elif web_config.scheme == "http":
            yield f"{reached} passwords go there in plain text; tls_server_config in --web.config.file encrypts them"
    if os.getuid() == 0:
        yield "running as root, which nothing here needs; a user of its own is safer"


def write_down(url: str, path: Path) -> None:
    """Have our commands find a daemon, by a file beside the token's."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(f"{url}\n")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        log.warning("%s: %s; commands find this daemon with --url only", path, reason)
