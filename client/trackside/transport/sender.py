"""The one background thread of a training process: encodes what was pushed, sends it, keeps what is not acknowledged."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import zmq

from trackside.environment.process_info import about
from trackside.log import warn
from trackside.stacks import stacks
from trackside.transport import discovery
from trackside.transport.connection import connect, new_context
from trackside.transport.orphaned_spool import OrphanedSession, leftovers, unread
from trackside.transport.paths import machine_id
from trackside.transport.session import Session
from trackside.transport.spool import where
from trackside.wire import VERSION, Clock, Envelope, Stacks, WireError, decode_body, encode, open_envelope

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DRAIN_SECONDS = 0.2
"""How often pushes are collected. A push is handed on within this and a little more; a process that is killed by
SIGKILL or os._exit in between loses what it held."""

BEAT_SECONDS = 1.0
ANSWER_SECONDS = 2.0
"""Without progress for so long, a session sends again; without any answer, the daemon is looked for anew."""

ABSENT_SECONDS = 5.0
IDLE_SECONDS = 60.0
SWEEP_SECONDS = 10.0
"""How often it is looked for what processes that are gone have left."""


class Sender:
    """Serves all sessions of a process over one socket.

    Args:
        endpoint: Where the daemon listens; None to look for it as `discovery.find` does.
        spools: Directories from which to send what processes that are gone have left; a training's sender has none,
            and does so from its user's own when its daemon, being another user's, cannot.
        machine: Only what this machine has left there; None for all.

    Attributes:
        connected: A daemon has answered since the last connection.
        swept: There was nothing left in the *spools* when it was looked last.
        sent: Names of the runs whose leftovers were sent.
        torn: How often the end of a spool could not be read.

    Raises:
        OSError: No socket pair can be had: too many open files.
        RuntimeError: No thread can be started: too many, or the interpreter is going down.
    """

    def __init__(self, endpoint: str | None = None, *, spools: Iterable[Path] = (), machine: str | None = None) -> None:
        self.connected = False
        self.swept = threading.Event()
        self.sent: list[str] = []
        self.torn = 0
        self._swept: set[bytes] = set()
        self._endpoint = endpoint
        self._spools, self._machine = tuple(spools), machine
        self._sweep_at = 0.0
        self._sessions: list[Session | OrphanedSession] = []
        self._arrivals: deque[Session] = deque()
        self._ends: dict[bytes, tuple[str, str, bool]] = {}
        self._turned = threading.Condition()  # of an RLock: a signal handler may push and finish in the midst
        self._waker, self._wakes = socket.socketpair()
        self._waker.setblocking(False)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._failures: list[str] = []
        self._connected_to = ""
        self._thread = threading.Thread(target=self._run, name="trackside-sender", daemon=True)
        self._answered_at = self._alone_since = time.monotonic()
        self._beat_at = 0.0
        self._told: set[str] = set()
        self._news: list[str] = []
        self._stopping = False
        if self._spools:
            self._wake()
        try:
            self._thread.start()
        except RuntimeError:
            self.forked()
            raise

    def add(self, session: Session) -> None:
        """Serve *session* from now on."""
        self._arrivals.append(session)
        self._wake()

    def end(self, session: Session, status: str, cause: str, *, provisional: bool, timeout: float) -> None:
        """Say the session's end, and wait at most *timeout* seconds until all of it is committed.

        With no daemon there is nothing to wait for: it is all written to the spool at once.
        """
        deadline = time.monotonic() + timeout
        self._ends[session.id] = (status, cause, provisional)
        self._wake()
        with self._turned:
            while not session.done and (left := deadline - time.monotonic()) > 0 and self._thread.is_alive():
                self._turned.wait(min(left, 0.05))

    @property
    def alive(self) -> bool:
        """Its thread runs."""
        return self._thread.is_alive()

    def stop(self, timeout: float = 0.5) -> None:
        """End the thread and close the socket, waiting at most *timeout* seconds: closing a context can hang."""
        self._stopping = True
        self._wake()
        self._thread.join(min(timeout, 60.0))  # what is too long for the lock raises

    def forked(self) -> None:
        """In a child, which has no such thread: close its copies of what is the parent's. ZeroMQ's must be left."""
        self._waker.close()
        self._wakes.close()
        for session in (*self._sessions, *self._arrivals):
            session.spool.close(forked=True)

    def _wake(self) -> None:
        with suppress(OSError):  # full of wake-ups already, or closed
            self._waker.send(b"\0")

    def _run(self) -> None:
        try:
            self._context = new_context()
            about()  # now and not at the first hello: what runs may be edited by then
            while not self._stopping:
                self._listen(DRAIN_SECONDS if self._sessions else SWEEP_SECONDS if self._spools else IDLE_SECONDS)
                self._turn()
                self._notify()
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on, and nobody wants its traceback
            warn(f"sending ends here, training goes on: {type(error).__name__}: {error}")
        finally:
            self._leave()
            self._hang_up()
            if self._context is not None:
                self._context.term()
            self._waker.close()
            self._wakes.close()

    def _turn(self) -> None:
        if self._arrivals:
            self._answered_at = self._alone_since = time.monotonic()
        self._arrive()
        self._sweep()
        self._drain()
        if self._reach():
            self._transmit()
        self._forget()

    def _leave(self) -> None:
        """The process ends, or the thread does: what was not acknowledged goes to the spool."""
        try:
            self._arrive()
            self._drain()
            for session in self._sessions:
                if not session.done:
                    self._retire(session)
            self._notify()
        except Exception as error:  # noqa: BLE001  the same
            warn(f"what was not sent is lost: {type(error).__name__}: {error}")

    def _arrive(self) -> None:
        while self._arrivals:
            self._sessions.append(self._arrivals.popleft())

    def _notify(self) -> None:
        """Tell whoever waits for the end of a session, and people; no lock is held over anything slow."""
        with self._turned:
            self._turned.notify_all()
        news, self._news = self._news, []
        for message in news:
            warn(message)

    def _sweep(self) -> None:
        """Take up what a process that is gone has left, one after the other."""
        moment = time.monotonic()
        if moment < self._sweep_at or any(isinstance(session, OrphanedSession) for session in self._sessions):
            return
        spools, machine = self._spools, self._machine
        if not spools and self.connected:
            spools, machine = unread(self._connected_to), machine_id()
        found = next(leftovers(spools, machine, self._swept), None)
        if found is not None:
            self._swept.add(found.id)
            self._sessions.append(found)
            self.torn += found.spool.torn
            if found.spool.torn:
                self._tell("torn", f"run {found.name}: the end of a spool that it has left is torn, and is left out")
            self._answered_at = self._alone_since = moment  # nothing was asked before
        else:
            self._sweep_at = moment + SWEEP_SECONDS
            self.swept.set()

    def _listen(self, seconds: float) -> None:
        """Wait for answers, a wake-up, the next drain, or the moment when there is a daemon to say hello to."""
        deadline = time.monotonic() + seconds
        poller = zmq.Poller()
        poller.register(self._wakes, zmq.POLLIN)
        if self._socket is not None:
            unsaid = any(session.asked_at < 0 for session in self._sessions)
            poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if unsaid else 0))
        while True:
            ready = dict(poller.poll(max(0, round((deadline - time.monotonic()) * 1000))))
            if ready.get(self._socket, 0) & zmq.POLLIN:
                self._receive()
                self._transmit()
                self._notify()
            if self._wakes.fileno() in ready:
                self._wakes.recv(4096)
                return
            if ready.get(self._socket, 0) & zmq.POLLOUT or time.monotonic() >= deadline:
                return

    def _drain(self) -> None:
        clock = now()
        for session in self._sessions:
            if session.ended or isinstance(session, OrphanedSession):
                session.settle(clock)
                continue
            session.totals.overhead = time.thread_time()
            if (end := self._ends.pop(session.id, None)) is not None:
                session.end(clock, end[0], end[1], provisional=end[2])
            else:
                session.drain(clock)
            for key, warning in session.warnings.items():
                self._tell(f"key {key}", warning)
            if session.spool.discarded:
                self._tell("full", f"the spool is full{where()}: what was left there longest ago is deleted")
            if failure := session.spool.failure:
                kept = "the newest 16 MiB are kept in memory; name another directory with $TRACKSIDE_SPOOL"
                self._tell("spool", f"what waits cannot be written to {failure}; {kept}")

    def _reach(self) -> bool:
        """Look for a daemon where none is connected or none answers; say so once when there is none for long."""
        moment = time.monotonic()
        for session in self._sessions:
            session.resend_after(ANSWER_SECONDS, moment)
        if not any(session.pending or not session.greeted for session in self._sessions):
            self._answered_at = self._alone_since = moment  # nothing is asked, so silence means nothing
        elif self._socket is not None and moment - self._answered_at > ANSWER_SECONDS:
            self._hang_up()
        if self._socket is None and self._sessions:
            found, self._failures = discovery.find(self._endpoint, os.environ)
            if found is not None:
                self._connect(found)
        if moment - self._alone_since > ABSENT_SECONDS:
            self._tell_absent()
        return self._socket is not None

    def _connect(self, endpoint: str) -> None:
        assert self._context is not None  # noqa: S101  made before the first turn
        self._answered_at = time.monotonic()
        self._connected_to = endpoint
        self._socket, failure = connect(self._context, endpoint, os.environ)
        self._failures.append(f"{endpoint} ({failure})")

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self.connected = False
        for session in self._sessions:
            session.disconnected()

    def _forget(self) -> None:
        """Let go of the sessions that have nothing more to say, and without a daemon of all that have ended."""
        for session in [one for one in self._sessions if one.ended]:
            if self._socket is None and not session.done:
                self._retire(session)
                self._swept.discard(session.id)  # what is left of it may be sent later
            if session.done:
                session.spool.close()
                self._sessions.remove(session)
                if isinstance(session, OrphanedSession):
                    if not session.retired:
                        self.sent.append(session.name)
                    self._wake()  # for the next

    def _transmit(self) -> None:
        """Send hellos, then what the windows have room for, then a beat when it is time."""
        clock, moment = now(), time.monotonic()
        beat = moment >= self._beat_at
        for session in self._sessions:
            if not session.greeted:
                if moment - session.asked_at >= BEAT_SECONDS and self._send(session.hello(clock)):
                    session.asked_at = moment
                continue
            idle = not session.in_flight
            while (message := session.next_to_send()) is not None and self._send(message.frames):
                session.sent(message)
            if beat and isinstance(session, Session) and not session.ended and (idle or session.is_stuck(clock)):
                self._send(session.beat(clock))
        if beat:
            self._beat_at = moment + BEAT_SECONDS

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
            except WireError as error:  # not from a daemon of ours; without an answer it is looked for anew
                if error.reason == "version":
                    self._tell_version(frames[0][:32].decode(errors="replace").removeprefix("trackside/"))

    def _answer(self, frames: list[bytes]) -> None:
        envelope = open_envelope(frames)
        if envelope.kind == "refused":  # of no session: a daemon does not read those of another version
            self._tell_version(", ".join(map(str, decode_body("refused", frames[2]).reads)))
            return
        session = next((one for one in self._sessions if one.id == envelope.session), None)
        if session is None:
            return
        self._answered_at = self._alone_since = time.monotonic()
        if envelope.kind == "welcome":
            session.acknowledged(envelope.number)
            session.greeted = self.connected = True
        elif envelope.kind == "hello?":
            if session.greeted:  # else the hello is on its way
                session.disconnected()
        elif envelope.kind == "ack":
            session.acknowledged(envelope.number)
        elif envelope.kind == "nack":
            session.rejected(envelope.number)
            refused = f"the daemon refused message {envelope.number}: {decode_body('nack', frames[2]).reason}"
            self._tell("nack", f"{refused}; its values are counted as dropped, and so are those of further ones")
        else:
            self._obey(envelope.kind, session, envelope.number)

    def _obey(self, command: str, session: Session | OrphanedSession, number: int) -> None:
        if command == "stacks?":
            self._send(encode(Envelope("stacks", session.id, number), Stacks(stacks())))
        elif command == "ping":
            self._send(encode(Envelope("pong", session.id, number)))
        elif command == "layers?" and isinstance(session, Session):
            session.ask_layers(number)

    def _tell_version(self, reads: str) -> None:
        self._answered_at = self._alone_since = time.monotonic()  # it is no use, but there is one
        self._tell(
            "version",
            f"the daemon reads wire version {reads} and this client writes {VERSION}; install the same trackside in both"
            " places and start the daemon anew; training goes on, and what is pushed is kept on disk",
        )

    def _tell_absent(self) -> None:
        failed = any(session.spool.failure for session in self._sessions)
        kept = " in memory, the newest 16 MiB of it" if failed else where()
        self._tell(
            "absent",
            f"no daemon found at {', '.join(self._failures)}; training goes on, and what is pushed waits for one{kept}"
            f"{discovery.advice(discovery.named(self._endpoint, os.environ), self._failures)}",
        )

    def _retire(self, session: Session | OrphanedSession) -> None:
        """Leave what a session has to say to its spool, and say so, or say what is lost."""
        session.retire(now())
        if session.unkept:
            lost = f"{session.unkept} values are lost, since they cannot be written to {session.spool.failure}"
            self._tell("unkept", lost)
        elif self._failures and self._socket is None and isinstance(session, Session):
            self._tell_absent()

    def _tell(self, what: str, message: str) -> None:
        """Log once, at the end of this turn."""
        if what not in self._told:
            self._told.add(what)
            self._news.append(message)


def now() -> Clock:
    """This moment by both clocks."""
    return Clock(time.time_ns(), time.monotonic_ns())
