"""Memory that keeps growing: of each rank with its data loader workers, and of each rank on a GPU.

`trackside_daemon.detectors.memory_leak` follows the minima of samples one second apart. A leak has grown for five minutes when it is
reported, and for a hundred seconds if it would fill the memory within an hour. Mapped files do not count: a data set that is read through a mapping fills all free
memory, and the kernel reclaims it. The ranks of a run leak together, so a run has one alert, which names the first rank.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf
from typing import NamedTuple

from trackside_daemon.alerts.rules.evaluation import TICK
from trackside_daemon.alerts.rules.vector import Labels
from trackside_daemon.detectors.base import Column, Context, Detection
from trackside_daemon.detectors.memory_leak import MemoryLeak
from trackside_daemon.detectors.settings import DEFAULTS, DetectorThresholds
from trackside_daemon.model.families import cgroup, host, process
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families.training import STEP
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.metric import Batch, Distribution
from trackside_daemon.model.records import Alert, RunState
from trackside_daemon.model.state import State
from trackside_daemon.model.troubles import TROUBLES

SAMPLE_SECONDS = 1.0  # seconds between two samples
FORGET_SECONDS = 600.0  # seconds without a sample after which a rank is dropped and its alert ends
CONFIRM_SECONDS = 3600.0  # seconds within which a restored leak must be found again; otherwise its alert ends
MAX_PROCESSES = 1024  # most ranks and processes on GPUs that are followed

ANONYMOUS, SHMEM = process.ANONYMOUS, process.SHARED
ON_GPU = gpu_families.PROCESS_MEMORY
AVAILABLE = host.MEMORY_AVAILABLE
GONE = "its process is gone"
HOST, GPU = "HostMemoryLeak", "GpuMemoryLeak"

Rows = dict[tuple[str, ...], "float | Distribution"]


class RankLabels(NamedTuple):
    """Rank, by the labels of its process in PROCESS_INFO."""

    run: str
    run_id: str
    rank: str
    cgroup: str


class MemoryUse(NamedTuple):
    """Present memory of one rank, in bytes, by the alert that a leak of it raises; ``gpu`` is empty for the host."""

    alert: str
    rank: RankLabels
    pid: str
    gpu: str
    used: float


class _FollowedMemory:
    """Memory of one rank, on the host or on one GPU, with its detector."""

    def __init__(self, use: MemoryUse, thresholds: DetectorThresholds) -> None:
        self.use = use
        self.detector = MemoryLeak(thresholds)
        self.seen = 0.0
        self.leaks = False


class ProcessLeaks:
    """Finding source that follows the memory of the ranks on this machine.

    Args:
        state: Newest values of all families.
        thresholds: Thresholds of the detectors; only that of a leak is used.
        clock: Monotonic clock, in seconds, which the state uses too.
        wall: Unix time, in seconds, for the findings.
    """

    def __init__(
        self,
        state: State,
        thresholds: DetectorThresholds = DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        most: int = MAX_PROCESSES,
    ) -> None:
        self._state = state
        self._thresholds = thresholds
        self._most = most
        self._clock = clock
        self._wall = wall
        self._next = -FORGET_SECONDS
        self._followed: dict[tuple[str, RankLabels, str, str], _FollowedMemory] = {}
        self._reported: dict[tuple[str, str], Finding] = {}
        self._to_restore: list[Alert] = []
        self._unconfirmed: dict[tuple[str, str], float] = {}
        self._context = Context()

    def restore(self, alert: Alert) -> None:
        """Continue an alert that fired when an earlier daemon ended, until it is confirmed or `CONFIRM_SECONDS` is over."""
        if alert.alert in {HOST, GPU}:
            self._to_restore.append(alert)

    def accept(self, batch: Batch) -> list[Finding]:
        """Return the ends of the alerts of runs that have ended; at the last batch of a tick, if it is due, what is found."""
        states = [one for one in batch.records if isinstance(one, RunState)]
        ended = {one.run for one in states if one.ended is not None and not one.late}
        over = [*self._run_ends(ended)] if ended else []
        now = self._clock()
        if batch.source != TICK or now < self._next:
            return over
        # Ticks have jitter; without this margin a sample could be skipped until the next tick.
        self._next = now + SAMPLE_SECONDS - 0.5
        return [*over, *self._sample(now)]

    def _run_ends(self, runs: Collection[str]) -> Iterator[Finding]:
        """Yield the ends of the alerts of these runs, by their ids, and forget their ranks."""
        self._to_restore = [alert for alert in self._to_restore if alert.run not in runs]
        self._followed = {key: one for key, one in self._followed.items() if one.use.rank.run_id not in runs}
        for key in [key for key in self._reported if key[1] in runs]:
            self._unconfirmed.pop(key, None)
            yield self._reported.pop(key)._replace(time=self._wall(), over=True, summary="the run has ended")

    def _sample(self, now: float) -> Iterator[Finding]:
        yield from self._restored(now)
        infos, anonymous, shared, workers, on_gpu, steps, available, *limits = self._state.values(
            now,
            *(process.PROCESS_INFO, ANONYMOUS, SHMEM, process.WORKERS_ANONYMOUS, ON_GPU, STEP, AVAILABLE),
            *(cgroup.LIMIT, cgroup.LIMIT_USED),
        )
        ranks = dict(_ranks(infos))
        rooms = _rooms(ranks.values(), _number(available.get((), 0.0)), *limits)
        for use in [*_on_host(ranks, anonymous, shared, workers), *_on_gpus(ranks, on_gpu)]:
            step = int(_number(steps.get((use.rank.run, use.rank.rank), 0.0)))
            yield from self._evaluate(use, step, rooms.get(use.rank.cgroup, 0.0), now)
        for key, followed in [*self._followed.items()]:
            if now - followed.seen > FORGET_SECONDS:
                del self._followed[key]
                yield from self._resolve(followed, GONE)

    def _restored(self, now: float) -> Iterator[Finding]:
        """Yield restored alerts once as open, and end those that were not confirmed in time."""
        for alert in self._to_restore:
            key = (alert.alert, alert.run)
            self._reported[key] = alert.as_finding(self._wall())._replace(severity="warning")
            self._unconfirmed[key] = now + CONFIRM_SECONDS
            yield self._reported[key]
        self._to_restore.clear()
        for key in [key for key, until in self._unconfirmed.items() if until <= now]:
            del self._unconfirmed[key]
            if key in self._reported:
                yield self._reported.pop(key)._replace(time=self._wall(), over=True)

    def _evaluate(self, use: MemoryUse, step: int, available: float, now: float) -> Iterator[Finding]:
        key = (use.alert, use.rank, use.pid, use.gpu)
        followed = self._followed.get(key)
        if followed is None:
            if len(self._followed) >= self._most:
                return
            followed = self._followed[key] = _FollowedMemory(use, self._thresholds)
        followed.seen = now
        followed.detector.limit = use.used + available if use.alert == HOST and available else inf
        for detection in followed.detector.evaluate(Column((step,), (self._wall(),), (use.used,)), self._context):
            followed.leaks = not detection.over
            if detection.over:
                yield from self._resolve(followed, detection.text)
            else:
                yield from self._report(followed, detection)

    def _report(self, followed: _FollowedMemory, detection: Detection) -> Iterator[Finding]:
        """Yield a finding for the first rank of a run that leaks."""
        use = followed.use
        key = (use.alert, use.rank.run_id)
        self._unconfirmed.pop(key, None)
        if key in self._reported:
            return
        for other in [*self._reported]:  # of a run before, which had the same name
            if other[0] == use.alert and dict(self._reported[other].labels)["run"] == use.rank.run:
                yield self._reported.pop(other)._replace(
                    time=self._wall(), over=True, summary=f"{use.rank.run}: {GONE}"
                )
        where = f" on GPU {use.gpu}" if use.gpu else ""
        self._reported[key] = Finding(
            use.alert,
            detection.severity,
            (("run", use.rank.run),),
            self._wall(),
            f"rank {use.rank.rank} of {use.rank.run}{where}: {detection.text}",
            TROUBLES[use.alert].advice(),
            run=use.rank.run_id,
            evidence={"value": use.used, "ranks": {use.rank.rank: {"held_bytes": use.used}}},
        )
        yield self._reported[key]

    def _resolve(self, followed: _FollowedMemory, text: str) -> Iterator[Finding]:
        """Yield the end of the alert if no other rank of the run leaks."""
        followed.leaks = False
        alert, run = followed.use.alert, followed.use.rank.run_id
        # A restored alert ends only with its process, or if it is not confirmed in time.
        if (alert, run) in self._unconfirmed and text != GONE:
            return
        uses = (other.use for other in self._followed.values() if other.leaks)
        if any(use.alert == alert and use.rank.run_id == run for use in uses):
            return
        finding = self._reported.pop((alert, run), None)
        if finding is not None:
            yield finding._replace(time=self._wall(), over=True, summary=f"{followed.use.rank.run}: {text}")


def _number(value: float | Distribution) -> float:
    return value if isinstance(value, float) else 0.0


def _ranks(infos: Rows) -> Iterator[tuple[str, RankLabels]]:
    """Yield the pid and the labels of each rank's main process."""
    pid, role, *places = map(process.PROCESS_INFO.labels.index, ("pid", "role", *RankLabels._fields))
    for labels in infos:
        if labels[role] == "rank":
            yield labels[pid], RankLabels(*(labels[place] for place in places))


