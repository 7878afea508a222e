"""The one background thread of a training process: encodes what was pushed, sends it, keeps what is not acknowledged."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import zmq

from trackside import discovery
from trackside.wire import Clock, WireError, decode_body, open_envelope

if TYPE_CHECKING:
    from trackside.session import Session
    from trackside.wire import Nack, Refused

DRAIN_SECONDS = 0.2
"""How often pushes are collected. A push is handed on within this and a little more; a process that is killed by
SIGKILL or os._exit in between loses what it held."""

BEAT_SECONDS = 1.0
ANSWER_SECONDS = 2.0
"""Without an answer for so long, the daemon is looked for anew."""

ABSENT_SECONDS = 5.0
IDLE_SECONDS = 60.0


class Sender:
    """Serves all sessions of a process over one socket.

    Args:
        endpoint: Where the daemon listens; None to look for it as `discovery.find` does.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        self.connected = False
        self._endpoint = endpoint
        self._sessions: list[Session] = []
        self._arrivals: list[Session] = []
        self._ends: dict[bytes, tuple[str, str, bool]] = {}
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        self._waker, self._wakes = socket.socketpair()
        self._waker.setblocking(False)
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="trackside-sender", daemon=True)
        self._answered_at = self._alone_since = time.monotonic()
        self._beat_at = 0.0
        self._told = self._stopping = False
        self._thread.start()

    def add(self, session: Session) -> None:
        """Serve *session* from now on."""
        with self._lock:
            self._arrivals.append(session)
        self._wake()

    def end(self, session: Session, status: str, cause: str, *, provisional: bool, timeout: float) -> None:
        """Say the session's end, and wait at most *timeout* seconds until all of it is committed.

        With no daemon there is nothing to wait for, and it returns at once.
        """
        deadline = time.monotonic() + timeout
        with self._progress:
            self._ends[session.id] = (status, cause, provisional)
            self._wake()
            while not session.done and (left := deadline - time.monotonic()) > 0 and self._thread.is_alive():
                if session.ended and self._socket is None:
                    return
                self._progress.wait(min(left, 0.05))

    def stop(self, timeout: float = 0.5) -> None:
        """End the thread and close the socket, waiting at most *timeout* seconds: closing a context can hang."""
        self._stopping = True
        self._wake()
        self._thread.join(timeout)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # full of wake-ups already
            self._waker.send(b"\0")

    def _run(self) -> None:
        while not self._stopping:
            self._listen(DRAIN_SECONDS if self._sessions else IDLE_SECONDS)
            with self._progress:
                self._admit()
                self._drain()
                if self._reach():
                    self._transmit()
                self._sessions = [session for session in self._sessions if not session.done]
                self._progress.notify_all()
        self._hang_up()
        self._context.term()
        self._waker.close()
        self._wakes.close()

    def _listen(self, seconds: float) -> None:
        """Wait for answers, a wake-up, or the next drain."""
        deadline = time.monotonic() + seconds
        poller = zmq.Poller()
        poller.register(self._wakes, zmq.POLLIN)
        if self._socket is not None:
            poller.register(self._socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(max(0, round((deadline - time.monotonic()) * 1000))))
            if self._socket in ready:
                with self._progress:
                    self._receive()
                    self._transmit()
                    self._progress.notify_all()
            if self._wakes.fileno() in ready:
                self._wakes.recv(4096)
                return
            if time.monotonic() >= deadline:
                return

    def _admit(self) -> None:
        self._sessions += self._arrivals
        self._arrivals = []

    def _drain(self) -> None:
        clock = now()
        for session in self._sessions:
            if session.ended:
                continue
            session.totals.overhead = time.thread_time()
            if (end := self._ends.pop(session.id, None)) is not None:
                session.end(clock, end[0], end[1], provisional=end[2])
            else:
                session.drain(clock)

    def _reach(self) -> bool:
        """Look for a daemon where none is connected or none answers; say so once when there is none for long."""
        moment = time.monotonic()
        waiting = any(session.in_flight or not session.greeted for session in self._sessions)
        if self._socket is not None and waiting and moment - self._answered_at > ANSWER_SECONDS:
            self._hang_up()
        if self._socket is None and self._sessions:
            found, failures = discovery.find(self._endpoint, os.environ)
            if found is not None:
                self._connect(found)
            elif moment - self._alone_since > ABSENT_SECONDS:
                self._tell(failures)
        return self._socket is not None

    def _connect(self, endpoint: str) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.immediate = True  # never queue for a daemon that is not there: what it misses is sent again
        self._socket.reconnect_ivl = 100
        self._socket.connect(endpoint)
        self._answered_at = time.monotonic()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self.connected = False
        for session in self._sessions:
            session.greeted = False
            session.rewind()

    def _transmit(self) -> None:
        """Send hellos, then what the windows have room for, then a beat when it is time."""
        clock = now()
        beat = time.monotonic() >= self._beat_at
        for session in self._sessions:
            if not session.greeted:
                if beat:
                    self._send(session.hello(clock))
                continue
            idle = not session.in_flight
            while (message := session.next_to_send()) is not None and self._send(message.frames):
                session.sent(message)
            if idle and session.in_flight:
                self._answered_at = time.monotonic()  # the wait for an answer begins here
            if beat and idle and not session.ended:
                self._send(session.beat(clock))
        if beat:
            self._beat_at = time.monotonic() + (BEAT_SECONDS if self.connected else DRAIN_SECONDS)

    def _send(self, frames: list[bytes]) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=True)
        except zmq.Again:
            return False
        return True

    def _receive(self) -> None:
        while self._socket is not None:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._answer(frames)
            except WireError:
                continue  # not from a daemon of ours; without an answer it is looked for anew

    def _answer(self, frames: list[bytes]) -> None:
        envelope = open_envelope(frames)
        session = next((one for one in self._sessions if one.id == envelope.session), None)
        if session is None:
            return
        self._answered_at = self._alone_since = time.monotonic()
        if envelope.kind == "welcome":
            session.acknowledged(envelope.number)
            session.rewind()
            session.greeted = self.connected = True
        elif envelope.kind == "hello?":
            self._send(session.hello(now()))
        elif envelope.kind == "ack":
            session.acknowledged(envelope.number)
        elif envelope.kind == "nack":
            session.rejected(envelope.number)
            body: Nack = decode_body("nack", frames[2])
            _warn(f"the daemon refused batch {envelope.number}: {body.reason}; its values are counted as dropped")
        elif envelope.kind == "refused":
            self._refused(decode_body("refused", frames[2]))

    def _refused(self, refusal: Refused) -> None:
        if not self._told:
            self._told = True
            reads = ", ".join(map(str, refusal.reads))
            _warn(
                f"the daemon reads wire version {reads} and not this client's; upgrade trackside where the daemon runs"
            )

    def _tell(self, failures: list[str]) -> None:
        if not self._told:
            self._told = True
            _warn(
                f"no daemon found at {', '.join(failures)}; training goes on, and the newest 16 MiB of what is pushed"
                " are kept until one is there; start it with: trackside daemon"
            )


def now() -> Clock:
    """This moment by both clocks."""
    return Clock(time.time_ns(), time.monotonic_ns())


def _warn(message: str) -> None:
    import logging

    logging.getLogger("trackside").warning("trackside: %s", message)
