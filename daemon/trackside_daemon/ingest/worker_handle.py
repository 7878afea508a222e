"""The daemon's handle of the ingest worker: starts the process, exchanges messages with it, and starts another when it ends."""

import json
import logging
import select
import subprocess  # noqa: TID251  this file starts the worker
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from trackside.captures.kineto import SOCKET, socket_directory
from trackside.os_errors import os_error_text
from trackside.wire import MESSAGE_BYTES
from trackside_daemon.ingest.connection import Connection, Peer
from trackside_daemon.ingest.endpoint import EndpointError
from trackside_daemon.ingest.push_socket import PushSocket
from trackside_daemon.ingest.worker_channel import Channel, ChannelClosed, ChannelRecord, RecordKind, pair
from trackside_daemon.linux.child_process import own_module
from trackside_daemon.linux.worker_process import end_text

# With twice the limit of a message, one that is just too large gets a reason instead of a lost connection.
FRAME_BYTES = 2 * MESSAGE_BYTES

START_SECONDS = 30.0  # the longest wait for the first worker
HANG_SECONDS = 10.0  # a worker that answers no ping for so long is killed
RESTART_SECONDS = 0.5  # pause before the next worker, if the last one ended sooner than `SOUND_SECONDS` after its start
SOUND_SECONDS = 5.0
LOG_SECONDS = 60.0  # the shortest interval between two reports that a worker has ended
REAP_SECONDS = 1.0  # a process whose channel is closed has ended, or is about to
CLOSE_SECONDS = 2.0  # how long `close` waits for the last answers to be sent

ANSWER_BYTES = 4 << 20  # answers that wait for the worker; a client asks again for one that is dropped
MAX_PEERS = 64  # processes whose pidfds wait for a hello

log = logging.getLogger("trackside")


