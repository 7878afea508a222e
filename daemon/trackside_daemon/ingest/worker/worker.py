"""The loop of the worker: passes messages of clients on to the daemon, and its answers back."""

from __future__ import annotations

import ctypes
import platform
import re
import resource
import struct
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import zmq

from trackside.log_once import LogOnce
from trackside_daemon.ingest.worker.connections import Connections, pidfd
from trackside_daemon.ingest.worker_channel import Channel, ChannelClosed, RecordKind
from trackside_daemon.model.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trackside_daemon.ingest.worker.authenticator import Authenticator
    from trackside_daemon.ingest.worker_channel import Channel, Piece

WAITING_BYTES = 32 << 20  # of all owners, who have equal shares

FLUSH_BYTES = 1 << 16  # that one call of the kernel sends, so that small messages share it

ROUND_BYTES = 4 << 20  # after so many all owners are equal again

RECORD_OVERHEAD_BYTES = 1 << 10  # what a record needs besides its parts

DESCRIPTOR_BYTES = 1 << 16  # as which a descriptor counts, of which this process may have a thousand

# Earlier ones remove the metadata from the first frame of a message that a ROUTER was polled for: its sender is unknown.
ZEROMQ = (4, 3, 5)

LINGER_MILLISECONDS = 200  # how long closing the socket waits until the last acknowledgements are sent
HANDSHAKE_MILLISECONDS = 5000  # a connection that has not completed its handshake by then is closed
KEEPALIVE_SECONDS = 60  # a TCP connection that has been silent for so long is probed

# Messages of one connection that ZeroMQ queues while the daemon has no room; the others stay with the client.
MESSAGES_WAITING = 16
READ_MESSAGES = 100  # the most messages of one turn, so that answers never wait for long
FRAMES = 4  # of a message that are passed on; a valid one has three

# ZeroMQ has no limit for a message that has not arrived whole, and does not name its connection. A thousand clients need less.
MEMORY_BYTES = 192 << 20
LOOK_SECONDS = 0.1  # in which a flood of 1 GB/s needs half of what is left until the limit of this process; each costs 0.1 ms or more

MAX_CONNECTIONS = 2048  # the most connections, of some 60 KiB each, and up to 100 KiB with messages

_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_EVENT = struct.Struct("=Hi")  # an event of zmq_socket_monitor(3), and its value: here the descriptor
# With another C library, libzmq has no addresses of Unix sockets (getnameinfo(3)), so that a client could send its own.
_GLIBC = platform.libc_ver()[0] == "glibc"
_UNIX = re.compile(r"[^:]*:(\d+):\d+:(\d+)")  # uid, gid and pid of a Unix socket's client, as libzmq writes SO_PEERCRED


class ServeError(Exception):
    """The sockets cannot be served; the message states why."""


class _Client(NamedTuple):
    """The other end of a connection, as `Connection`; the owner is a user, the name of a key or an address."""

    descriptor: int
    uid: int
    pid: int
    key: str
    owner: str


