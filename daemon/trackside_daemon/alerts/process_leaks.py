"""Memory that grows without end: of each rank with its data loader's workers, and of each process on a GPU.

The floor of memory is followed by `trackside_daemon.detectors.memory_leak` in samples ten seconds apart, so that what is
told of grew for at least a quarter of an hour. Files that are mapped do not count: a data set that is read by mapping it
fills what memory there is, and gives it back. The ranks of a run leak together: one alert a run, which names the first.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.alerts.rules.evaluation import TICK
from trackside_daemon.collectors.host.memory import FIELDS
from trackside_daemon.collectors.process.child_processes import ANONYMOUS as WORKERS
from trackside_daemon.collectors.process.rank_memory import MEMORY
from trackside_daemon.collectors.process.ranks import PROCESS_INFO
from trackside_daemon.detectors.base import Column, Context
from trackside_daemon.detectors.memory_leak import GREW, MemoryLeak
from trackside_daemon.model.finding import Finding
from trackside_daemon.nvml.families import FAMILIES
from trackside_daemon.training.families import STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trackside_daemon.alerts.rules.vector import Labels
    from trackside_daemon.detectors.base import Detection
    from trackside_daemon.model.metric import Batch, Distribution
    from trackside_daemon.model.records import Alert
    from trackside_daemon.model.state import State

EVERY = 10.0
"""Seconds between two samples."""

FORGET = 600.0
"""Seconds without a sample after which a rank is forgotten, and its alert is over."""

CONFIRM = 3600.0
"""Seconds within which a leak that an earlier daemon told is found anew, or is over."""

MOST = 1024
"""So many ranks and processes on GPUs are followed at most."""

ANONYMOUS, SHMEM = MEMORY[b"RssAnon"], MEMORY[b"RssShmem"]
ON_GPU = FAMILIES["process_memory_bytes"].metric
AVAILABLE = FIELDS["MemAvailable"]
GONE = "its process is gone"
HOST, GPU = "HostMemoryLeak", "GpuMemoryLeak"
LOOK = {
    HOST: "Look at what the training keeps from step to step (lists of losses that hold graphs, caches), and at data sets "
    "that are Python objects, which each worker copies as it reads them.",
    GPU: "Look for tensors that are kept from step to step with their graphs, such as a loss that is summed without "
    ".item(); torch.cuda.memory._record_memory_history() shows where they were made.",
}

Rows = dict[tuple[str, ...], "float | Distribution"]


class Rank(NamedTuple):
    """A rank, by what PROCESS_INFO says of its process."""

    run: str
    run_id: str
    rank: str


class Held(NamedTuple):
    """What one rank holds now: in bytes, of which kind, and by which GPU where it is one's."""

    alert: str
    rank: Rank
    gpu: str
    held: float


class _Followed:
    """One rank's memory of one kind."""

    def __init__(self, held: Held, limit: float | None, grew: float) -> None:
        self.held = held
        self.detector = MemoryLeak(limit=limit, grew=grew)
        self.seen = 0.0
        self.leaks = False