class WorkerHandle:
    """The handle of the process that serves the push socket, `worker.worker.IngestWorker`. One thread at a time uses it.

    Clients reconnect to a new worker and resend what was not acknowledged; the daemon keeps their sessions.

    Args:
        push_socket: The listening sockets.
        start_seconds: See `START_SECONDS`.
        hang_seconds: See `HANG_SECONDS`; may be changed at any time.

    Attributes:
        restarts: The number of workers that ended and were replaced.
        refused: Connections that were refused, and messages that were dropped, by reason.
    """

    def __init__(
        self,
        push_socket: PushSocket,
        *,
        start_seconds: float = START_SECONDS,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        self._start_seconds, self.hang_seconds = start_seconds, hang_seconds
        self.restarts = 0
        self.refused = {"key": 0, "connections": 0, "backlog": 0, "memory": 0}
        self._push_socket = push_socket
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._connections: dict[bytes, Connection] = {}
        self._peers: deque[Peer] = deque()
        self._records: deque[ChannelRecord] = deque()
        self._prefix = b""
        self._started_at = 0.0
        self._heard_at = 0.0
        self._retry_at = 0.0
        self._logged_at = -LOG_SECONDS
        self._failure = ""
        self._ready = self._was_killed = False

    @property
    def pid(self) -> int | None:
        """The process id of the worker; None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def waiting(self) -> bool:
        """True while records that have arrived wait for `receive`."""
        return bool(self._records)

    @property
    def unsent(self) -> bool:
        """True while answers wait until the worker reads them."""
        return self._channel is not None and self._channel.unsent > 0

    def fileno(self) -> int:
        """Return the descriptor of the channel; -1 while there is no worker."""
        return -1 if self._channel is None else self._channel.fileno()

    def start(self) -> None:
        """Start the process; do not wait until it serves.

        It ends when this process does, because that closes the channel.

        Raises:
            EndpointError: No process can be started.
        """
        try:
            self._start()
        except OSError as error:
            raise EndpointError(f"the ingest worker cannot be started: {os_error_text(error)}") from error

    def wait_ready(self) -> None:
        """Wait until it serves; one that is killed meanwhile is replaced.

        Raises:
            EndpointError: It cannot serve the sockets.
        """
        until = time.monotonic() + self._start_seconds
        while not self._records:
            timeout = until - time.monotonic()
            if self._channel is None:
                if not self._was_killed or timeout <= 0:
                    raise EndpointError(f"the ingest worker has ended: {self._failure}")
                time.sleep(max(0.0, self._retry_at - time.monotonic()))
                self.revive()
                continue
            if timeout <= 0 or not _ready(self._channel, select.POLLIN, timeout):
                raise EndpointError(f"the ingest worker does not start within {self._start_seconds:.0f} s")
            self._read()
        self._ready = True

    def receive(self) -> tuple[Connection, list[bytes]] | None:
        """Return the next message, with its connection; None if none has arrived."""
        if not self._records:
            self._read()
        while self._records:
            message = self._handle(self._records.popleft())
            if message is not None:
                return message
        return None

    def send(self, answer: Sequence[bytes]) -> None:
        """Send an answer: a connection's id, and the frames."""
        if self._channel is None or self._channel.unsent > ANSWER_BYTES or not answer[0].startswith(self._prefix):
            return
        self._channel.add(RecordKind.MESSAGE, [answer[0][len(self._prefix) :], *answer[1:]])

    def flush(self) -> None:
        """Send the answers that the worker has room for."""
        if self._channel is not None:
            try:
                self._channel.flush()
            except ChannelClosed:
                self._end()

    def revive(self) -> None:
        """Start another worker if the last one has ended and it is time."""
        if self._process is not None or time.monotonic() < self._retry_at:
            return
        try:
            self._start()
        except OSError as error:
            self._retry_at = time.monotonic() + RESTART_SECONDS
            log.warning("the ingest worker cannot be started: %s; trying again", os_error_text(error))

    def tick(self, *, reads: bool) -> None:
        """Check once a second that the worker answers; *reads* if `receive` is called."""
        now = time.monotonic()
        if self._channel is None:
            return
        if not reads or self._records:
            self._heard_at = now  # its answers wait behind messages: the hellos of a thousand clients may need longer
        elif now - self._heard_at > self.hang_seconds and self._process is not None:
            self._process.kill()
        else:
            self._channel.add(RecordKind.PING)

    def close(self) -> None:
        """Send the last answers, and end the process."""
        process = self._process
        if process is None or self._channel is None:
            return
        until = time.monotonic() + CLOSE_SECONDS
        with suppress(ChannelClosed):
            while self._channel.unsent and time.monotonic() < until:
                _ready(self._channel, select.POLLOUT, until - time.monotonic())
                self._channel.flush()
        self._reap(process, max(0.0, until - time.monotonic()))

    def _start(self) -> None:
        ours, theirs = pair()
        listeners = {endpoint: one.fileno() for endpoint, one in self._push_socket.listeners.items()}
        settings = {
            "channel": theirs.fileno(),
            "listeners": listeners,
            "keys": self._push_socket.keys,
            "frame_bytes": FRAME_BYTES,
            "profiler": str(socket_directory(self._push_socket.token) / SOCKET),
        }
        command = own_module("trackside_daemon.ingest.worker", json.dumps(settings))
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - ours
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    cwd="/",
                    pass_fds=(theirs.fileno(), *listeners.values()),
                )
            except OSError:
                ours.close()
                raise
        self._channel = Channel(ours)
        self._started_at = self._heard_at = time.monotonic()
        # A routing id of one worker may be that of another client at the next one.
        self._prefix = bytes([self.restarts % 256])

    def _read(self) -> None:
        if self._channel is None:
            return
        try:
            records = self._channel.receive()
        except ChannelClosed:
            self._end()
            return
        if records:
            self._records.extend(records)
            self._heard_at = time.monotonic()

    def _handle(self, record: ChannelRecord) -> tuple[Connection, list[bytes]] | None:
        """Handle a record; return the message if it is one."""
        parts = record.parts
        if record.kind == RecordKind.MESSAGE:
            return self._connections[parts[0]], parts[1:]
        if record.kind == RecordKind.CONNECTED:
            self._add_connection(parts, record.descriptor)
        elif record.kind == RecordKind.DISCONNECTED:
            connection = self._connections.pop(parts[0])
            if connection.peer is not None:
                connection.peer.close()
        elif record.kind == RecordKind.REFUSED:
            self.refused[parts[0].decode()] += 1
        elif record.kind == RecordKind.LOG:
            log.warning("%s", parts[0].decode())
        return None

    def _add_connection(self, parts: list[bytes], pidfd: int) -> None:
        name, uid, pid, key = parts
        peer = None if int(uid) < 0 else Peer(int(pid), pidfd)
        connection = Connection(self._prefix + name, None if peer is None else int(uid), key.decode(), peer)
        self._connections[name] = connection
        if peer is not None:
            self._peers.append(peer)
            # A connection's first message is its hello, after which the process is followed or its pidfd is of no use.
            if len(self._peers) > MAX_PEERS:
                self._peers.popleft().close()

    def _end(self) -> None:
        """Reap the process, whose channel is closed, and decide when the next one starts."""
        process = self._process
        if process is None:
            return
        self._failure = self._reap(process, REAP_SECONDS)
        now = time.monotonic()
        self._retry_at = now + (RESTART_SECONDS if now - self._started_at < SOUND_SECONDS else 0.0)
        self.restarts += 1
        if (self._ready or self._was_killed) and now - self._logged_at > LOG_SECONDS:
            self._logged_at = now
            log.warning(
                "the ingest worker has ended: %s; another one starts, and clients resend what was not acknowledged",
                self._failure,
            )

    def _reap(self, process: subprocess.Popen[bytes], timeout: float) -> str:
        """Close the channel, wait for the end of the process, kill it after *timeout* seconds; return how it ended."""
        self._forget()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        process.kill()
        status = process.wait()
        self._was_killed = status < 0
        errors = b""
        if process.stderr is not None:
            with process.stderr:
                errors = process.stderr.read()
        self._process = None
        return end_text(status, errors)

    def _forget(self) -> None:
        """Close the channel and all that came with it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for connection in self._connections.values():
            if connection.peer is not None:
                connection.peer.close()
        self._connections = {}
        self._peers.clear()
        self._records.clear()


def _ready(channel: Channel, events: int, timeout: float) -> bool:
    """Return whether one of some events, of poll(2), happens within *timeout* seconds."""
    poller = select.poll()
    poller.register(channel, events)
    return bool(poller.poll(max(0.0, timeout) * 1000))
