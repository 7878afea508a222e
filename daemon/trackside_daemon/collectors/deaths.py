"""How data loader workers die, and of what: a run's history, the log and a counter are told."""

from __future__ import annotations

import logging
import signal
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.files import read
from trackside_daemon.collectors.followed import Followed
from trackside_daemon.exits import signal_name
from trackside_daemon.metric import Metric, Sample
from trackside_daemon.record import Event

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from trackside_daemon.collectors.followed import Dead
    from trackside_daemon.collectors.room import Use
    from trackside_daemon.collectors.tree import Stat
    from trackside_daemon.member import Member

OOM_SECONDS = 30.0
"""A SIGKILL so soon after the kernel has killed for want of memory is taken for that kill."""

LINGER_SECONDS = 60.0
"""So long the deaths are shown when the rank is gone: it mostly goes because of them."""

DEATHS = Metric(
    "trackside_dataloader_deaths_total",
    "counter",
    "Data loader workers that died, as their pidfd or /proc/PID/stat exit_code says: of a signal such as SIGBUS, of OOM "
    "(SIGKILL soon after an oom_kill of /proc/vmstat), or by exit with a status other than 0.",
    ("run", "rank", "cause"),
)

log = logging.getLogger("trackside")


class Cause(NamedTuple):
    """Why a worker died: in a word, and in some."""

    word: str
    words: str


class Deaths:
    """Tells of workers that died, when they had been seen in a tick before.

    Args:
        proc: Where the kernel's process files are.
    """

    metrics = (DEATHS,)

    def __init__(self, proc: Path) -> None:
        self._followed = Followed(proc)
        self._vmstat = str(proc / "vmstat")
        self._kills: int | None = None
        self._killed = -inf
        self._counts: dict[tuple[str, str, str], int] = {}
        self._shown: dict[tuple[str, str], float] = {}
        self._events: list[Event] = []

    def follow(self, worker: Stat, rank: Stat, member: Member) -> None:
        """Tell of it when it dies."""
        self._followed.follow(worker, rank, member)

    def look(self, now: float, wall: float, most: dict[int, Use]) -> None:
        """Once a tick.

        Args:
            now: In seconds of the monotonic clock.
            wall: In Unix seconds.
            most: How full /dev/shm was lately, by the pid of the rank.
        """
        if not self._followed:
            self._kills = None
            return
        self._look_for_kills(now)
        told: dict[tuple[str, int, str], list[int]] = {}
        for dead in self._followed.dead(now, oom=now - self._killed < OOM_SECONDS):
            found = cause(dead, most.get(dead.rank.pid))
            self._keep(dead, found, now, wall)
            told.setdefault((dead.member.run, dead.member.rank, found.words), []).append(dead.pid)
        for (run, rank, words), pids in told.items():
            s = "s" if len(pids) > 1 else ""
            log.warning(
                "run %s rank %d: data loader worker%s %s died: %s", run, rank, s, ", ".join(map(str, pids)), words
            )

    def samples(self, living: Collection[tuple[str, str]], now: float) -> Iterator[Sample]:
        """All deaths of the *living* ranks, and of those that died lately."""
        self._shown.update((whose, now) for whose in living if whose in self._shown)
        self._shown = {whose: when for whose, when in self._shown.items() if now - when <= LINGER_SECONDS}
        self._counts = {key: count for key, count in self._counts.items() if key[:2] in self._shown}
        for key, count in self._counts.items():
            yield Sample(DEATHS, key, count)

    def reports(self) -> Sequence[Event]:
        """What has happened since it was asked last."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Follow nobody any more."""
        self._followed.close()

    def _keep(self, dead: Dead, found: Cause, now: float, wall: float) -> None:
        member = dead.member
        whose = (member.run, str(member.rank))
        self._shown[whose] = now
        key = (*whose, found.word)
        self._counts[key] = self._counts.get(key, 0) + 1
        how = {"status": dead.code} if dead.code > 0 else {"signal": signal_name(-dead.code)}
        fields = {"pid": dead.pid, **how, "cause": found.words}
        self._events.append(
            Event(member.run_id, member.attempt, wall, "dataloader_died", rank=member.rank, fields=fields)
        )

    def _look_for_kills(self, now: float) -> None:
        """/proc/vmstat's oom_kill (Linux 4.13), which counts for all of the machine."""
        try:
            data = read(self._vmstat)
            begin = data.index(b"\noom_kill ") + len(b"\noom_kill ")
            kills = int(data[begin : data.index(b"\n", begin)])
        except (OSError, ValueError):
            return
        if self._kills is not None and kills > self._kills:
            self._killed = now
        self._kills = kills


def cause(dead: Dead, use: Use | None) -> Cause:
    """Why it died; *use* is how full /dev/shm was lately, as far as that is known."""
    if dead.code >= 0:
        return Cause("exit", f"exit status {dead.code}")
    if dead.oom:
        return Cause("OOM", "killed by the kernel for want of memory")
    name = signal_name(-dead.code)
    if -dead.code != signal.SIGBUS:
        return Cause(name, f"killed by {name}")
    if use is not None and use.is_full:
        return Cause(name, f"killed by {name}: /dev/shm is full ({use})")
    most = "" if use is None else f"; it was at most {use}"
    return Cause(name, f"killed by {name}, most often because /dev/shm is full{most}")
