"""Send the messages of all sessions of a training process, in its one background thread.

The file is longer than others: one thread owns the socket, the sessions and the spools, and each of its turns uses all three.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any, NamedTuple

import zmq
from msgspec.structs import replace

from trackside.captures.answers import ANSWERS, OTHER_CAPTURE, AnswerKind, cancel_profile
from trackside.captures.kineto import count_cheaply, step_counter
from trackside.environment import discovery
from trackside.environment.clocks import read_clocks
from trackside.environment.paths import kept_directory, machine_id
from trackside.environment.process_info import process_info
from trackside.log_once import LogOnce
from trackside.os_errors import os_error_text
from trackside.packing import text_of, writable
from trackside.training_log import info, warn
from trackside.transport.announcement import announce
from trackside.transport.connection import Unpatched, Waker, connect, native_thread, new_context
from trackside.transport.orphaned_spool import OrphanedSession, orphaned_sessions, unreadable_spools
from trackside.transport.resend_wait import (
    ANSWER_SECONDS,
    LONGEST_SECONDS,
    LONGEST_SILENT_SECONDS,
    SILENT_SECONDS,
    ResendWait,
)
from trackside.transport.session import Session
from trackside.transport.spool import spool_location
from trackside.wire import (
    GATHER_SECONDS,
    LONGEST_GATHER,
    VERSION,
    BatchesQuestion,
    Clock,
    Envelope,
    Welcome,
    WireError,
    decode_body,
    encode,
    open_envelope,
)

END_SECONDS = 0.002  # interval at which the end of a session is awaited
LINE_LENGTH = 512  # limit of a text of the daemon in a log line
ARRAY_SECONDS = 0.5  # time at the end of a session, and half of its timeout at most, for arrays that are not computed
SPOOL_SECONDS = 10.0  # that the end of a process waits at most until what is left is in the spool
KEPT_PARTS = 5  # of the time from one drain to the next: after each, what was pushed in it is safe (`Session.keep`)
IDLE_SECONDS = 60.0  # interval of turns without a session


class SenderIntervals(NamedTuple):
    """Intervals of a sender, in seconds.

    Attributes:
        drain: Interval at which rows are drained. A push is sent within this and a little more, or within the time that the
            daemon requests (`Session.gather`). A process that is killed by SIGKILL or os._exit before that loses it, unless
            `Session.keep` has written it.
        beat: Interval of heartbeats.
        answer: The first wait for an answer; half of it, but `beat` at least, for one to a hello.
        silent: The first wait for an answer on a connection that exists, before it is given up.
        no_daemon: Time without a daemon after which that is logged.
        sweep: Interval of searches for spools of ended processes.
    """

    drain: float = 0.2
    beat: float = 1.0
    answer: float = ANSWER_SECONDS
    silent: float = SILENT_SECONDS
    no_daemon: float = 5.0
    sweep: float = 10.0


INTERVALS = SenderIntervals()


class Sender:
    """Serves all sessions of a process over one socket.

    Args:
        endpoint: Address of the daemon; None to search as `discovery.find` does.
        spools: Directories from which spools of ended processes are sent. A training's sender has none, and sends those
            of its user if the daemon belongs to another user and cannot read them.
        machine: Id of the machine that wrote those spools; None for all.
        intervals: See `SenderIntervals`.

    Attributes:
        connected: A daemon has answered on this connection.
        swept: Set when the last search of *spools* found none.
        sent: Names of the runs whose spools were sent.
        writers: The users whose spools were sent, by session.

    Raises:
        RuntimeError: No thread can be started: too many, or the interpreter shuts down.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        spools: Iterable[Path] = (),
        machine: str | None = None,
        intervals: SenderIntervals = INTERVALS,
    ) -> None:
        self.connected = False
        self.swept = threading.Event()
        self.sent: list[str] = []
        self.writers: dict[bytes, int] = {}
        self._torn: dict[bytes, int] = {}  # by session, since without a daemon its spool is searched again and again
        self._swept: set[Path] = set()
        self._endpoint = endpoint
        self._spools, self._machine = tuple(spools), machine
        self._sweep_at = 0.0
        self._sessions: list[Session | OrphanedSession] = []
        self._arrivals: deque[Session] = deque()
        self._ends: dict[bytes, tuple[str, str, bool, float]] = {}
        self._waker = Waker()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._failures: list[str] = []
        self._connected_to = ""
        self._kept_in: Path | None = None
        self._thread = native_thread(self._run, "trackside-sender")
        self._answered_at = self._no_daemon_since = time.monotonic()
        self._intervals = intervals
        self._resend_wait = ResendWait(intervals.answer)
        self._silent_wait = ResendWait(intervals.silent, LONGEST_SILENT_SECONDS)
        self._lost_wait = ResendWait(intervals.answer)
        self._hello_wait = ResendWait(max(intervals.beat, intervals.answer / 2))
        self._asked = False
        self._beat_at = 0.0
        self._logged = LogOnce()
        self._announced: set[str] = set()
        self._log_lines: list[str] = []
        self._counts_cheaply = False
        self._answering: dict[str, threading.Thread | Unpatched] = {}
        self._answers: deque[list[bytes]] = deque()
        self._stopping = self._is_shut = False
        self._open_at = 0.0
        self._thread.start()

    def add(self, session: Session) -> None:
        """Serve a session from now on."""
        self._arrivals.append(session)
        self._waker.wake()

    def end(
        self, session: Session, status: str, cause: str, *, provisional: bool, timeout: float, waits: bool = True
    ) -> None:
        """End a session, and if this *waits*, wait at most *timeout* seconds until all of it is committed.

        Without a daemon this does not wait: everything is written to the spool at once.
        """
        self._ends[session.id] = (status, cause, provisional, min(ARRAY_SECONDS, timeout / 2))
        self._waker.wake()
        if waits:
            self._wait_until(lambda: session.done, timeout)

    def settle(self, timeout: float) -> None:
        """Wait at most *timeout* seconds until all ended sessions are committed, also those that were not waited for."""
        # The thread moves arrivals to the sessions: in this order none is missed.
        ours = [session for session in (*self._arrivals, *self._sessions) if isinstance(session, Session)]
        self._wait_until(lambda: all(session.done for session in ours), timeout)

    def search(self, seconds: float) -> None:
        """Search *spools* now, and wait at most so many seconds until all that is there is sent."""
        self.swept.clear()
        self._sweep_at = 0.0
        self._waker.wake()
        self.swept.wait(seconds)

    def _wait_until(self, is_done: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        # Without a condition: a signal handler may finish within a push, and gevent's would not reach another thread.
        while not is_done() and (left := deadline - time.monotonic()) > 0 and self._thread.is_alive():
            time.sleep(min(left, END_SECONDS))

    @property
    def alive(self) -> bool:
        """The thread runs."""
        return self._thread.is_alive()

    def stop(self, timeout: float = 0.5) -> None:
        """End the thread and close the socket. Wait at most *timeout* seconds, since closing a context can hang.

        What is left is written to the spool first, which on a busy machine may take up to `SPOOL_SECONDS`.
        """
        self._stopping = True
        self._waker.wake()
        self._wait_until(lambda: self._is_shut, max(timeout, SPOOL_SECONDS))
        self._thread.join(min(timeout, 60.0))  # a timeout too long for the lock raises

    def forked(self) -> None:
        """Close the copies of the parent's files in a forked child, except for ZeroMQ's, which must be left alone."""
        self._waker.close()
        for session in (*self._sessions, *self._arrivals):
            session.spool.close(forked=True)

    def _run(self) -> None:
        try:
            self._open()
            process_info()  # now and not at the first hello: the code may be edited by then
            while not self._stopping:
                try:
                    self._turn()
                except Exception as error:  # noqa: BLE001  whatever it is, it may be over at the next turn
                    failure = f"{type(error).__name__}: {error}"
                    self._log_once("turn", f"sending was interrupted and is tried again, training goes on: {failure}")
                    time.sleep(self._intervals.drain)
                self._log()
        finally:
            self._shut_down()  # first, since closing the context can hang
            self._disconnect()
            if self._context is not None:
                self._context.term()
            self._waker.close()

    def _open(self) -> None:
        """Open what this thread needs: each second while too few file descriptors are free, and when a session ends."""
        if self._context is not None or (time.monotonic() < self._open_at and not self._ends):
            return
        self._open_at = time.monotonic() + self._intervals.beat
        try:
            self._waker.open()
            self._context = new_context()
        except (OSError, zmq.ZMQError) as error:
            kept = "what is pushed is kept until there are more; raise the limit with ulimit -n"
            self._log_once("descriptors", f"nothing can be sent, training goes on: {os_error_text(error)}; {kept}")

    def _turn(self) -> None:
        self._wait(self._intervals.drain if self._sessions else self._intervals.sweep if self._spools else IDLE_SECONDS)
        self._open()
        if self._arrivals:
            self._answered_at = self._no_daemon_since = time.monotonic()
        self._add_arrivals()
        self._sweep()
        self._drain()
        if self._reach_daemon():
            self._transmit()
        self._remove_done()

    def _shut_down(self) -> None:
        """Write everything that is not acknowledged to the spool."""
        try:
            self._add_arrivals()
            self._drain()
            for session in self._sessions:
                if not session.done:
                    self._retire(session)
            self._log()
        except Exception as error:  # noqa: BLE001  the same
            warn(f"unsent values are lost: {type(error).__name__}: {error}")
        finally:
            self._is_shut = True

    def _add_arrivals(self) -> None:
        while self._arrivals:
            self._sessions.append(self._arrivals.popleft())

    @property
    def torn(self) -> int:
        """Number of places in spools that could not be read."""
        return sum(list(self._torn.values()))

    def _log(self) -> None:
        """Write the log lines of this turn."""
        lines, self._log_lines = self._log_lines, []
        for line in lines:
            warn(line)

    def _sweep(self) -> None:
        """Serve the next orphaned session, one after the other."""
        moment = time.monotonic()
        if moment < self._sweep_at or any(isinstance(session, OrphanedSession) for session in self._sessions):
            return
        spools, machine = self._spools, self._machine
        if not spools and self.connected:
            spools, machine = unreadable_spools(self._connected_to), machine_id()
        due = self._sweep_at
        orphan = next(orphaned_sessions(spools, machine, self._swept), None)
        if orphan is not None:
            self._swept.add(orphan.spool.lock_path)
            if orphan.spool.user is not None:
                self.writers[orphan.id] = orphan.spool.user
            self._sessions.append(orphan)
            self._torn |= {orphan.id: len(orphan.spool.damage)} if orphan.spool.damage else {}
            self._answered_at = self._no_daemon_since = moment  # nothing was asked before
        elif self._sweep_at == due:  # else `search` was called meanwhile
            self._sweep_at = moment + self._intervals.sweep
            self.swept.set()

    def _wait(self, seconds: float) -> None:
        """Wait for answers, a wake-up, the next drain, or a connection on which a hello is due."""
        if self._waker.end is None:
            time.sleep(self._intervals.drain)
            return
        deadline = time.monotonic() + seconds
        if self._keep(self._waker.end):
            return
        poller = zmq.Poller()
        poller.register(self._waker.end, zmq.POLLIN)
        if self._socket is not None:
            hello_due = any(session.asked_at < 0 for session in self._sessions)
            # A connected socket can nearly always be written, so POLLOUT would end each wait at once.
            poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if hello_due else 0))
        while True:
            ready = dict(poller.poll(max(0, round((deadline - time.monotonic()) * 1000))))
            if ready.get(self._socket, 0) & zmq.POLLIN:
                self._receive()
                self._transmit()
                self._log()
            if self._waker.end.fileno() in ready:
                self._waker.end.recv(4096)  # all wake-ups at once
                return
            if ready.get(self._socket, 0) & zmq.POLLOUT or time.monotonic() >= deadline:
                return

    def _keep(self, waker: socket) -> bool:
        """Keep what is pushed while this waits for the next drain, if that is worth it; return whether a wake-up came."""
        if (place := self._kept_in) is None:
            return False
        keeping = [session for session in self._sessions if isinstance(session, Session) and session.keeps]
        # ZeroMQ's sockets are not polled meanwhile, which costs several times as much: what the daemon answers can wait.
        poller = select.poll()
        poller.register(waker, select.POLLIN)
        for _ in range(KEPT_PARTS - 1) if keeping else ():
            if poller.poll(1000 * self._intervals.drain / KEPT_PARTS):
                waker.recv(4096)
                return True
            for session in keeping:
                session.keep(now, place)
        return False

    def _drain(self) -> None:
        clock = now()
        for session in self._sessions:
            for text in session.spool.damage.values():
                self._log_once(text, f"run {session.name}: {text}")
            if session.ended or isinstance(session, OrphanedSession):
                session.settle(clock)
                continue
            session.totals.overhead = time.thread_time()
            if (end := self._ends.pop(session.id, None)) is not None:
                session.end(clock, end[0], end[1], provisional=end[2], wait=end[3])
            else:
                session.drain(clock)
            self._log_warnings(session)
            if session.spool.discarded:
                self._log_once("full", f"the spool is full{spool_location()}: the oldest segments are deleted")
            if (failure := session.spool.failure) and session.is_stuck(clock):
                kept = "the newest 16 MiB are kept in memory; name another directory with $TRACKSIDE_SPOOL"
                self._log_once("spool", f"unsent values cannot be written to {failure}; {kept}")

    def _reach_daemon(self) -> bool:
        """Return whether a daemon is connected; search for one if not, or if it does not answer."""
        moment = time.monotonic()
        in_vain = [session for session in self._sessions if session.resend_after(self._resend_wait.seconds, moment)]
        if in_vain:
            self._resend_wait.grow()
        if not any(session.pending or not session.greeted for session in self._sessions):
            self._answered_at = self._no_daemon_since = moment  # nothing is asked, so silence means nothing
            self._resend_wait.reset()
        elif (
            self._socket is not None and moment - self._answered_at > (wait := self._search_wait(self._socket)).seconds
        ):
            self._disconnect()
            wait.grow()
        if self._context is None:
            return False
        if self._socket is None and self._sessions:
            endpoint, self._failures = discovery.find(self._endpoint, os.environ)
            if endpoint is not None:
                self._connect(endpoint)
            else:
                self._resend_wait.reset()
        if moment - self._no_daemon_since > self._intervals.no_daemon:
            self._log_no_daemon()
        return self._socket is not None

    def _search_wait(self, socket: zmq.Socket[bytes]) -> ResendWait:
        """Return the wait without an answer before the daemon is searched anew."""
        # A connection that is not made yet, as on a machine that is busy with a thousand of them, must not begin anew.
        if not self._asked:
            return ResendWait(LONGEST_SECONDS)
        # Nor one that exists: what waits there would be read in vain before the hello on the next, so that a daemon that
        # answers a thousand hellos later than their clients give up would never answer one in time.
        is_connected = int(socket.get(zmq.EVENTS)) & zmq.POLLOUT
        return self._silent_wait if is_connected else self._lost_wait

    def _connect(self, endpoint: str) -> None:
        assert self._context is not None  # noqa: S101  checked before
        self._answered_at = time.monotonic()
        self._asked = False
        self._connected_to = endpoint
        self._kept_in = kept_directory(endpoint)
        self._socket, failure = connect(self._context, endpoint, os.environ)
        self._failures.append(f"{endpoint} ({failure})")

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self.connected = False
        for session in self._sessions:
            session.disconnected()

    def _remove_done(self) -> None:
        """Remove the sessions that are done; without a daemon, all that have ended."""
        for session in [session for session in self._sessions if session.ended]:
            if self._socket is None and not session.done:
                self._retire(session)
                # Its spool may be sent later, but not at once, as long as there is no daemon.
                if isinstance(session, OrphanedSession):
                    self._swept.discard(session.spool.lock_path)
                self._sweep_at = time.monotonic() + self._intervals.sweep
            if session.done:
                session.spool.close()
                self._sessions.remove(session)
                if isinstance(session, OrphanedSession):
                    if not session.retired:
                        self.sent.append(session.name)
                    self._waker.wake()  # for the next

    def _transmit(self) -> None:
        """Send hellos, then messages while the windows have room, then heartbeats if they are due."""
        while self._answers and self._send(self._answers[0]):
            self._answers.popleft()
        clock, moment = now(), time.monotonic()
        beat = moment >= self._beat_at
        self._counts_cheaply = self._counts_cheaply or (beat and count_cheaply())
        self._greet(clock, moment)
        for session in self._sessions:
            if not session.greeted:
                continue
            idle = not session.in_flight
            while (message := session.next_to_send()) is not None and self._send(message.frames):
                session.sent(message)
                session.sent_at = moment
            if beat and isinstance(session, Session) and not session.ended:
                # Batches are signs of life too.
                silent = idle and moment - session.sent_at >= session.gather + self._intervals.drain
                if (silent or session.is_stuck(clock)) and self._send(session.beat(clock)):
                    session.sent_at = moment
        if beat:
            step_counter.expire()
            self._beat_at = moment + self._intervals.beat

    def _greet(self, clock: Clock, moment: float) -> None:
        """Send the hellos that are due, at *moment* in monotonic seconds."""
        in_vain, waited = False, self._hello_wait.seconds
        for session in self._sessions:
            if not session.greeted and moment - session.asked_at >= waited and self._send(session.hello(clock)):
                in_vain = in_vain or session.asked_at > 0
                session.asked_at = moment
                if not self._asked:
                    self._asked, self._answered_at = True, moment
        if in_vain:
            self._hello_wait.grow()

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
                self._handle_answer(frames)
            except WireError as error:  # not from a trackside daemon; without an answer the search begins anew
                if error.reason == "version":
                    self._log_version(frames[0][:32].decode(errors="replace").removeprefix("trackside/"))

    def _handle_answer(self, frames: list[bytes]) -> None:
        envelope = open_envelope(frames)
        if envelope.kind == "refused":  # without a session: a daemon does not read those of another version
            self._log_version(", ".join(map(str, decode_body("refused", frames[2]).reads)))
            return
        session = next((each for each in self._sessions if each.id == envelope.session), None)
        if session is None:
            return
        self._note_answer()
        if envelope.kind == "welcome":
            welcome = decode_body("welcome", frames[2]) or Welcome()
            session.acknowledged(envelope.number)
            if not self.connected:
                reason = discovery.origin(self._connected_to, self._endpoint, os.environ)
                info(f"pushes go to {self._connected_to} ({reason})")
            session.greeted = self.connected = True
            if isinstance(session, Session):
                session.stores = frozenset(welcome.stores)
                session.warn_of_unstored()
                self._log_warnings(session)
                self._announce(session, welcome)
                session.gather = GATHER_SECONDS  # the daemon requests another time after each welcome
        elif envelope.kind == "hello?":
            if session.greeted:  # else the hello is on its way
                session.disconnected()
        elif envelope.kind in {"ack", "nack"}:
            self._handle_commit(envelope, frames[2], session)
        else:
            self._run_command(envelope, frames[2], session)

    def _handle_commit(self, envelope: Envelope, frame: bytes, session: Session | OrphanedSession) -> None:
        if isinstance(session, OrphanedSession) and envelope.kind == "nack" and not envelope.number:
            session.retire(now())  # its hello is refused for ever, and other spools must not wait behind it
            return
        if envelope.kind == "ack":
            progress = session.acknowledged(envelope.number)
        else:
            progress = True
            session.rejected(envelope.number)
            refused = f"the daemon refused message {envelope.number}: {decode_body('nack', frame).reason}"
            self._log_once("nack", f"{refused}; its values are counted as dropped, and so are those of further ones")
        if progress:
            self._resend_wait.reset(2 * session.answer_seconds)
            self._silent_wait.reset()

    def _log_warnings(self, session: Session) -> None:
        for key, warning in session.warnings.items():
            self._log_once(f"key {key}", warning)

    def _announce(self, session: Session, welcome: Welcome) -> None:
        """Print the link to a run, once a process, and log that it is not the one that the session asked for."""
        identity = session.identity
        run = welcome.run or identity.run
        if welcome.why:
            why, stored = (writable(text)[:LINE_LENGTH].replace("\n", " ") for text in (welcome.why, run))
            self._log_once(f"run {run}", f"what this process pushes belongs to the run with the id {stored}: {why}")
        if run not in self._announced:
            self._announced.add(run)
            announce(replace(identity, run=run), self._connected_to)

    def _run_command(self, command: Envelope, frame: bytes, session: Session | OrphanedSession) -> None:
        if command.kind == "layers?" and isinstance(session, Session):
            session.request_layers(command.number)
        elif command.kind == "pace" and isinstance(session, Session):
            session.gather = min(command.number / 1000, LONGEST_GATHER)
        elif command.kind == "cancel?":
            cancel_profile()
        elif (answer := ANSWERS.get(command.kind)) is not None:
            body, is_slow = decode_body(command.kind, frame), answer.is_slow
            if isinstance(body, BatchesQuestion):
                if not isinstance(session, Session):
                    return
                body = session.batches.of(body.step, body.before)
                is_slow = bool(body.steps)
            envelope = Envelope(answer.kind, session.id, command.number)
            slot = answer.kind if answer.refuse is None else ""
            if not is_slow:
                self._send(encode(envelope, answer.make(body)))
            elif slot not in self._answering or not self._answering[slot].is_alive():
                make = partial(self._make_answer, envelope, answer, body)
                self._answering[slot] = native_thread(make, "trackside-answer")
                self._answering[slot].start()
            elif answer.refuse is not None:
                self._send(encode(envelope, answer.refuse(OTHER_CAPTURE)))

    def _make_answer(self, envelope: Envelope, answer: AnswerKind, body: Any) -> None:
        """Queue a slow answer, which the sender thread sends, since a socket belongs to one thread."""
        try:
            made = encode(envelope, answer.make(body))
        except Exception as error:  # noqa: BLE001  it reads objects of the training's own
            why = text_of(f"{type(error).__name__}: {text_of(error)}").replace("\n", " ")[:LINE_LENGTH]
            if self._logged.first(f"answer {answer.kind}"):
                warn(f"the daemon's question {answer.kind}? is not answered, training goes on: {why}")
            made = [] if answer.refuse is None else encode(envelope, answer.refuse(why))
        if made:
            self._answers.append(made)
            self._waker.wake()

    def _note_answer(self) -> None:
        self._answered_at = self._no_daemon_since = time.monotonic()
        self._hello_wait.reset()
        self._lost_wait.reset()

    def _log_version(self, reads: str) -> None:
        self._note_answer()  # a daemon is there, if an unusable one
        self._log_once(
            "version",
            f"the daemon reads wire version {reads} and this client writes {VERSION}; install the same trackside in both"
            " places and restart the daemon; training goes on, and pushes are kept on disk",
        )

    def _log_no_daemon(self) -> None:
        failed = any(session.spool.failure for session in self._sessions)
        kept = " in memory, the newest 16 MiB of it" if failed else spool_location()
        self._log_once(
            "no daemon",
            f"no daemon found at {', '.join(self._failures)}; training goes on, and what is pushed waits for one{kept}"
            f"{discovery.advice(discovery.named_endpoint(self._endpoint, os.environ), self._failures)}",
        )

    def _retire(self, session: Session | OrphanedSession) -> None:
        """Write the rest of a session to its spool, and log that, or what is lost."""
        session.retire(now())
        if session.unspooled_values:
            values = session.unspooled_values
            lost = f"{values} values are lost, since they cannot be written to {session.spool.failure}"
            self._log_once("lost", lost)
        elif self._failures and self._socket is None and isinstance(session, Session):
            self._log_no_daemon()

    def _log_once(self, subject: str, line: str) -> None:
        """Log a line once per subject, at the end of this turn."""
        if self._logged.first(subject):
            self._log_lines.append(line)


def now() -> Clock:
    """Return this moment by both clocks."""
    moment = read_clocks()
    return Clock(moment.wall, moment.monotonic)
