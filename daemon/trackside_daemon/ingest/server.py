"""The thread that owns the push socket: reads messages, answers them, and passes on what they said."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import zmq

from trackside.transport.keys import KeyFileError
from trackside.wire import MESSAGE_BYTES
from trackside_daemon.ingest.client_commands import Question
from trackside_daemon.ingest.endpoint import (
    EndpointError,
    Lock,
    admit,
    group_id,
    lend,
    push_path,
    require_keys,
    token_path,
)
from trackside_daemon.ingest.keyring import Keyring
from trackside_daemon.ingest.process_watch import RETRY_SECONDS, Watch
from trackside_daemon.training.moment import Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.ingest.authenticator import Authenticator
    from trackside_daemon.ingest.client_commands import Answer
    from trackside_daemon.ingest.session import Receipt
    from trackside_daemon.ingest.sessions import Sessions
    from trackside_daemon.model.metric import Batch

TICK_SECONDS = 1.0
ROOM_SECONDS = 0.05
"""How often it is looked whether there is room again."""

ANSWER_SECONDS = 3.0
"""A client answers as soon as its sender thread gets the GIL."""

LINGER_MILLISECONDS = 200
"""How long closing the socket waits for the last acknowledgements to go out."""

FRAME_BYTES = 2 * MESSAGE_BYTES
"""ZeroMQ drops a connection that announces a larger frame, before it takes memory for it."""

KEEPALIVE_SECONDS = 60
"""When a connection by TCP that is silent for so long is asked whether its machine is still there."""

MESSAGES_WAITING = 128
"""What ZeroMQ holds of one connection while nobody reads: a client has at most half as many under way."""


class PushSocket:
    """The bound socket. Binding needs neither configuration nor web, so that a client waits as little as can be.

    Args:
        endpoints: ``ipc:///PATH`` or ``tcp://HOST:PORT``; none for `push_path`. Unix sockets are bound first.
        keys: A directory that ``trackside keys`` made; whoever comes by TCP then needs a key. Empty for none: then TCP
            is for loopback addresses alone.
        group: Who may push beside this user, by name or number, as `group_id` has it.

    Attributes:
        token: Where the API's token is kept: beside the socket.
        endpoints: What clients connect to.

    Raises:
        EndpointError: One of them cannot be bound.
    """

    def __init__(self, endpoints: Sequence[str] = (), *, keys: str = "", group: str = "") -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.linger = LINGER_MILLISECONDS
        self.socket.maxmsgsize = FRAME_BYTES
        self.socket.rcvhwm = MESSAGES_WAITING
        self.socket.tcp_keepalive, self.socket.tcp_keepalive_idle = 1, KEEPALIVE_SECONDS
        self._locks: list[Lock] = []
        self._authenticator: Authenticator | None = None
        try:
            wanted = endpoints or (f"ipc://{push_path((), os.environ, os.getuid())}",)
            files = [one for one in wanted if one.startswith("ipc://")]
            ports = [one for one in wanted if not one.startswith("ipc://")]
            require_keys(ports, keys)
            bound = {one: self._bind_file(one, group, named=bool(endpoints)) for one in files}
            self._guard(keys)
            bound |= {one: self._bind(one) for one in ports}
            self.endpoints = tuple(bound[one] for one in wanted)
            self.token = token_path(self.endpoints, os.environ, os.getuid())
        except EndpointError:
            self.close()
            raise

    def rejected(self) -> dict[str, int]:
        """Connections that were refused, by reason; called from any thread."""
        authenticator = self._authenticator
        return {"key": authenticator.rejected if authenticator is not None else 0}

    def close(self) -> None:
        """Unbind, and let go of the paths."""
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        self.socket.close()
        self.context.term()
        for lock in self._locks:
            lock.release()
        self._locks = []

    def _bind_file(self, endpoint: str, group: str, *, named: bool) -> str:
        """Listen at a socket's path, whose directory the user named or did not; returns the endpoint."""
        path = Path(endpoint.removeprefix("ipc://"))
        gid = group_id(group, path)
        self._locks.append(Lock(path))
        if gid is not None:
            admit(path.parent, gid, named=named)
        umask = os.umask(0o177)  # the socket is this user's alone from its first moment
        try:
            bound = self._bind(endpoint)
        finally:
            os.umask(umask)
        if gid is not None:
            lend(path, gid)
        return bound

    def _guard(self, keys: str) -> None:
        """With *keys*, let in those who have one; of what is bound later, so not of the Unix sockets."""
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
        """Listen at an endpoint; returns it, with the port that a 0 or * became."""
        self.socket.ipv6 = endpoint.startswith("tcp://[")
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            reason = zmq.strerror(error.errno or 0).lower()
            raise EndpointError(f"{endpoint}: {reason}; name another with --push.endpoint") from error
        return cast("bytes", self.socket.last_endpoint).decode()


