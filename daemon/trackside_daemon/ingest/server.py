"""The thread that reads the push socket, answers messages, and passes on the batches that follow from them."""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import zmq

from trackside_daemon.ingest.connection import Connection
from trackside_daemon.ingest.process_watch import RETRY_SECONDS, ProcessWatch
from trackside_daemon.training.moment import Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.ingest.push_socket import PushSocket
    from trackside_daemon.ingest.requests import IngestRequests
    from trackside_daemon.ingest.sessions import Sessions
    from trackside_daemon.model.metric import Batch

TICK_SECONDS = 1.0
ROOM_SECONDS = 0.05  # how often a full pipeline is checked for room
READ_MESSAGES = 100  # the most messages of one turn, so that acknowledgements never wait for long

_UNIX = re.compile(r"[a-z]*:(\d+):\d+:\d+")  # uid, gid and pid of a Unix socket's client, as libzmq writes SO_PEERCRED


class Server:
    """Reads the socket while the pipeline has room; otherwise messages stay with ZeroMQ and the clients.

    Args:
        push_socket: The socket.
        sessions: The protocol.
        deliver: Receives the batches.
        has_room: Returns whether the pipeline has room. Answers and ticks continue while it has none.
        is_stuck: Returns whether there is no room because the disk accepts nothing: hellos and beats are then read still.
        requests: The requests of other threads. They may outlive the server, so that it does not close them.
        watch: Follows the processes of the clients.
    """

    def __init__(
        self,
        push_socket: PushSocket,
        sessions: Sessions,
        deliver: Callable[[Sequence[Batch]], None],
        has_room: Callable[[], bool],
        is_stuck: Callable[[], bool] = lambda: False,
        *,
        requests: IngestRequests,
        watch: ProcessWatch | None = None,
    ) -> None:
        self._requests = requests
        self._push_socket = push_socket
        self._sessions = sessions
        self._deliver = deliver
        self._has_room = has_room
        self._is_stuck = is_stuck
        self._watch = watch or ProcessWatch()
        self._stopping = False
        self._turned = 0.0
        self._thread = threading.Thread(target=self._run, name="trackside-ingest", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def behind(self) -> float:
        """Return for how many seconds its next turn is overdue; there is one each `TICK_SECONDS` at least."""
        turned = self._turned
        return max(0.0, time.monotonic() - turned - TICK_SECONDS) if turned else 0.0

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._requests.wake()
        self._thread.join()

    def close(self) -> None:
        """Answer what was committed after `stop`, and close the socket."""
        self._acknowledge()
        self._watch.close()
        self._push_socket.close()

    def _run(self) -> None:
        socket = self._push_socket.socket
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._requests.fileno(), zmq.POLLIN)
        poller.register(self._watch, zmq.POLLIN)
        tick_at = time.monotonic()
        while not self._stopping:
            self._turned = time.monotonic()
            reads = self._has_room() or self._is_stuck()
            poller.modify(socket, zmq.POLLIN if reads else 0)
            ready = dict(poller.poll(max(0, round(self._timeout(tick_at, reads=reads) * 1000))))
            if self._requests.fileno() in ready:
                self._requests.drain()  # before the queues, so that a later request wakes this thread again
            self._acknowledge()
            self._handle_requests()
            # A process that restarts a run comes after the one that it replaces, so ends come before messages.
            self._deliver_ends()
            if socket in ready:
                self._read()
            if time.monotonic() >= tick_at:
                tick_at = time.monotonic() + TICK_SECONDS
                self._watch.tick(_now())
                self._deliver(self._sessions.tick(_now()))

    def _timeout(self, tick_at: float, *, reads: bool) -> float:
        """Return the seconds to wait for events."""
        timeout = min(tick_at - time.monotonic(), TICK_SECONDS)
        if not reads:
            timeout = min(timeout, ROOM_SECONDS)
        return min(timeout, RETRY_SECONDS) if self._watch.waits else timeout

    def _read(self) -> None:
        for _ in range(READ_MESSAGES):
            room = self._has_room()
            if not room and not self._is_stuck():
                return
            try:
                # As a zmq.Frame, which alone has the descriptor of the connection. The second call does not wait, since
                # ZeroMQ delivers all frames of a message at once.
                first = self._push_socket.socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            connection, frames = _connection(first), self._push_socket.socket.recv_multipart()
            self._watch.note_connection(connection.id, _descriptor(first))
            outcome = self._sessions.receive(connection, frames, _now(), room=room)
            for answer in outcome.answers:
                self._send(answer)
            self._deliver(outcome.batches)

    def _handle_requests(self) -> None:
        while self._requests.restarts:
            self._sessions.forget(self._requests.restarts.popleft())
        while self._requests.questions:
            for frames in self._sessions.ask(self._requests.questions.popleft(), _now()):
                self._send(frames)

    def _deliver_ends(self) -> None:
        now = _now()
        for process, ended, at in self._watch.ended(now):
            self._deliver(self._sessions.exited(process, ended, at.wall, now))

    def _acknowledge(self) -> None:
        while self._requests.receipts:
            answer = self._sessions.committed(self._requests.receipts.popleft())
            if answer is not None:
                self._send(answer)

    def _send(self, frames: list[bytes]) -> None:
        with suppress(zmq.Again):  # the client does not read, and asks again when it does
            self._push_socket.socket.send_multipart(frames, zmq.NOBLOCK)


def _now() -> Moment:
    return Moment(time.time(), time.monotonic())


def _descriptor(frame: zmq.Frame) -> int:
    """Return the number of the socket that a message came from; -1 if ZeroMQ does not provide it."""
    try:
        return frame.get(zmq.SRCFD)
    except zmq.ZMQError:
        return -1


def _connection(frame: zmq.Frame) -> Connection:
    """Return the connection of a message, by its first frame."""
    # As ZeroMQ has read them when the client connected. The socket itself may be closed, or another client's, by now.
    if (user := _UNIX.fullmatch(str(frame.get("Peer-Address")))) is not None:
        return Connection(frame.bytes, int(user[1]))
    try:
        return Connection(frame.bytes, key=str(frame.get("User-Id")))
    except zmq.ZMQError:  # no keys are required
        return Connection(frame.bytes)
