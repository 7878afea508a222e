"""Report how data loader workers die, and why: to a run's history, to the log and as a counter."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.collectors.process.child_processes import RankLabels
from trackside_daemon.collectors.process.worker_exit import FollowedWorkers
from trackside_daemon.linux.process_exit import signal_name
from trackside_daemon.model.families import process as process_families
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.records import Event

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from trackside_daemon.collectors.process.process_names import ProcessKey
    from trackside_daemon.collectors.process.process_tree import Stat
    from trackside_daemon.collectors.process.shm import ShmUse
    from trackside_daemon.collectors.process.worker_exit import DeadWorker
    from trackside_daemon.linux.oom import OomKills
    from trackside_daemon.model.rank_process import RankProcess

# Causes with a counter from the start; the counter of another cause starts with its first death.
# Their counters start at 0, so that the first death is an increase.
CAUSES = ("SIGBUS", "SIGSEGV", "SIGABRT", "SIGKILL", "OOM", "exit")

# A rank mostly ends because its workers died.
LINGER_SECONDS = 60.0  # time for which the deaths are served after the end of the rank

log = logging.getLogger("trackside")


class DeathCause(NamedTuple):
    """The cause of a worker's death: the label's value, and a description."""

    label: str
    text: str


class WorkerDeaths:
    """Deaths of workers that two earlier ticks had seen.

    Args:
        proc: Path of procfs.
        kills: The OOM counters of the workers' cgroups.
    """

    metrics = (process_families.WORKER_DEATHS,)

    def __init__(self, proc: Path, kills: OomKills) -> None:
        self._workers = FollowedWorkers(proc, kills)
        self._counts: dict[RankLabels, dict[str, int]] = {}
        self._seen_at: dict[RankLabels, float] = {}
        self._events: list[Event] = []

    def follow(self, workers: Iterable[Stat], rank: Stat, rank_process: RankProcess, now: float) -> None:
        """Follow workers to their end."""
        for worker in workers:
            self._counts_of(rank_process, now)
            self._workers.follow(worker, rank, rank_process, now)

    def unfollow(self, keys: Iterable[ProcessKey]) -> None:
        """Stop following living processes that turned out not to be workers."""
        for key in keys:
            self._workers.unfollow(key)

    def update(self, now: float, wall: float, shm: dict[int, ShmUse]) -> None:
        """Count and log the deaths since the last tick.

        Args:
            now: Seconds of the monotonic clock.
            wall: Unix time, in seconds.
            shm: The fullest recent state of /dev/shm, by the pid of the rank.
        """
        pids_by_text: dict[tuple[str, int, str], list[int]] = {}
        for dead in self._workers.dead(now):
            cause = cause_of_death(dead, shm.get(dead.rank.pid))
            self._record(dead, cause, now, wall)
            pids_by_text.setdefault((dead.rank_process.run, dead.rank_process.rank, cause.text), []).append(dead.pid)
        for (run, rank, text), pids in pids_by_text.items():
            s = "s" if len(pids) > 1 else ""
            log.warning(
                "run %s rank %d: data loader worker%s %s died: %s", run, rank, s, ", ".join(map(str, pids)), text
            )

    def samples(self, living: Collection[RankLabels], now: float) -> Iterator[Sample]:
        """Yield the deaths of the *living* ranks with workers, and for `LINGER_SECONDS` those of ended ranks."""
        self._seen_at.update((labels, now) for labels in living if labels in self._seen_at)
        self._seen_at = {labels: when for labels, when in self._seen_at.items() if now - when <= LINGER_SECONDS}
        self._counts = {labels: counts for labels, counts in self._counts.items() if labels in self._seen_at}
        for labels, counts in self._counts.items():
            for cause, count in counts.items():
                yield Sample(process_families.WORKER_DEATHS, (*labels, cause), count)

    def reports(self) -> Sequence[Event]:
        """Return the events since the last call."""
        events = self._events
        self._events = []
        return events

    def close(self) -> None:
        """Stop following processes."""
        self._workers.close()

    def _record(self, dead: DeadWorker, cause: DeathCause, now: float, wall: float) -> None:
        process = dead.rank_process
        counts = self._counts_of(process, now)
        counts[cause.label] = counts.get(cause.label, 0) + 1
        how = {"status": dead.code} if dead.code > 0 else {"signal": signal_name(-dead.code)}
        fields = {"pid": dead.pid, **how, "cause": cause.text}
        self._events.append(
            Event(process.run_id, process.attempt, wall, "dataloader_died", rank=process.rank, fields=fields)
        )

    def _counts_of(self, process: RankProcess, now: float) -> dict[str, int]:
        """Return a rank's counts by cause."""
        labels = RankLabels(process.run, str(process.rank))
        self._seen_at[labels] = now
        return self._counts.setdefault(labels, dict.fromkeys(CAUSES, 0))


def cause_of_death(dead: DeadWorker, shm: ShmUse | None) -> DeathCause:
    """Return why a worker died; *shm* is the fullest recent state of /dev/shm, None when unknown."""
    if dead.code >= 0:
        return DeathCause("exit", f"exit status {dead.code}")
    if dead.oom:
        return DeathCause("OOM", "killed by the kernel because memory ran out")
    name = signal_name(-dead.code)
    if -dead.code != signal.SIGBUS:
        return DeathCause(name, f"killed by {name}")
    if shm is not None and shm.is_full:
        return DeathCause(name, f"killed by {name}: /dev/shm is full ({shm})")
    peak = "" if shm is None else f"; the training saw at most {shm}"
    return DeathCause(name, f"killed by {name}, most often because /dev/shm is full{peak}")