class IngestWorker:
    """Serves the listening sockets until the daemon closes the channel.

    Args:
        channel: This process's end.
        listeners: The descriptors of the listening sockets by endpoint, Unix sockets first.
        keys: The directory of keys; a client at a TCP endpoint then needs one. Empty for no keys.
        frame_bytes: ZeroMQ closes a connection that announces a larger frame, before it allocates memory for it.

    Raises:
        ServeError: An endpoint cannot be served, the daemon's key cannot be read, or ZeroMQ is too old.
    """

    def __init__(self, channel: Channel, listeners: Mapping[str, int], keys: str, frame_bytes: int) -> None:
        if zmq.zmq_version_info() < ZEROMQ:
            raise ServeError(
                f"pyzmq {zmq.__version__} has ZeroMQ {zmq.zmq_version()}, with which no push is answered; "
                "install one with ZeroMQ 4.3.5 or later: pip install --upgrade pyzmq"
            )
        self._channel = channel
        self._queue = MessageQueue(channel)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = LINGER_MILLISECONDS
        self._socket.maxmsgsize = frame_bytes
        self._socket.rcvhwm = MESSAGES_WAITING
        self._socket.handshake_ivl = HANDSHAKE_MILLISECONDS
        self._socket.tcp_keepalive = 1  # a machine that loses its power or network closes no connection
        self._socket.tcp_keepalive_idle = KEEPALIVE_SECONDS
        self._connections = Connections(most_connections())
        self._logged = LogOnce()
        self._look_at = 0.0
        self._is_large = False
        self._names: dict[int, bytes] = {}  # routing ids of the connections that have sent a message, by descriptor
        self._clients: dict[bytes, _Client] = {}
        self._authenticator = self._make_authenticator(keys) if keys else None
        events = _EVENTS if self._authenticator is None else _EVENTS | self._authenticator.EVENTS
        self._monitor = self._socket.get_monitor_socket(events)
        for endpoint, descriptor in listeners.items():
            self._serve(endpoint, descriptor)
        channel.add(RecordKind.READY)

    def run(self) -> None:
        """Serve until the channel is closed, then send the answers that are queued."""
        poller = zmq.Poller()
        poller.register(self._monitor, zmq.POLLIN)
        if self._authenticator is not None:
            poller.register(self._authenticator.socket, zmq.POLLIN)
        with suppress(ChannelClosed):
            while True:
                self._queue.flush()
                # While the daemon reads nothing, messages stay with ZeroMQ and the clients. But ZeroMQ lets connections take
                # turns, whoever has them: with several peers all is read, and what exceeds an owner's share is dropped.
                reads = not self._channel.unsent or self._connections.has_several_peers
                poller.register(self._socket, zmq.POLLIN if reads else 0)
                poller.register(self._channel, zmq.POLLIN | (zmq.POLLOUT if self._channel.unsent else 0))
                ready = dict(poller.poll(round(1000 * LOOK_SECONDS) if self._connections or self._is_large else None))
                self._limit_memory()
                if self._monitor in ready:
                    self._handle_events()
                if self._authenticator is not None and self._authenticator.socket in ready:
                    self._authenticator.answer()
                if ready.get(self._channel.fileno(), 0) & ~zmq.POLLOUT:
                    self._answer()
                if self._socket in ready:
                    self._read()

    def close(self) -> None:
        """Close all sockets."""
        self._socket.disable_monitor()
        self._monitor.close()
        if self._authenticator is not None:
            self._authenticator.close()
        self._socket.close()
        self._context.term()
        self._channel.close()

    def _make_authenticator(self, keys: str) -> Authenticator:
        # These imports would cost a worker without keys a third of its start.
        from trackside.environment.keys import KeyFileError
        from trackside_daemon.ingest.worker.authenticator import Authenticator

        try:
            return Authenticator(self._context, keys, self._channel)
        except KeyFileError as error:
            raise ServeError(f"--push.keys: {error}") from None

    def _serve(self, endpoint: str, descriptor: int) -> None:
        if self._authenticator is not None and endpoint.startswith("tcp://"):
            self._authenticator.guard(self._socket, endpoint)
        self._socket.ipv6 = endpoint.startswith("tcp://[")
        self._socket.setsockopt(zmq.USE_FD, descriptor)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ServeError(f"{endpoint}: the push socket cannot be served: {error}") from error

    def _handle_events(self) -> None:
        with suppress(zmq.Again):
            while True:
                head, endpoint = self._monitor.recv_multipart(zmq.NOBLOCK)
                event, descriptor = _EVENT.unpack(head)
                if event == zmq.EVENT_ACCEPTED:
                    self._accept(descriptor)
                elif event == zmq.EVENT_DISCONNECTED:
                    self._connections.closed(descriptor)
                    self._forget(descriptor)
                elif self._authenticator is not None:
                    self._authenticator.handshake_failed(endpoint.decode())

    def _accept(self, descriptor: int) -> None:
        if self._connections.accepted(descriptor):
            text = (
                f"the push socket has more than {self._connections.most} connections; of the user or address that has most,"
                " those are closed that send nothing or have been silent for longest; further ones are only counted"
            )
            self._refuse(b"connections", text)

    def _limit_memory(self) -> None:
        """Close connections while this process is too large, before it is aborted, which costs all connections more."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        was_large = self._is_large
        if was_large and _GLIBC:
            ctypes.CDLL(None).malloc_trim(0)  # what the closed connections had, and is free by now, would count
        self._is_large = _resident() > MEMORY_BYTES
        if not self._is_large:
            return
        text = (
            f"the process that receives pushes needs more than {MEMORY_BYTES >> 20} MiB: it closes connections that have sent"
            " no message, and then those that have been silent for longest; further ones are only counted"
        )
        for _ in range(self._connections.shed(also_silent=was_large)):
            self._refuse(b"memory", text)

    def _refuse(self, reason: bytes, text: str) -> None:
        """Count a connection or a message, and log the first."""
        self._channel.add(RecordKind.REFUSED, [reason])
        if self._logged.first(reason):
            self._channel.add(RecordKind.LOG, [text.encode()])

    def _read(self) -> None:
        for _ in range(READ_MESSAGES):
            try:
                # As zmq.Frame, which alone has the metadata of the connection. Those after the first do not wait, since
                # ZeroMQ delivers all frames of a message at once.
                frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            name = frame.bytes
            client = self._clients.get(name) or self._identify(frame)
            parts: list[bytes | memoryview] = [name]
            while frame.more:
                frame = self._socket.recv(copy=False)
                if len(parts) <= FRAMES:
                    parts.append(frame.buffer)
            if client is None:
                continue
            self._connections.spoke(client.descriptor)
            if not self._queue.has_room(client.owner, parts):
                self._refuse(
                    b"backlog", f"{client.owner} sends more than the daemon reads: messages are dropped, and sent again"
                )
                continue
            if name not in self._clients:
                self._introduce(name, client)
            self._queue.add(client.owner, RecordKind.MESSAGE, parts)
            if self._names.get(client.descriptor) != name:
                self._end(name)

    def _identify(self, frame: zmq.Frame) -> _Client | None:
        """Return who has sent the first frame of a message; None for no client."""
        if not _GLIBC:
            return _Client(-1, -1, 0, "", "")
        try:
            descriptor, address = int(frame.get(zmq.SRCFD)), str(frame.get("Peer-Address"))
            user = _UNIX.fullmatch(address)
            if user is not None:
                return _Client(descriptor, int(user[1]), int(user[2]), "", f"user {user[1]}")
            key = "" if self._authenticator is None else str(frame.get("User-Id"))
            return _Client(descriptor, -1, 0, key, f"key {key}" if key else address)
        except zmq.ZMQError:  # a peer of ZMTP 2 or older, which has no metadata; all clients use version 3
            return None

    def _introduce(self, name: bytes, client: _Client) -> None:
        """Report the connection of a first message."""
        descriptor, uid, pid, key, owner = client
        self._queue.add(
            owner, RecordKind.CONNECTED, [name, b"%d" % uid, b"%d" % pid, key.encode()], pidfd(descriptor, pid)
        )
        self._handle_events()  # it may have been accepted, or closed, since the last turn
        self._clients[name] = client
        if descriptor in self._connections:
            self._forget(descriptor)
            self._names[descriptor] = name

    def _forget(self, descriptor: int) -> None:
        name = self._names.pop(descriptor, None)
        if name is not None:
            self._end(name)

    def _end(self, name: bytes) -> None:
        """Report the end of a connection, after its messages."""
        self._queue.add(self._clients.pop(name).owner, RecordKind.DISCONNECTED, [name])

    def _answer(self) -> None:
        for kind, parts, _ in self._channel.receive():
            if kind == RecordKind.PING:
                self._channel.add(kind)
            else:
                with suppress(zmq.Again):  # the client does not read, and asks again when it does
                    self._socket.send_multipart(parts, zmq.NOBLOCK)


def _resident() -> int:
    """Return the resident memory of this process in bytes; 0 where that is unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  pathlib takes 1 MiB, and nothing else here needs it
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def most_connections() -> int:
    """Return how many connections leave enough descriptors: without any, ZeroMQ aborts this process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # ZeroMQ may accept many more before the first of a burst is shut down.
    return MAX_CONNECTIONS if limit == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, limit // 4))


class _Waiting(NamedTuple):
    """A record of the channel."""

    kind: RecordKind
    parts: Sequence[Piece]
    descriptor: int
    size: int


class MessageQueue:
    """The records of the connections. Those of one owner keep their order.

    Args:
        channel: Where they go. It has no turns, so that it gets no more than the daemon reads soon.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._turns: Turns[_Waiting] = Turns()
        self._sizes: Counter[str] = Counter()

    def has_room(self, owner: str, parts: Sequence[Piece]) -> bool:
        """Return whether a message fits into its owner's share."""
        share = WAITING_BYTES / len({*self._turns.waiting, owner})
        return owner not in self._turns.waiting or self._sizes[owner] + sum(map(len, parts)) <= share

    def add(self, owner: str, kind: RecordKind, parts: Sequence[Piece], descriptor: int = -1) -> None:
        """Queue a record, with a descriptor to pass on, which is closed after that."""
        size = RECORD_OVERHEAD_BYTES + sum(map(len, parts)) + (DESCRIPTOR_BYTES if descriptor >= 0 else 0)
        self._turns.add(owner, _Waiting(kind, parts, descriptor, size))
        self._sizes[owner] += size

    def flush(self) -> None:
        """Send as much as the channel accepts.

        Raises:
            ChannelClosed: Its other end is closed.
        """
        self._channel.flush()
        while self._turns.waiting and not self._channel.unsent:
            while self._turns.waiting and self._channel.unsent < FLUSH_BYTES:
                owner = self._turns.next()
                kind, parts, descriptor, size = self._turns.get(owner)
                self._sizes[owner] -= size
                self._channel.add(kind, parts, descriptor)
            if self._turns.taken.total() >= ROUND_BYTES:
                self._turns.taken.clear()
            self._sizes += Counter()  # without those that are 0
            self._channel.flush()