class Server:
    """Reads the socket while the pipeline has room; a full one leaves messages to ZeroMQ and the clients.

    Args:
        push_socket: Where messages arrive.
        sessions: What they mean.
        deliver: Takes batches.
        has_room: Whether more of them are welcome. Answers and ticks go on when they are not.
        is_stuck: Whether there is no room since nothing can be written: then greetings and beats are read all the same.
        watch: Follows the processes that `Sessions` meets; None for none.
    """

    def __init__(
        self,
        push_socket: PushSocket,
        sessions: Sessions,
        deliver: Callable[[Sequence[Batch]], None],
        has_room: Callable[[], bool],
        is_stuck: Callable[[], bool] = lambda: False,
        *,
        watch: Watch | None = None,
    ) -> None:
        self._push_socket = push_socket
        self._sessions = sessions
        self._deliver = deliver
        self._has_room = has_room
        self._is_stuck = is_stuck
        self._watch = watch or Watch()
        self._renounced: deque[bytes | None] = deque()
        self._receipts: deque[Receipt] = deque()
        self._questions: deque[Question] = deque()
        self._wakes, self._waker = os.pipe()
        os.set_blocking(self._wakes, False)
        os.set_blocking(self._waker, False)
        self._stopping = False
        self._turned = 0.0
        self._thread = threading.Thread(target=self._run, name="trackside-ingest", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def acknowledge(self, receipt: Receipt) -> None:
        """The batch that bore *receipt* is committed: its client may forget it. Called from the pipeline's thread."""
        self._receipts.append(receipt)
        self._wake()

    def renounce(self, session: bytes | None) -> None:
        """What a session, or all, has not heard acknowledged has to come again. Called from the history's thread."""
        self._renounced.append(session)
        self._wake()

    def command(self, kind: str, run: str, number: int) -> Question:
        """Tell the clients of a run to do something that is not answered. Called from any thread; it waits for nothing."""
        question = Question(kind, run, number=number)
        self._questions.append(question)
        self._wake()
        return question

    def ask_layers(self, run: str, steps: int) -> frozenset[int]:
        """Have the ranks of a run, by its id, tell the norms of all layers for some steps; which ranks were told."""
        question = self.command("layers?", run, steps)
        question.wait(ANSWER_SECONDS)
        return question.asked or frozenset()

    def ask(self, kind: str, run: str, ranks: frozenset[int] | None = None) -> tuple[frozenset[int], list[Answer]]:
        """Ask the clients of a run, for `ANSWER_SECONDS` at most. Called from any thread but this.

        Args:
            kind: ``stacks?`` or ``ping``.
            run: Its id.
            ranks: Only these; None for all.

        Returns:
            The ranks that were asked, and what they answered.
        """
        question = Question(kind, run, ranks)
        self._questions.append(question)
        self._wake()
        answers = question.wait(ANSWER_SECONDS)
        return question.asked or frozenset(), answers

    def behind(self) -> float:
        """Seconds that its next turn, of which there is one a `TICK_SECONDS` at least, is late."""
        turned = self._turned
        return max(0.0, time.monotonic() - turned - TICK_SECONDS) if turned else 0.0

    def stop(self) -> None:
        """Stop reading."""
        self._stopping = True
        self._wake()
        self._thread.join()

    def close(self) -> None:
        """Answer what was committed after `stop`, and close the socket."""
        self._answer()
        self._watch.close()
        self._push_socket.close()
        os.close(self._wakes)
        os.close(self._waker)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # full of wake-ups already
            os.write(self._waker, b"\0")

    def _run(self) -> None:
        socket = self._push_socket.socket
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._wakes, zmq.POLLIN)
        poller.register(self._watch, zmq.POLLIN)
        tick_at = time.monotonic()
        while not self._stopping:
            self._turned = time.monotonic()
            reads = self._has_room() or self._is_stuck()
            poller.modify(socket, zmq.POLLIN if reads else 0)
            soon = [ROOM_SECONDS] * (not reads) + [RETRY_SECONDS] * self._watch.waits
            patience = min(tick_at - time.monotonic(), *soon, TICK_SECONDS)
            ready = dict(poller.poll(max(0, round(patience * 1000))))
            if self._wakes in ready:
                os.read(self._wakes, 4096)
            self._answer()
            while self._renounced:
                self._sessions.forget(self._renounced.popleft())
            while self._questions:
                for frames in self._sessions.ask(self._questions.popleft(), _now()):
                    self._send(frames)
            self._tell_ends()
            if socket in ready:
                self._read()
            if time.monotonic() >= tick_at:
                tick_at = time.monotonic() + TICK_SECONDS
                self._watch.tick(_now())
                self._deliver(self._sessions.tick(_now()))

    def _read(self) -> None:
        """Take what has arrived, a hundred messages at most, so that acknowledgements never wait for long."""
        for _ in range(100):
            room = self._has_room()
            if not room and not self._is_stuck():
                return
            try:
                first = self._push_socket.socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            peer, frames = first.bytes, self._push_socket.socket.recv_multipart()
            self._watch.hear(peer, _descriptor(first))
            answers, batches = self._sessions.receive(peer, frames, _now(), room=room)
            for answer in answers:
                self._send(answer)
            self._deliver(batches)

    def _tell_ends(self) -> None:
        """Before messages are read: a process that begins a run anew comes after the one that it replaces."""
        now = _now()
        for process, ended, at in self._watch.ends(now):
            self._deliver(self._sessions.exited(process, ended, at.wall, now))

    def _answer(self) -> None:
        while self._receipts:
            answer = self._sessions.committed(self._receipts.popleft())
            if answer is not None:
                self._send(answer)

    def _send(self, frames: list[bytes]) -> None:
        with suppress(zmq.Again):  # the client does not read; it asks again when it does
            self._push_socket.socket.send_multipart(frames, zmq.NOBLOCK)


def _now() -> Moment:
    return Moment(time.time(), time.monotonic())


def _descriptor(frame: zmq.Frame) -> int:
    """The number of the socket that a message came over; -1 when ZeroMQ does not tell."""
    try:
        return frame.get(zmq.SRCFD)
    except zmq.ZMQError:
        return -1
