"""The HTTP listening socket, bound before heavy imports, with a clear error when the port is in use."""

import errno
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from trackside.os_errors import os_error_text
from trackside_daemon.linux.socket_address import listeners
from trackside_daemon.web.http.config_file import ConfigFile

log = logging.getLogger("trackside")


class AddressError(Exception):
    """An unusable listen address; the message gives the reason and the remedy."""


def listen(address: str, setting: str = "web.listen-address") -> socket.socket:
    """Bind ``HOST:PORT``, the value of a *setting*, and return the listening socket.

    Raises:
        AddressError: The text is not an address, or the port is in use. The message then names the process that
            listens there and a free port nearby.
    """
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise AddressError(f"{setting}: {address!r} is not HOST:PORT, such as 127.0.0.1:21790")
    try:
        family, *_, target = socket.getaddrinfo(
            # Bytes, because Python encodes a text by encodings.idna, which costs 0.3 MiB and 5 ms.
            (host.encode() if host.isascii() else host) or None,
            int(port),
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressError(f"{setting}: {address}: {error}; give HOST:PORT of this machine") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Without TCP_NODELAY the second response of a connection waits 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind(target)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise AddressError(_explain(setting, address, family, target, error)) from error
    return listener


def _explain(setting: str, address: str, family: int, target: tuple[Any, ...], error: OSError) -> str:
    if error.errno != errno.EADDRINUSE:
        return f"{setting}: {address}: {os_error_text(error)}; choose another"
    host, port, *rest = target
    nearby = range(port + 2, min(port + 100, 65536))
    free = next((candidate for candidate in nearby if _is_free(family, (host, candidate, *rest))), 0)
    return (
        f"{setting}: {address} is in use by {_listening_process(port)}; stop it, or use another port:"
        f" --{setting}={address.rpartition(':')[0]}:{free}"
    )


def _is_free(family: int, target: tuple[Any, ...]) -> bool:
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(target)
        return True
    return False


def _listening_process(port: int) -> str:
    """Return the name and pid of the process that listens on a port.

    /proc/PID/fd maps the inode of its socket to a process.
    """
    inodes = {f"socket:[{inode}]" for _, inode, _ in listeners(port)}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(descriptor.readlink()) in inodes for descriptor in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:
            continue
    return "a process of another user"


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches ``HOST:PORT``."""
    return ip_address(address.rpartition(":")[0].strip("[]")).is_loopback


def security_warnings(address: str, web_config: ConfigFile) -> Iterator[str]:
    """Yield one line for each security risk of serving ``HOST:PORT``."""
    if not is_loopback(address):
        reachable = f"{address} can be reached from other machines, and"
        if not web_config.authenticates:
            yield f"{reachable} /metrics is open to all of them; users or client certificates in --web.config.file close it"
        elif web_config.scheme == "http":
            yield f"{reachable} passwords travel in plain text; tls_server_config in --web.config.file encrypts them"
    if os.getuid() == 0:
        yield "running as root, which trackside does not need; a dedicated user is safer"


def write_url_file(url: str, path: Path) -> None:
    """Write the daemon's URL to a file next to the token's, where trackside commands find it."""
    from trackside_daemon.web.http.auth_token import write_private  # which the first lines of a start must not import

    try:
        write_private(path, url)
    except OSError as error:
        log.warning("%s: %s; commands find this daemon only with --url", path, os_error_text(error))