def _rooms(ranks: Collection[RankLabels], available: float, limits: Rows, used: Rows) -> dict[str, float]:
    """Return the free bytes for each rank by its cgroup, if all ranks grow alike: of the machine, and below the cgroup's limit."""
    rooms = {}
    for name, count in Counter(rank.cgroup for rank in ranks).items():
        rooms[name] = available / len(ranks)
        if (name,) in limits and (name,) in used:
            rooms[name] = min(rooms[name], max(0.0, _number(limits[name,]) - _number(used[name,])) / count)
    return rooms


def _on_host(ranks: Mapping[str, RankLabels], anonymous: Rows, shared: Rows, workers: Rows) -> Iterator[MemoryUse]:
    """Yield the memory of each rank together with its data loader workers."""
    for pid, rank in ranks.items():
        if (pid,) in anonymous:
            # Shared memory counts for the main process only, because workers map the same pages.
            main = _number(anonymous[pid,]) + _number(shared.get((pid,), 0.0))
            yield MemoryUse(HOST, rank, pid, "", main + _number(workers.get((rank.run, rank.rank), 0.0)))


def _on_gpus(ranks: Mapping[str, RankLabels], on_gpu: Mapping[Labels, float | Distribution]) -> Iterator[MemoryUse]:
    """Yield the memory of each rank's main process on each GPU."""
    for (gpu, _, pid), value in on_gpu.items():
        if pid in ranks:
            yield MemoryUse(GPU, ranks[pid], pid, gpu, _number(value))
