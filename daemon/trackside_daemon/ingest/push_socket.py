"""The push socket: binds and locks the endpoints at which clients connect, which the worker serves with ZeroMQ."""

import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from trackside.environment.keys import KeyFileError
from trackside.os_errors import os_error_text
from trackside_daemon.ingest.endpoint import (
    EndpointError,
    SocketLock,
    grant,
    group_id,
    push_path,
    require_access,
    require_keys,
    token_path,
)
from trackside_daemon.ingest.keyring import Keyring
from trackside_daemon.linux.socket_address import format_address

BACKLOG = 1024  # connections that wait in the kernel, also while there is no worker


class PushSocket:
    """The listening sockets. They need neither configuration nor web server, so that the daemon binds them first.

    They belong to the daemon, so that they stay bound when the worker is replaced.

    Args:
        endpoints: ``ipc:///PATH`` or ``tcp://HOST:PORT``; none for `push_path`. Unix sockets are bound first.
        keys: A directory that ``trackside keys`` made; TCP clients then need a key. Empty for none: TCP is then limited to
            loopback addresses.
        group: The group that may push as well, by name or number, as for `group_id`.

    Attributes:
        keys: As given, but absolute: the worker runs in another directory.
        listeners: The listening sockets by endpoint, in the order in which the worker has to serve them.
        token: The path of the API's token, next to the socket.
        endpoints: The endpoints to which clients connect.

    Raises:
        EndpointError: An endpoint cannot be bound.
    """

    def __init__(self, endpoints: Sequence[str] = (), *, keys: str = "", group: str = "") -> None:
        self.keys = keys = keys and str(Path(keys).absolute())
        self.listeners: dict[str, socket.socket] = {}
        wanted = endpoints or (f"ipc://{push_path((), os.environ, os.getuid())}",)
        files = [endpoint for endpoint in wanted if endpoint.startswith("ipc://")]
        ports = [endpoint for endpoint in wanted if not endpoint.startswith("ipc://")]
        require_keys(ports, keys)
        _require_readable(keys, ports)
        with ExitStack() as undo:
            bound = {endpoint: self._bind_file(endpoint, group, undo, named=bool(endpoints)) for endpoint in files}
            bound |= {endpoint: self._bind_port(endpoint, undo) for endpoint in ports}
            self.endpoints = tuple(bound[endpoint] for endpoint in wanted)
            self.token = token_path(self.endpoints, os.environ, os.getuid())
            self._bound = undo.pop_all()

    def close(self) -> None:
        """Close the sockets, and release their locks."""
        self._bound.close()

    def _bind_file(self, endpoint: str, group: str, undo: ExitStack, *, named: bool) -> str:
        """Bind a Unix socket and return its endpoint; the user has *named* its path or not."""
        path = Path(endpoint.removeprefix("ipc://"))
        gid = group_id(group, path)
        lock = SocketLock(path)
        undo.callback(lock.release)
        if gid is not None:
            require_access(path.parent, gid, named=named)
        umask = os.umask(0o177)  # no other user may connect before the group is set
        try:
            self._listen(endpoint, socket.AF_UNIX, os.fsencode(path), undo)
        finally:
            os.umask(umask)
        if gid is not None:
            grant(path, gid)
        return endpoint

    def _bind_port(self, endpoint: str, undo: ExitStack) -> str:
        """Bind a TCP endpoint and return it, with the actual port for 0 or *."""
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        host = _interface_address(host) or host
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        try:
            name = None if host == "*" else host.strip("[]")
            number = 0 if port == "*" else int(port)
            found = socket.getaddrinfo(name, number, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise _failure(endpoint, error) from error
        listener = self._listen(endpoint, family, found[0][4], undo)
        bound = f"tcp://{format_address(listener)}"
        self.listeners[bound] = self.listeners.pop(endpoint)
        return bound

    def _listen(self, endpoint: str, family: int, address: object, undo: ExitStack) -> socket.socket:
        listener = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
        try:
            if family != socket.AF_UNIX:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(address)  # type: ignore[arg-type]  # bytes, or what getaddrinfo returns
            listener.listen(BACKLOG)
        except OSError as error:
            raise _failure(endpoint, error) from error
        listener.setblocking(False)  # ZeroMQ must not wait for a client that has given up
        self.listeners[endpoint] = listener
        return listener


def _failure(endpoint: str, error: OSError) -> EndpointError:
    return EndpointError(f"{endpoint}: {os_error_text(error)}; name another with --push.endpoint")


def _require_readable(keys: str, ports: Sequence[str]) -> None:
    """Check, before a port is bound, that the worker will be able to read the daemon's keys."""
    if not keys:
        return
    try:
        keyring = Keyring(Path(keys))
        for endpoint in ports:
            keyring.secret_at(endpoint)
    except KeyFileError as error:
        raise EndpointError(f"--push.keys: {error}") from None


def _interface_address(name: str) -> str:
    """Return the first IPv4 address of a network interface such as eth0; empty if there is no such interface."""
    if not name.isalnum() or name.isdecimal():
        return ""
    import psutil

    addresses = psutil.net_if_addrs().get(name, [])
    return next((one.address for one in addresses if one.family == socket.AF_INET), "")