class Leaks:
    """A watcher that follows the memory of the ranks of this machine.

    Args:
        state: Where the values are.
        grew: The least growth that is looked at, as a part of what is held.
        clock: Seconds of the monotonic clock, by which the state forgets and samples are apart.
        wall: Unix time in seconds, for what is said.
    """

    def __init__(
        self,
        state: State,
        grew: float = GREW,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._grew = grew
        self._clock = clock
        self._wall = wall
        self._next = -FORGET
        self._followed: dict[tuple[str, Rank, str], _Followed] = {}
        self._told: dict[tuple[str, str], Finding] = {}
        self._adopted: list[Alert] = []
        self._unconfirmed: dict[tuple[str, str], float] = {}
        self._context = Context()

    def restore(self, alert: Alert) -> None:
        """An alert fired when the daemon before this one ended: it goes on until enough is known of its run."""
        if alert.alert in LOOK:
            self._adopted.append(alert)

    def accept(self, batch: Batch) -> list[Finding]:
        """The alarms of a tick, when the batch is its last and the next sample is due."""
        now = self._clock()
        if batch.source != TICK or now < self._next:
            return []
        self._next = now + EVERY - 0.5
        return list(self._follow(now))

    def _follow(self, now: float) -> Iterator[Finding]:
        yield from self._take_over(now)
        infos, anonymous, shared, workers, on_gpu, steps, available = self._state.values(
            now, PROCESS_INFO, ANONYMOUS, SHMEM, WORKERS, ON_GPU, STEP, AVAILABLE
        )
        ranks = dict(_ranks(infos))
        room = _number(available.get((), 0.0)) / max(1, len(ranks))
        held = [*_on_host(ranks, anonymous, shared, workers), *_on_gpus(ranks, on_gpu)]
        for one in held:
            step = int(_number(steps.get((one.rank.run, one.rank.rank), 0.0)))
            yield from self._one(one, step, room, now)
        for key, followed in [*self._followed.items()]:
            if now - followed.seen > FORGET:
                del self._followed[key]
                yield from self._resolved(followed, GONE)

    def _take_over(self, now: float) -> Iterator[Finding]:
        """What was adopted is told anew, and what was not found again in time is over."""
        for kept in self._adopted:
            told = (kept.alert, kept.labels.get("run", ""))
            labels = tuple(sorted(kept.labels.items()))
            self._told[told] = Finding(
                kept.alert, "warning", labels, self._wall(), kept.summary, kept.description, run=kept.run
            )
            self._unconfirmed[told] = now + CONFIRM
            yield self._told[told]
        self._adopted.clear()
        for told in [told for told, until in self._unconfirmed.items() if until <= now]:
            del self._unconfirmed[told]
            if told in self._told:
                yield self._told.pop(told)._replace(time=self._wall(), over=True)

    def _one(self, held: Held, step: int, room: float, now: float) -> Iterator[Finding]:
        key = (held.alert, held.rank, held.gpu)
        followed = self._followed.get(key)
        if followed is None:
            if len(self._followed) >= MOST:
                return
            limit = held.held + room if held.alert == HOST and room else None
            followed = self._followed[key] = _Followed(held, limit, self._grew)
        followed.seen = now
        for finding in followed.detector.evaluate(Column((step,), (self._wall(),), (held.held,)), self._context):
            followed.leaks = not finding.over
            if finding.over:
                yield from self._resolved(followed, finding.text)
            else:
                yield from self._found(followed, finding)

    def _found(self, followed: _Followed, finding: Detection) -> Iterator[Finding]:
        """The first rank of a run that leaks is told."""
        held = followed.held
        told = (held.alert, held.rank.run)
        self._unconfirmed.pop(told, None)
        if told in self._told:
            return
        where = f" on GPU {held.gpu}" if held.gpu else ""
        self._told[told] = Finding(
            held.alert,
            finding.severity,
            (("run", held.rank.run),),
            self._wall(),
            f"rank {held.rank.rank} of {held.rank.run}{where}: {finding.text}",
            LOOK[held.alert],
            run=held.rank.run_id,
            evidence={"value": held.held, "ranks": {held.rank.rank: {"held_bytes": held.held}}},
        )
        yield self._told[told]

    def _resolved(self, followed: _Followed, text: str) -> Iterator[Finding]:
        """It is over when no rank of the run leaks any more."""
        followed.leaks = False
        alert, run = followed.held.alert, followed.held.rank.run
        others = self._followed.values()
        if (alert, run) in self._unconfirmed and text != GONE:
            return
        if any(one.leaks and one.held.alert == alert and one.held.rank.run == run for one in others):
            return
        alarm = self._told.pop((alert, run), None)
        if alarm is not None:
            yield alarm._replace(time=self._wall(), over=True, summary=f"{run}: {text}")


def _number(value: float | Distribution) -> float:
    return value if isinstance(value, float) else 0.0


def _ranks(infos: Rows) -> Iterator[tuple[str, Rank]]:
    """The ranks' own processes, by pid."""
    pid, role, *places = (PROCESS_INFO.labels.index(name) for name in ("pid", "role", "run", "run_id", "rank"))
    for labels in infos:
        if labels[role] == "rank":
            run, run_id, rank = (labels[place] for place in places)
            yield labels[pid], Rank(run, run_id, rank)


def _on_host(ranks: Mapping[str, Rank], anonymous: Rows, shared: Rows, workers: Rows) -> Iterator[Held]:
    """What each rank holds with the workers of its data loader."""
    for pid, rank in ranks.items():
        if (pid,) in anonymous:
            own = _number(anonymous[pid,]) + _number(shared.get((pid,), 0.0))
            yield Held(HOST, rank, "", own + _number(workers.get((rank.run, rank.rank), 0.0)))


def _on_gpus(ranks: Mapping[str, Rank], on_gpu: Mapping[Labels, float | Distribution]) -> Iterator[Held]:
    """What each rank's own process holds of each GPU."""
    for (gpu, _, pid), value in on_gpu.items():
        if pid in ranks:
            yield Held(GPU, ranks[pid], gpu, _number(value))
