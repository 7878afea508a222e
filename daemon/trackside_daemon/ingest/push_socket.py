"""The push socket: binds its endpoints and decides who may connect."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

import zmq

from trackside.transport.keys import KeyFileError
from trackside.wire import MESSAGE_BYTES
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.ingest.authenticator import Authenticator

LINGER_MILLISECONDS = 200  # how long closing the socket waits until the last acknowledgements are sent

# ZeroMQ drops a connection that announces a larger frame, before it allocates memory for it.
# With twice the limit of a message, one that is just too large gets a reason instead of a lost connection.
FRAME_BYTES = 2 * MESSAGE_BYTES

KEEPALIVE_SECONDS = 60  # A TCP connection that has been silent for so long is probed

# Messages of one connection that ZeroMQ queues; a client has at most half as many unacknowledged.
MESSAGES_WAITING = 128


class PushSocket:
    """The bound socket. It needs neither configuration nor web server, so that the daemon binds it first.

    Args:
        endpoints: ``ipc:///PATH`` or ``tcp://HOST:PORT``; none for `push_path`. Unix sockets are bound first.
        keys: A directory that ``trackside keys`` made; TCP clients then need a key. Empty for none: TCP is then limited to
            loopback addresses.
        group: The group that may push as well, by name or number, as for `group_id`.

    Attributes:
        token: The path of the API's token, next to the socket.
        endpoints: The endpoints to which clients connect.

    Raises:
        EndpointError: An endpoint cannot be bound.
    """

    def __init__(self, endpoints: Sequence[str] = (), *, keys: str = "", group: str = "") -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.linger = LINGER_MILLISECONDS
        self.socket.maxmsgsize = FRAME_BYTES
        self.socket.rcvhwm = MESSAGES_WAITING
        self.socket.tcp_keepalive = 1  # a machine that loses its power or network closes no connection
        self.socket.tcp_keepalive_idle = KEEPALIVE_SECONDS
        self._locks: list[SocketLock] = []
        self._authenticator: Authenticator | None = None
        try:
            wanted = endpoints or (f"ipc://{push_path((), os.environ, os.getuid())}",)
            files = [endpoint for endpoint in wanted if endpoint.startswith("ipc://")]
            ports = [endpoint for endpoint in wanted if not endpoint.startswith("ipc://")]
            require_keys(ports, keys)
            bound = {endpoint: self._bind_file(endpoint, group, named=bool(endpoints)) for endpoint in files}
            self._guard(keys)
            bound |= {endpoint: self._bind(endpoint) for endpoint in ports}
            self.endpoints = tuple(bound[endpoint] for endpoint in wanted)
            self.token = token_path(self.endpoints, os.environ, os.getuid())
        except EndpointError:
            self.close()
            raise

    def rejected(self) -> dict[str, int]:
        """Return the number of refused connections by reason. Any thread may call it."""
        authenticator = self._authenticator
        return {"key": authenticator.rejected if authenticator is not None else 0}

    def close(self) -> None:
        """Close the socket, and release its locks."""
        if self._authenticator is not None:
            self._authenticator.stop()  # before the socket, which it monitors
            self._authenticator = None
        self.socket.close()
        self.context.term()
        for lock in self._locks:
            lock.release()
        self._locks = []

    def _bind_file(self, endpoint: str, group: str, *, named: bool) -> str:
        """Bind a Unix socket and return its endpoint; the user has *named* its path or not."""
        path = Path(endpoint.removeprefix("ipc://"))
        gid = group_id(group, path)
        self._locks.append(SocketLock(path))
        if gid is not None:
            require_access(path.parent, gid, named=named)
        umask = os.umask(0o177)  # no other user may connect before the group is set
        try:
            bound = self._bind(endpoint)
        finally:
            os.umask(umask)
        if gid is not None:
            grant(path, gid)
        return bound

    def _guard(self, keys: str) -> None:
        """Require a key of the directory *keys* at the endpoints that are bound later, so not at Unix sockets."""
        if not keys:
            return
        from trackside_daemon.ingest.authenticator import Authenticator

        try:
            keyring = Keyring(Path(keys))
        except KeyFileError as error:
            raise EndpointError(f"--push.keys: {error}") from None
        self._authenticator = Authenticator(self.socket, keyring)
        self._authenticator.guard()

    def _bind(self, endpoint: str) -> str:
        """Bind an endpoint and return it, with the actual port for 0 or *."""
        self.socket.ipv6 = endpoint.startswith("tcp://[")
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            reason = zmq.strerror(error.errno or 0).lower()
            raise EndpointError(f"{endpoint}: {reason}; name another with --push.endpoint") from error
        return cast("bytes", self.socket.last_endpoint).decode()
