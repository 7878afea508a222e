"""The thread that reads the clients' messages, answers them, and passes on the batches that follow from them."""

import resource
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from trackside.environment.identity import boot_id
from trackside.wire import Identity
from trackside_daemon.ingest.client_sessions import ClientSessions
from trackside_daemon.ingest.connection import Connection, Peer, is_process
from trackside_daemon.ingest.requests import IngestRequests
from trackside_daemon.ingest.worker_handle import WorkerHandle
from trackside_daemon.linux.oom import OomKills, OomWatch
from trackside_daemon.linux.process_exit import PidfdPoller, exit_code
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.session import Process
from trackside_daemon.training.end_state import Exit
from trackside_daemon.training.moment import Moment

RETRY_SECONDS = 0.05  # how often the exit status is read of a process that has ended and is not yet reaped
PATIENCE_SECONDS = 1.5  # the end of a process that has not been reaped by then is unknown


class EndedProcess(NamedTuple):
    """A process that ended, at *at*."""

    process: Process
    exit: Exit
    at: Moment


class _Followed:
    """A followed process, its start and its user; *ended_at* is None while it is alive."""

    def __init__(self, peer: Peer, start: int, uid: int | None, oom: OomWatch) -> None:
        self.peer = peer
        self.start = start
        self.uid = uid
        self.oom = oom
        self.killed = False
        self.ended_at: Moment | None = None


