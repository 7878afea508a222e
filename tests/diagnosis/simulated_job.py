"""A training job in simulated time: ranks, loader, GPUs and faults, step by step, whose messages and ticks reach a daemon.

The model of the job is not that of a diagnosis: it makes each step of each rank from a loader with workers and a queue, a
GPU part of which depends on the clock, a barrier, and random noise. What a fault costs is found by a second job without it.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from histories import session
from msgspec.structs import replace as with_fields
from wire_messages import FakeSession, clock, pushed

from trackside.wire import DURATION_BUCKETS, CheckpointTotals, Heartbeat, Histogram, Pushes
from trackside_daemon.nvml.simulation.simulate import uuid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from in_process_daemon import InProcessDaemon

TICK = 10.0
GIB = 2.0**30
WATTS = {True: 600.0, False: 120.0}
"""Power of a GPU that works, and of one that does not."""


@dataclass(frozen=True, eq=False)
class Job:
    """A job and its faults; times are seconds.

    Attributes:
        steps: Steps to make.
        gpu: GPU time of a step at the usual clock; *memory_bound* is the share of it that the clock does not change.
        loader: Time of a worker for a batch; *workers* of them fill a queue of two batches each.
        saves: Steps from one checkpoint to the next, each of which takes *save*.
        evaluates: Steps from one evaluation to the next, each of which takes *evaluation*.
        slow: Factor of the GPU time of a rank.
        clock: Share of the usual clock of a rank's GPU at a moment.
        swaps: Share of the time in which the machine waits for memory.
        loss: The loss at a step.
        stalls: At which step the job stands still, and for how long.
        fails: At which step it fails; then a second attempt begins after *gap* from the last checkpoint, or none if *gap* is 0.
        leaks: Bytes that each rank's process grows by per second.
        idle_gpus: Further GPUs of the machine on which nothing runs.
        gpus: The machine has GPUs.
        board: It has eight simulated H100 instead, whose values do not depend on the job.
        synced: The ranks report the time in which they wait for other ranks.
        run: The run's id, and its *name*.
        identity: Fields of the identity of each rank.
        hello: Fields of the hello of each rank.
        values: Further values of a step; their keys are always the same.
        message: Further fields of a message of a rank with rows, each of which has its time and step.
        tokens: Tokens that each rank processes in a step.
        measures: The ranks report the durations of steps.
        leaves: The ranks send nothing more after the last step, not even that they end.
    """

    steps: int = 2400
    ranks: int = 1
    gpu: float = 0.4
    memory_bound: float = 0.3
    loader: float = 0.2
    workers: int = 2
    saves: int = 600
    save: float = 2.0
    evaluates: int = 1200
    evaluation: float = 3.0
    slow: Mapping[int, float] = field(default_factory=dict)
    clock: Callable[[int, float], float] = lambda _rank, _time: 1.0
    swaps: float = 0.0
    loss: Callable[[int], float] = lambda step: 4.0 / (1 + step / 200) + 0.5
    stalls: tuple[int, float] = (-1, 0.0)
    fails: int = -1
    gap: float = 0.0
    leaks: float = 0.0
    idle_gpus: int = 0
    gpus: bool = True
    board: bool = False
    synced: bool = False
    start: float = 8.0
    end: float = 3.0
    run: str = "job"
    name: str = "job"
    identity: Mapping[str, Any] = field(default_factory=dict)
    hello: Mapping[str, Any] = field(default_factory=dict)
    values: Callable[[int], Mapping[str, float]] = lambda _: {}
    message: Callable[[int, Sequence[tuple[float, int]]], Mapping[str, Any]] = lambda _rank, _rows: {}
    tokens: int = 0
    measures: bool = False
    leaves: bool = False


class _Rank:
    """A rank of an attempt: its session, its totals so far, and the rows that it has not sent."""

    def __init__(self, job: Job, number: int, attempt: int, began: float) -> None:
        place = {"rank": number, "attempt": attempt, "world": job.ranks, "pid": 0, "boot": "", "host": "node-1"}
        self.session = FakeSession(job.run, name=job.name, **(place | dict(job.identity)))
        self.session.id = session(job.run, attempt, number)
        self.durations = [0] * (len(DURATION_BUCKETS) + 1)
        self.duration = self.last_row = 0.0
        self.phases: dict[str, float] = {}
        self.rows: list[tuple[float, int, tuple[float, ...]]] = []
        self.pauses: dict[int, float] = {}
        """Seconds of evaluation and checkpoints before each step; *paused* are those of the steps that are sent."""
        self.paused = 0.0
        self.busy = 0.0
        self.messages = self.saved = 0
        self.saved_at = 0.0
        self.ready = [began] * job.workers
        """When each worker of the loader has its next batch."""

    def spend(self, phase: str, seconds: float) -> None:
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds


class SimulatedJob:
    """Runs a job against a daemon.

    Args:
        job: The job.
        daemon: The daemon, at a moment of the job's start.
        seed: Seed of the noise.

    Attributes:
        seconds: From the start of the job to its end.
    """

    def __init__(self, job: Job, daemon: InProcessDaemon, seed: int = 1) -> None:
        self._job = job
        self._daemon = daemon
        self._random = random.Random(seed)
        self._begun = daemon.after
        self._now = daemon.after
        self._ticked = daemon.after
        self._stalled = 0.0
        self._made = -1
        self._joules: dict[int, float] = {}
        self._counted: dict[int, float] = {}
        self._ranks: list[_Rank] = []
        self.seconds = 0.0

    def run(self) -> SimulatedJob:
        """Run the job to its end."""
        job, first = self._job, 0
        for attempt in range(2 if job.gap else 1):
            fails = job.fails if not attempt else -1
            last = self._attempt(attempt, first, fails)
            if not last:
                break
            first = last // job.saves * job.saves
            self._pass(job.gap)
        self.seconds = self._now - self._begun
        for later in (1.0, 2 * TICK):
            self._daemon.after = self._now + later
            self._tick(self._daemon.after)
        return self

    def _attempt(self, attempt: int, first: int, fails: int) -> int:
        """Make an attempt; return the step at which it failed, 0 for none."""
        job = self._job
        self._ranks = [_Rank(job, number, attempt, self._now) for number in range(job.ranks)]
        for rank in self._ranks:
            self._daemon.after = self._now
            hello = with_fields(rank.session.hello(self._now, **job.hello), started=clock(self._now).wall)
            self._daemon.receive(rank.session.frames("hello", hello))
        self._pass(job.start)
        for step in range(first, job.steps):
            if step == fails:
                self._finish("failed")
                return step
            self._step(step)
        if not job.leaves:
            self._pass(job.end)
            self._finish("finished")
        return 0

    def _finish(self, status: str) -> None:
        self._send()
        for rank in self._ranks:
            self._daemon.receive(rank.session.frames("bye", rank.session.bye(status, self._now), rank.messages + 1))

    def _step(self, step: int) -> None:
        """Make one step: each rank waits for its data, computes, and waits for the slowest rank."""
        job = self._job
        self._made = step
        arrivals = [self._own(rank, number) for number, rank in enumerate(self._ranks)]
        slowest = max(arrivals)
        for rank, arrival in zip(self._ranks, arrivals, strict=True):
            rank.spend("all_reduce" if job.synced else "backward", slowest - arrival)
            rank.busy += slowest - arrival  # the kernel of a collective waits on the GPU
            rank.rows.append((slowest, step, (self._loss(step), *job.values(step).values())))
        self._until(slowest)
        if step == job.stalls[0]:
            self._pass(job.stalls[1])
        if step and step % job.saves == 0:
            self._pause("checkpoint", job.save)
        if step and step % job.evaluates == 0:
            self._pause("eval", job.evaluation)

    def _own(self, rank: _Rank, number: int) -> float:
        """Return when a rank has finished its own part of a step."""
        job = self._job
        worker = min(range(job.workers), key=rank.ready.__getitem__)
        batch = rank.ready[worker]
        wait = max(0.0, batch - self._now)
        # A worker goes on with its next batch at once, until its two places in the queue are full.
        rank.ready[worker] = max(batch, self._now - job.loader) + job.loader * self._noise()
        rank.spend("data", wait)
        clock_share = job.clock(number, self._now - self._begun)
        scaled = job.memory_bound + (1 - job.memory_bound) / clock_share
        work = job.gpu * job.slow.get(number, 1.0) * scaled * self._noise()
        stopped = work * job.swaps / (1 - job.swaps) * self._noise() if job.swaps else 0.0
        self._stalled += stopped if not number else 0.0
        rank.busy += work
        rank.spend("forward", (work + stopped) / 3)
        rank.spend("backward", 2 * (work + stopped) / 3)
        return self._now + wait + work + stopped

    def _noise(self) -> float:
        return self._random.lognormvariate(0.0, 0.03)

    def _loss(self, step: int) -> float:
        return self._job.loss(step) * (1 + self._random.gauss(0, 0.01))

    def _pause(self, phase: str, seconds: float) -> None:
        length = seconds * self._noise()
        for rank in self._ranks:
            rank.spend(phase, length)
            rank.pauses[self._made + 1] = rank.pauses.get(self._made + 1, 0.0) + length
            if phase == "checkpoint":
                rank.saved, rank.saved_at = rank.saved + 1, self._now + length
        self._pass(length)

    def _pass(self, seconds: float) -> None:
        self._until(self._now + seconds)

    def _until(self, moment: float) -> None:
        """Let the time pass, with a message of each rank and a tick of the machine every 10 s."""
        while self._ticked + TICK <= moment:
            self._ticked += TICK
            self._daemon.after = self._ticked
            self._send()
            self._tick(self._ticked)
        self._now = moment
        self._daemon.after = moment

    def _send(self) -> None:
        job = self._job
        for number, rank in enumerate(self._ranks):
            due = [row for row in rank.rows if row[0] <= self._daemon.after]
            for at, step, _ in due:
                paused = rank.pauses.pop(step, 0.0)
                rank.paused += paused
                self._measure(rank, at, paused)
            rank.rows = rank.rows[len(due) :]
            session = rank.session
            session.totals = with_fields(
                session.totals,
                pushes=session.totals.pushes + len(due),
                steps=session.totals.steps + len(due),
                phases=dict(rank.phases),
                paused=rank.paused if due else session.totals.paused,
                saves=CheckpointTotals(rank.saved, at=self._wall(rank.saved_at)) if rank.saved else None,
                tokens=(session.totals.tokens or 0) + job.tokens * len(due) if job.tokens else None,
                step_duration=Histogram(list(rank.durations), rank.duration) if job.measures else None,
            )
            if due:
                rank.messages += 1
                blocks = [pushed(["loss", *job.values(0)], *due)]
                more = job.message(number, [row[:2] for row in due])
                body = Pushes(clock(self._daemon.after), session.totals, blocks, **more)
                self._daemon.receive(session.frames("batch", body, rank.messages), len(due))
            else:
                self._daemon.receive(session.frames("beat", Heartbeat(clock(self._daemon.after))))

    @staticmethod
    def _measure(rank: _Rank, at: float, paused: float) -> None:
        """Count the duration of a step that ended at a time, without a pause before it."""
        if rank.last_row:
            seconds = at - rank.last_row - paused
            rank.durations[bisect_left(DURATION_BUCKETS, seconds)] += 1
            rank.duration += seconds
        rank.last_row = at

    @staticmethod
    def _wall(moment: float) -> float:
        return clock(moment).wall / 1e9

    def _tick(self, moment: float) -> None:
        values = dict(self._machine(moment - self._begun))
        if self._job.board:
            values["trackside_gpu_rank_info{gpu=0,uuid=" + uuid(0) + f",run={self._job.name},rank=0}}"] = 1.0
        elif self._job.gpus:
            for number in range(self._job.ranks + self._job.idle_gpus):
                values.update(self._gpu(number, moment - self._begun))
        self._daemon.tick(values, gpus=self._job.board)

    def _machine(self, since: float) -> Iterator[tuple[str, float]]:
        job = self._job
        yield "trackside_host_pressure_memory_stalled_seconds_total", self._stalled
        yield "trackside_host_pressure_io_stalled_seconds_total", 0.0
        yield "trackside_host_swap_in_pages_total", self._stalled * 5000
        yield "trackside_host_memory_available_bytes", 200 * GIB - job.leaks * since * job.ranks
        for number in range(job.ranks):
            info = (
                f"trackside_process_info{{pid={100 + number},role=rank,run={job.name},run_id={job.run},rank={number}}}"
            )
            yield info, 1.0
            yield f"trackside_process_anonymous_memory_bytes{{pid={100 + number}}}", 8 * GIB + job.leaks * since

    def _gpu(self, number: int, since: float) -> Mapping[str, float]:
        job = self._job
        of = f"gpu={number},uuid=GPU-{number}"
        busy = self._ranks[number].busy if number < len(self._ranks) else 0.0
        worked = max(0.0, busy - self._counted.get(number, 0.0)) if busy else 0.0
        self._counted[number] = busy
        worked = min(worked, TICK)
        self._joules[number] = self._joules.get(number, 1e6) + worked * WATTS[True] + (TICK - worked) * WATTS[False]
        share = job.clock(number, since) if number < job.ranks else 1.0
        values = {
            f"trackside_gpu_utilization_ratio{{{of}}}": worked / TICK,
            f"trackside_gpu_energy_joules_total{{{of}}}": self._joules[number],
            f"trackside_gpu_memory_bytes{{{of}}}": 80 * GIB,
            f"trackside_gpu_memory_used_bytes{{{of}}}": 70 * GIB if number < job.ranks else 0.5 * GIB,
            f"trackside_gpu_clock_hertz{{{of},domain=sm}}": 1.7e9 * share,
            f"trackside_gpu_clock_limit_active{{{of},reason=hw_thermal}}": float(share < 1),
        }
        if number < job.ranks:
            values[f"trackside_gpu_rank_info{{{of},run={job.name},rank={number}}}"] = 1.0
        return values
