"""Follows the processes at the other ends of the connections, and determines how each of them ends."""

import resource
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from trackside.environment.identity import boot_id
from trackside.wire import Identity
from trackside_daemon.ingest.connection import Connection, Peer, is_process
from trackside_daemon.linux.oom import OomKills, OomWatch
from trackside_daemon.linux.process_exit import PidfdPoller, exit_code
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
