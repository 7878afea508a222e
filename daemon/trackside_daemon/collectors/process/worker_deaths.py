"""Report how data loader workers die, and why: to a run's history, to the log and as a counter."""

import errno
import logging
import os
import resource
import signal
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trackside.log_once import LogOnce
from trackside_daemon.collectors.process.process_tree import DESCENDANTS, ProcessKey, Stat, read_stat
from trackside_daemon.collectors.process.rank_usage import SeriesLabels
from trackside_daemon.collectors.process.shm import ShmUse
from trackside_daemon.linux.oom import OomKills, OomWatch
from trackside_daemon.linux.pid_namespaces import own_pid
from trackside_daemon.linux.process_exit import PidfdPoller, exit_code, signal_name
from trackside_daemon.model.families import process as process_families
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.rank_process import RankProcess
from trackside_daemon.model.records import Event

# By then, a rank that was killed together with its worker has ended too, or has reported its /dev/shm.
LAG_SECONDS = 0.5  # time from a worker's end to the decision about its cause

# Time after which an end stays undecided: nothing has reaped the worker, or its rank is still ending.
SETTLE_SECONDS = 30.0

EXITING = 0x4  # PF_EXITING of <linux/sched.h>: a process that is ending, and may still have much memory to free
REQUESTED = frozenset((0, -signal.SIGTERM, -signal.SIGINT))  # exit codes of normal ends

# Signals that a process causes itself; any other may have been sent to its rank as well.
SELF_INFLICTED = frozenset(
    (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP)
)

log = logging.getLogger("trackside")
# Causes with a counter from the start; the counter of another cause starts with its first death.
# Their counters start at 0, so that the first death is an increase.
CAUSES = ("SIGBUS", "SIGSEGV", "SIGABRT", "SIGKILL", "OOM", "exit")

# A rank mostly ends because its workers died.
LINGER_SECONDS = 60.0  # time for which the deaths are served after the end of the rank


class DeadWorker(NamedTuple):
    """A worker that did not end normally; *code* is that of `os.waitstatus_to_exitcode`."""

    rank_process: RankProcess
    rank: ProcessKey
    pid: int
    code: int
    oom: bool


class _FollowedProcess:
    """A process that is followed.

    Attributes:
        key: Its identity.
        pidfd: Becomes readable at its end.
        ended_at: When its end was seen, in seconds of the monotonic clock; None while it lives.
        code: How it ended; None while that is unknown.
    """

    def __init__(self, key: ProcessKey, pidfd: int) -> None:
        self.key = key
        self.pidfd = pidfd
        self.ended_at: float | None = None
        self.code: int | None = None

    def read_code(self, proc: Path) -> int | None:
        """Read how it ended; on kernels before Linux 6.15 this works only until something reaps it."""
        if self.code is None:
            self.code = exit_code(self.pidfd, *self.key, proc)
        return self.code


class _FollowedRank(_FollowedProcess):
    """A rank; with *is_init*, it is pid 1 of its namespace, so the kernel kills its workers before it has ended."""

    def __init__(self, key: ProcessKey, pidfd: int, *, is_init: bool) -> None:
        super().__init__(key, pidfd)
        self.is_init = is_init


class _FollowedWorker(_FollowedProcess):
    """A worker.

    Attributes:
        after_rank: Its rank was ending before it did.
        oom: The OOM killer had killed in its cgroup when it ended.
    """

    def __init__(
        self, key: ProcessKey, pidfd: int, rank: _FollowedRank, rank_process: RankProcess, oom_watch: OomWatch
    ) -> None:
        super().__init__(key, pidfd)
        self.rank = rank
        self.rank_process = rank_process
        self.oom_watch = oom_watch
        self.after_rank = False
        self.oom = False