class ProcessWatch:
    """All client processes of this machine whose connection identifies them. Used by one thread.

    Args:
        proc: The mount point of procfs.
        sys: The mount point of the host's sysfs.
    """

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc = proc
        self._boot = boot_id(proc)
        self._oom = OomKills(proc, sys)
        self._poller = PidfdPoller()
        self._followed: dict[int, _Followed] = {}
        self._ending: list[_Followed] = []
        # A descriptor each: a user who starts many processes must not use up those of the daemon.
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4

    @property
    def waits(self) -> bool:
        """True while the exit of an ended process is unknown: call `ended` again in `RETRY_SECONDS`."""
        return bool(self._ending)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a process has ended."""
        return self._poller.fileno()

    def follow(self, connection: Connection, identity: Identity, now: Moment) -> int | None:
        """Follow the process that greets on a connection to its end.

        Returns:
            Its pid in this process's namespace; None if it cannot be identified, so that its end will not be observed.
        """
        peer = connection.peer
        if peer is None or not identity.start or identity.boot != self._boot:
            return None
        # It has greeted before: for another session, or before it reconnected.
        if any((one.peer.pid, one.start) == (peer.pid, identity.start) for one in self._followed.values()):
            peer.close()
            return peer.pid if is_process(self._proc, peer.pid, identity) else None
        if peer.pidfd < 0 or not is_process(self._proc, peer.pid, identity) or not self._make_room(connection.uid):
            return None
        followed = peer.detach()
        try:
            self._poller.register(followed.pidfd)
        except OSError:  # over this user's limit of watches
            followed.close()
            return None
        oom = self._oom.watch(followed.pid, now.monotonic)
        self._followed[followed.pidfd] = _Followed(followed, identity.start, connection.uid, oom)
        return followed.pid

    def tick(self, now: Moment) -> None:
        """Check once a second for kills of the OOM killer."""
        self._oom.tick(now.monotonic)

    def ended(self, now: Moment) -> list[EndedProcess]:
        """Return the processes whose end has become known since the last call."""
        for pidfd in self._poller.ended():
            followed = self._followed[pidfd]
            followed.ended_at = now
            # At once and not with the exit code: the cgroup and its counter disappear with a container.
            followed.killed = self._oom.killed(followed.oom, now.monotonic)
            self._ending.append(followed)
        ended = [end for followed in self._ending if (end := self._settle(followed, now)) is not None]
        self._ending = [followed for followed in self._ending if followed.peer.pidfd in self._followed]
        return ended

    def close(self) -> None:
        """Stop following all processes."""
        for followed in self._followed.values():
            followed.peer.close()
            self._oom.release(followed.oom)
        self._followed = {}
        self._poller.close()

    def _make_room(self, uid: int | None) -> bool:
        """Return whether there is room for a process of a user, if need be by giving up the newest of the user with most."""
        if len(self._followed) < self._most:
            return True
        users = Counter(followed.uid for followed in self._followed.values())
        most = max(users, key=users.__getitem__)
        if users[most] <= users[uid] + 1:
            return False
        followed = next(one for one in reversed(self._followed.values()) if one.uid == most)
        self._poller.unregister(followed.peer.pidfd)
        self._ending = [one for one in self._ending if one is not followed]
        self._release(followed)
        return True

    def _release(self, followed: _Followed) -> None:
        del self._followed[followed.peer.pidfd]
        followed.peer.close()
        self._oom.release(followed.oom)

    def _settle(self, followed: _Followed, now: Moment) -> EndedProcess | None:
        """Return how a process ended and stop following it; None while its exit may still become known."""
        ended_at = followed.ended_at or now
        code = exit_code(followed.peer.pidfd, followed.peer.pid, followed.start, self._proc)
        if code is None and now.monotonic - ended_at.monotonic < PATIENCE_SECONDS:
            return None
        self._release(followed)
        return EndedProcess(
            Process(followed.peer.pid, followed.start, self._boot), Exit(code, followed.killed), ended_at
        )


TICK_SECONDS = 1.0
ROOM_SECONDS = 0.05  # how often a full pipeline is checked for room
READ_SECONDS = 0.02  # the longest turn of reading, so that acknowledgements never wait for long


class IngestThread:
    """Reads messages while the pipeline has room; otherwise they stay with the worker and the clients.

    Args:
        worker: The process that serves the push socket; `close` ends it.
        sessions: The protocol.
        deliver: Receives the batches.
        has_room: Returns whether the pipeline has room. Answers and ticks continue while it has none.
        is_stuck: Returns whether there is no room because the disk accepts nothing: hellos and beats are then read still.
        requests: The requests of other threads. They may outlive the server, so that it does not close them.
        watch: Follows the processes of the clients.
    """

    def __init__(
        self,
        worker: WorkerHandle,
        sessions: ClientSessions,
        deliver: Callable[[Sequence[Batch]], None],
        has_room: Callable[[], bool],
        is_stuck: Callable[[], bool] = lambda: False,
        *,
        requests: IngestRequests,
        watch: ProcessWatch | None = None,
    ) -> None:
        self._requests = requests
        self._worker = worker
        self._sessions = sessions
        self._deliver = deliver
        self._has_room = has_room
        self._is_stuck = is_stuck
        self._watch = watch or ProcessWatch()
        self._stopping = False
        self._turned = 0.0
        self._used = time.process_time(), time.monotonic()
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
        """Answer what was committed after `stop`, and end the worker."""
        self._acknowledge()
        self._watch.close()
        self._worker.close()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._requests.fileno(), select.POLLIN)
        poller.register(self._watch, select.POLLIN)
        tick_at = time.monotonic()
        while not self._stopping:
            self._turned = time.monotonic()
            self._worker.revive()
            reads = self._has_room() or self._is_stuck()
            events = (select.POLLIN if reads else 0) | (select.POLLOUT if self._worker.unsent else 0)
            # Not without an event to wait for, since the end of the worker would wake this thread at once each time.
            channel = self._worker.fileno() if events else -1
            if channel >= 0:
                poller.register(channel, events)
            ready = dict(poller.poll(max(0.0, self._timeout(tick_at, reads=reads)) * 1000))
            if channel >= 0:
                poller.unregister(channel)  # another worker has another one
            if self._requests.fileno() in ready:
                self._requests.drain()  # before the queues, so that a later request wakes this thread again
            self._acknowledge()
            self._handle_requests()
            # A process that restarts a run comes after the one that it replaces, so ends come before messages.
            self._deliver_ends()
            if self._worker.waiting or ready.get(channel, 0) & ~select.POLLOUT:
                self._read()
            if time.monotonic() >= tick_at:
                tick_at = time.monotonic() + TICK_SECONDS
                self._watch.tick(Moment.now())
                self._worker.tick(reads=reads)
                self._deliver(self._sessions.tick(Moment.now()))
                for frames in self._sessions.pace(self._load(), Moment.now()):
                    self._worker.send(frames)
            self._worker.flush()

    def _timeout(self, tick_at: float, *, reads: bool) -> float:
        """Return the seconds to wait for events."""
        if reads and self._worker.waiting:
            return 0.0
        timeout = min(tick_at - time.monotonic(), TICK_SECONDS)
        if not reads or self._worker.fileno() < 0:
            timeout = min(timeout, ROOM_SECONDS)
        return min(timeout, RETRY_SECONDS) if self._watch.waits else timeout

    def _read(self) -> None:
        until = time.monotonic() + READ_SECONDS
        while time.monotonic() < until:
            room = self._has_room()
            if not room and not self._is_stuck():
                return
            message = self._worker.receive()
            if message is None:
                return
            consequences = self._sessions.receive(*message, Moment.now(), room=room)
            for answer in consequences.answers:
                self._worker.send(answer)
            self._deliver(consequences.batches)

    def _handle_requests(self) -> None:
        while self._requests.changes:
            self._deliver(self._requests.changes.popleft()(Moment.now()))
        while self._requests.restarts:
            self._sessions.forget(self._requests.restarts.popleft())
        while self._requests.questions:
            for frames in self._sessions.ask(self._requests.questions.popleft(), Moment.now()):
                self._worker.send(frames)

    def _deliver_ends(self) -> None:
        now = Moment.now()
        for process, ended, at in self._watch.ended(now):
            self._deliver(self._sessions.exited(process, ended, at.wall, now))

    def _load(self) -> float:
        """Return the share of a core that this process has used since the last call."""
        before, self._used = self._used, (time.process_time(), time.monotonic())
        return (self._used[0] - before[0]) / max(0.001, self._used[1] - before[1])

    def _acknowledge(self) -> None:
        """Answer what is committed: of each session the last message, which covers those before it, and each refused one."""
        answers: dict[bytes, list[bytes]] = {}
        while self._requests.receipts:
            receipt = self._requests.receipts.popleft()
            answer = self._sessions.committed(receipt)
            if answer is None:
                continue
            if receipt.refused:
                answers.pop(receipt.session, None)  # the refusal covers the messages before it too
                self._worker.send(answer)
            else:
                answers[receipt.session] = answer
        for answer in answers.values():
            self._worker.send(answer)
