"""Follows the processes at the other ends of the connections, and tells how each of them ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trackside.environment.identity import boot_id
from trackside_daemon.ingest.peer import find_peer
from trackside_daemon.linux.oom import OomKills
from trackside_daemon.linux.pidfd_poller import PidfdPoller
from trackside_daemon.training.run import Process
from trackside_daemon.training.verdict import Exit

if TYPE_CHECKING:
    from trackside.wire import Identity
    from trackside_daemon.ingest.peer import Peer
    from trackside_daemon.linux.oom import OomWatch
    from trackside_daemon.training.moment import Moment

RETRY_SECONDS = 0.05
"""How often it is asked how a process ended that is over and not yet reaped."""

PATIENCE_SECONDS = 1.5
"""Who has not been reaped by then has ended in an unknown way."""


class Ended(NamedTuple):
    """A process is over, since *at*."""

    process: Process
    exit: Exit
    at: Moment


class _Followed:
    """A living process; *over* once it is not."""

    def __init__(self, peer: Peer, oom: OomWatch) -> None:
        self.peer = peer
        self.oom = oom
        self.killed = False
        self.over: Moment | None = None


class Watch:
    """All client processes of this machine whose connection tells who they are. Used by one thread.

    Args:
        proc: Where the kernel's process files are.
        sys: Where the host's /sys is.
    """

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc = proc
        self._boot = boot_id(proc)
        self._oom = OomKills(proc, sys)
        self._poller = PidfdPoller()
        self._followed: dict[int, _Followed] = {}
        self._ending: list[_Followed] = []
        self._heard = (b"", -1)

    @property
    def waits(self) -> bool:
        """Whether a process is over of which it is not known how it ended: ask again in `RETRY_SECONDS`."""
        return bool(self._ending)

    def fileno(self) -> int:
        """To be polled: readable when a process has ended."""
        return self._poller.fileno()

    def hear(self, connection: bytes, descriptor: int) -> None:
        """The message that is taken next came over the socket with this number; -1 when that is unknown."""
        self._heard = connection, descriptor

    def meet(self, connection: bytes, identity: Identity, now: Moment) -> int | None:
        """Follow the process that greets on a connection to its end.

        Returns:
            Its pid, as this process counts; None when nobody can tell, so that its end will not be told.
        """
        heard, descriptor = self._heard
        if heard != connection or descriptor < 0 or not identity.start or identity.boot != self._boot:
            return None
        peer = find_peer(descriptor, identity, self._proc)
        if peer is None:
            return None
        if any((one.peer.pid, one.peer.start) == (peer.pid, peer.start) for one in self._followed.values()):
            peer.close()
            return peer.pid
        try:
            self._poller.register(peer.pidfd)
        except OSError:  # over this user's limit of watches
            peer.close()
            return None
        self._followed[peer.pidfd] = _Followed(peer, self._oom.watch(peer.pid, now.monotonic))
        return peer.pid

    def tick(self, now: Moment) -> None:
        """Once a second: look for kills of the OOM killer."""
        self._oom.tick(now.monotonic)

    def ends(self, now: Moment) -> list[Ended]:
        """The processes that have ended since it was asked last, and how."""
        for pidfd in self._poller.ended():
            one = self._followed[pidfd]
            one.over = now
            one.killed = self._oom.killed(one.oom, now.monotonic)
            self._ending.append(one)
        ended = [found for one in self._ending if (found := self._settle(one, now)) is not None]
        self._ending = [one for one in self._ending if one.peer.pidfd in self._followed]
        return ended

    def close(self) -> None:
        """Let go of all of them."""
        for one in self._followed.values():
            one.peer.close()
            self._oom.release(one.oom)
        self._followed = {}
        self._poller.close()

    def _settle(self, one: _Followed, now: Moment) -> Ended | None:
        """How it ended, once that is known or no longer to be waited for; then it is let go of."""
        over = one.over or now
        code = one.peer.exit_code()
        if code is None and now.monotonic - over.monotonic < PATIENCE_SECONDS:
            return None
        del self._followed[one.peer.pidfd]
        one.peer.close()
        self._oom.release(one.oom)
        return Ended(Process(one.peer.pid, one.peer.start, self._boot), Exit(code, one.killed), over)