class FollowedWorkers:
    """The followed workers and their ranks; on systems without pidfds there are none.

    Args:
        proc: Path of procfs.
        kills: The OOM counters of the workers' cgroups.
    """

    def __init__(self, proc: Path, kills: OomKills) -> None:
        self._proc = proc
        self._kills = kills
        self._poller = PidfdPoller()
        self._processes: dict[int, _FollowedProcess] = {}
        self._workers: dict[ProcessKey, _FollowedWorker] = {}
        self._ranks: dict[ProcessKey, _FollowedRank] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Each worker needs a descriptor; three quarters of the limit are left for connections and files.
        self._limit = DESCENDANTS if files == resource.RLIM_INFINITY else min(DESCENDANTS, files // 4)
        self._logged = LogOnce()

    def __len__(self) -> int:
        return len(self._workers)

    def follow(self, worker: Stat, rank: Stat, rank_process: RankProcess, now: float) -> None:
        """Follow a worker from now on.

        Without effect when it is followed already, has ended, or would exceed the daemon's limit of open files.
        """
        if not self._poller.supported or worker.key in self._workers:
            return
        if worker.state == "Z":  # the end of a zombie that nothing reaps is reported already
            return
        if len(self._workers) >= self._limit:
            self._warn_limit(f"its limit of open files is {self._limit * 4}, and workers may use a quarter of them")
            return
        leader = self._ranks.get(rank.key) or self._follow_rank(rank.key)
        if leader is not None and (pidfd := self._open(worker.key)) is not None:
            oom_watch = self._kills.watch(worker.pid, now)
            followed = _FollowedWorker(worker.key, pidfd, leader, rank_process, oom_watch)
            self._workers[worker.key] = followed
            self._processes[pidfd] = followed

    def unfollow(self, key: ProcessKey) -> None:
        """Stop following a living process that turned out not to be a worker."""
        if (worker := self._workers.get(key)) is not None and worker.ended_at is None:
            self._remove(worker)

    def dead(self, now: float) -> list[DeadWorker]:
        """Return the workers whose death was decided since the last call."""
        if not self._workers:
            return []
        self._kills.tick(now)
        for pidfd in self._poller.ended():
            if (process := self._processes.get(pidfd)) is not None:
                self._end(process, now)
        return list(self._settle(now))

    def close(self) -> None:
        """Stop following all processes."""
        for worker in list(self._workers.values()):
            self._remove(worker)
        self._remove_idle_ranks()
        self._poller.close()

    def _end(self, process: _FollowedProcess, now: float) -> None:
        process.ended_at = now
        process.read_code(self._proc)
        if isinstance(process, _FollowedWorker):
            rank = process.rank
            process.after_rank = rank.ended_at is not None or (rank.is_init and self._is_ending(rank))
            # Even without the code, which may be readable only later: by then an increase of the counter would not be
            # recent.
            process.oom = process.code in {None, -signal.SIGKILL} and self._kills.killed(process.oom_watch, now)

    def _settle(self, now: float) -> Iterator[DeadWorker]:
        ended = [(worker, worker.ended_at) for worker in self._workers.values() if worker.ended_at is not None]
        for worker, since in ended:
            code = worker.read_code(self._proc)
            died = None if code is None else self._died_alone(worker, code, now - since)
            if died is not None or now - since >= SETTLE_SECONDS:
                self._remove(worker)
            if died and code is not None:
                oom = worker.oom and code == -signal.SIGKILL
                yield DeadWorker(worker.rank_process, worker.rank.key, worker.key.pid, code, oom)
        if ended:
            self._remove_idle_ranks()

    def _died_alone(self, worker: _FollowedWorker, code: int, waited: float) -> bool | None:
        """Return whether a worker died on its own, not on request or with its rank; None while undecided."""
        if code in REQUESTED:
            return False
        if waited < LAG_SECONDS:
            return None
        return -code in SELF_INFLICTED or self._rank_survived(worker, code)

    def _rank_survived(self, worker: _FollowedWorker, code: int) -> bool | None:
        """Return whether the cause of a worker's end did not end its rank too; None while undecided."""
        if worker.after_rank:
            return False
        if worker.rank.ended_at is None:
            return None if self._is_ending(worker.rank) else True
        rank_code = worker.rank.read_code(self._proc)
        if rank_code is None:
            return None
        # A rank that then exits with an error mostly does so because its worker died. SIGKILL for both has one cause.
        return rank_code != -signal.SIGKILL if worker.oom and code == -signal.SIGKILL else rank_code > 0

    def _is_ending(self, rank: _FollowedRank) -> bool:
        """Return whether a rank is ending or has ended."""
        stat = read_stat(str(self._proc), rank.key.pid)
        return stat is None or stat.key != rank.key or bool(stat.flags & EXITING)

    def _follow_rank(self, key: ProcessKey) -> _FollowedRank | None:
        """Follow a rank too; None when it is gone."""
        pidfd = self._open(key)
        if pidfd is None:
            return None
        rank = _FollowedRank(key, pidfd, is_init=_is_init(self._proc, key.pid))
        self._ranks[key] = rank
        self._processes[pidfd] = rank
        return rank

    def _open(self, key: ProcessKey) -> int | None:
        """Return a pidfd of exactly this process, which the poller has; None when that fails or the process is gone."""
        try:
            pidfd = os.pidfd_open(key.pid)
        except OSError as error:
            if error.errno != errno.ESRCH:
                self._warn_limit(str(error.strerror))
            return None
        # The pid may have passed to another process before the pidfd was open; the start time decides.
        stat = read_stat(str(self._proc), key.pid)
        if stat is not None and stat.key == key:
            try:
                self._poller.register(pidfd)
            except OSError as error:  # this user's limit of epoll watches
                self._warn_limit(str(error.strerror))
            else:
                return pidfd
        os.close(pidfd)
        return None

    def _remove(self, worker: _FollowedWorker) -> None:
        self._kills.release(worker.oom_watch)
        del self._workers[worker.key]
        self._close(worker)

    def _remove_idle_ranks(self) -> None:
        """Stop following ranks without followed workers."""
        for key in self._ranks.keys() - {worker.rank.key for worker in self._workers.values()}:
            self._close(self._ranks.pop(key))

    def _close(self, process: _FollowedProcess) -> None:
        del self._processes[process.pidfd]
        self._poller.unregister(process.pidfd)
        os.close(process.pidfd)

    def _warn_limit(self, why: str) -> None:
        if self._logged.first():
            log.warning(
                "the daemon follows %d data loader workers and cannot follow more, so deaths of others are not reported: "
                "%s; raise LimitNOFILE= of its unit, or ulimit -n, and restart it",
                len(self._workers),
                why,
            )


def _is_init(proc: Path, pid: int) -> bool:
    """Return whether a process is pid 1 of its namespace."""
    try:
        return own_pid(proc, pid) == 1
    except OSError:
        return False


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

    def __init__(self, proc: Path, kills: OomKills) -> None:
        self._workers = FollowedWorkers(proc, kills)
        self._counts: dict[SeriesLabels, dict[str, int]] = {}
        self._seen_at: dict[SeriesLabels, float] = {}
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

    def samples(self, living: Collection[SeriesLabels], now: float) -> Iterator[Sample]:
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
        labels = SeriesLabels(process.run, str(process.rank))
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
