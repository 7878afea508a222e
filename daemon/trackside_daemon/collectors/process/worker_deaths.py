"""How data loader workers die, and of what: a run's history, the log and a counter are told."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.process.child_processes import Whose
from trackside_daemon.collectors.process.worker_exit import Followed
from trackside_daemon.linux.process_exit import signal_name
from trackside_daemon.model.metric import Metric, Sample
from trackside_daemon.model.records import Event

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from trackside_daemon.collectors.process.process_names import Life
    from trackside_daemon.collectors.process.process_tree import Stat
    from trackside_daemon.collectors.process.shm import Use
    from trackside_daemon.collectors.process.worker_exit import Dead
    from trackside_daemon.linux.oom import OomKills
    from trackside_daemon.model.rank_process import RankProcess

CAUSES = ("SIGBUS", "SIGSEGV", "SIGABRT", "SIGKILL", "OOM", "exit")
"""Those that are counted from 0 on, so that the first death of one is an increase; others begin when they happen."""

LINGER_SECONDS = 60.0
"""So long the deaths are shown when the rank is gone: it mostly goes because of them."""

DEATHS = Metric(
    "trackside_dataloader_deaths_total",
    "counter",
    "Data loader workers that died, as their pidfd or /proc/PID/stat exit_code says: of a signal such as SIGBUS, of OOM "
    "(SIGKILL soon after an oom_kill of their cgroup), or by exit with a status other than 0.",
    ("run", "rank", "cause"),
)

log = logging.getLogger("trackside")


class Cause(NamedTuple):
    """Why a worker died: in a word, and in some."""

    word: str
    words: str


class Deaths:
    """Tells of workers that died, when they had been seen in two ticks before.

    Args:
        proc: Where the kernel's process files are.
        kills: The OOM killer's, of the cgroups.
    """

    metrics = (DEATHS,)

    def __init__(self, proc: Path, kills: OomKills) -> None:
        self._followed = Followed(proc, kills)
        self._counts: dict[Whose, dict[str, int]] = {}
        self._shown: dict[Whose, float] = {}
        self._events: list[Event] = []

    def follow(self, workers: Iterable[Stat], rank: Stat, member: RankProcess, now: float) -> None:
        """Tell of them when they die."""
        for worker in workers:
            self._counts_of(member, now)
            self._followed.follow(worker, rank, member, now)

    def leave(self, lives: Iterable[Life]) -> None:
        """These live and are no workers, whatever they were before."""
        for life in lives:
            self._followed.leave(life)

    def look(self, now: float, wall: float, most: dict[int, Use]) -> None:
        """Once a tick.

        Args:
            now: In seconds of the monotonic clock.
            wall: In Unix seconds.
            most: How full /dev/shm was lately, by the pid of the rank.
        """
        told: dict[tuple[str, int, str], list[int]] = {}
        for dead in self._followed.dead(now):
            found = cause(dead, most.get(dead.rank.pid))
            self._keep(dead, found, now, wall)
            told.setdefault((dead.member.run, dead.member.rank, found.words), []).append(dead.pid)
        for (run, rank, words), pids in told.items():
            s = "s" if len(pids) > 1 else ""
            log.warning(
                "run %s rank %d: data loader worker%s %s died: %s", run, rank, s, ", ".join(map(str, pids)), words
            )

    def samples(self, living: Collection[Whose], now: float) -> Iterator[Sample]:
        """All deaths of the *living* ranks that have had workers, and of those that are gone since lately."""
        self._shown.update((whose, now) for whose in living if whose in self._shown)
        self._shown = {whose: when for whose, when in self._shown.items() if now - when <= LINGER_SECONDS}
        self._counts = {whose: counts for whose, counts in self._counts.items() if whose in self._shown}
        for whose, counts in self._counts.items():
            for word, count in counts.items():
                yield Sample(DEATHS, (*whose, word), count)

    def reports(self) -> Sequence[Event]:
        """What has happened since it was asked last."""
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Follow nobody any more."""
        self._followed.close()

    def _keep(self, dead: Dead, found: Cause, now: float, wall: float) -> None:
        member = dead.member
        counts = self._counts_of(member, now)
        counts[found.word] = counts.get(found.word, 0) + 1
        how = {"status": dead.code} if dead.code > 0 else {"signal": signal_name(-dead.code)}
        fields = {"pid": dead.pid, **how, "cause": found.words}
        self._events.append(
            Event(member.run_id, member.attempt, wall, "dataloader_died", rank=member.rank, fields=fields)
        )

    def _counts_of(self, member: RankProcess, now: float) -> dict[str, int]:
        """A rank's, by the causes' words."""
        whose = Whose(member.run, str(member.rank))
        self._shown[whose] = now
        return self._counts.setdefault(whose, dict.fromkeys(CAUSES, 0))


def cause(dead: Dead, use: Use | None) -> Cause:
    """Why it died; *use* is how full /dev/shm was lately, as far as that is known."""
    if dead.code >= 0:
        return Cause("exit", f"exit status {dead.code}")
    if dead.oom:
        return Cause("OOM", "killed by the kernel because memory ran out")
    name = signal_name(-dead.code)
    if -dead.code != signal.SIGBUS:
        return Cause(name, f"killed by {name}")
    if use is not None and use.is_full:
        return Cause(name, f"killed by {name}: /dev/shm is full ({use})")
    most = "" if use is None else f"; the training saw at most {use}"
    return Cause(name, f"killed by {name}, most often because /dev/shm is full{most}")
