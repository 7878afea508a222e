"""Simulated ranks of one job: several in a process, each with the real client's queue, session, sender thread and socket."""

from __future__ import annotations

import logging
import math
import os
import resource
import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from bench.feeder import KEYS, values
from trackside.environment.identity import identify
from trackside.limits import BATCH_ROWS
from trackside.row_queue import RowQueue
from trackside.run import Run
from trackside.transport.sender import Sender
from trackside.transport.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from trackside.wire import Identity

RUN = "scale"
WATCH_SECONDS = 0.05  # interval in which acknowledgements are looked for after a restart
PAST_KEYS = KEYS[:4]
NODE = 8
"""Ranks of a node. Those of the first node are processes of the daemon's machine; the others look like those of others."""


class Job(NamedTuple):
    """A job: the work of all its ranks.

    Attributes:
        world: The number of ranks.
        rate: Steps a second.
        steps: Steps in all.
        nan: The step at which the last rank pushes NaN as its loss; 0 for none.
        past: The first of these steps, which are pushed at once, with the keys that have detectors.
    """

    world: int
    rate: float
    steps: int
    nan: int = 0
    past: int = 0


def value_rows(rank: int, job: Job) -> NDArray[np.float64]:
    """Return what a rank pushes, step by step, always the same."""
    rows = np.concatenate([values(rank, first) for first in range(0, job.steps, BATCH_ROWS)])[: job.steps]
    if job.nan and rank == job.world - 1:
        rows[job.nan, KEYS.index("loss")] = np.nan
    return rows


class Trained(NamedTuple):
    """Result of the ranks of one process.

    Attributes:
        cpu: Its CPU seconds.
        ended: Seconds from the last step until everything was acknowledged.
        unsent: Messages that were not acknowledged a minute after the last step.
        resent: Messages that were sent again.
        restarted: Seconds, of each rank, from the restart of the daemon until a message was acknowledged; infinite if none was.
    """

    cpu: float
    ended: float
    unsent: int
    resent: int
    restarted: Sequence[float] = ()


def train(end: Connection, endpoint: str, ranks: range, job: Job) -> None:
    """Push as some ranks, in step with all others; send a `Trained`."""
    # The ranks of a real job do not use the daemon's cores. The first core is left to the daemon.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[1:] or [0])
    logging.getLogger("trackside").setLevel(logging.ERROR)  # each rank would log the same
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 64 * len(ranks) + 1024), hard))
    runs = [_open(endpoint, rank, job.world) for rank in ranks]
    rows = [value_rows(rank, job) for rank in ranks]
    for step in range(job.past):
        _push(runs, rows, step, PAST_KEYS)
        time.sleep(0.005)  # a queue has room for some thousand rows
    end.send("ready")
    begun = end.recv()
    restart = _Restart(end, runs)
    for step in range(job.past, job.steps):
        restart.watch_until(begun + (step - job.past) / job.rate)
        _push(runs, rows, step)
    cpu, pushed = time.process_time(), time.monotonic()
    for run in runs:
        run.queue.close("finished", timeout=0.0)
    unsent = sum(_await_end(run) for run in runs)
    resent = sum(run.queue.session.totals.resent for run in runs)
    end.send(Trained(cpu, time.monotonic() - pushed, unsent, resent, restart.seconds))


def _push(runs: Sequence[Run], rows: Sequence[NDArray[np.float64]], step: int, keys: Sequence[str] = KEYS) -> None:
    for run, row in zip(runs, rows, strict=True):
        run.push(dict(zip(keys, row[step, : len(keys)].tolist(), strict=True)), step=step)


class _Restart:
    """Measures when the ranks of this process get the first acknowledgement after a restart, whose moment comes by a pipe.

    Attributes:
        seconds: From then until the acknowledgement, of each rank.
    """

    def __init__(self, end: Connection, runs: Sequence[Run]) -> None:
        self.seconds = [math.inf] * len(runs)
        self._end = end
        self._sessions = [run.queue.session for run in runs]
        self._acked: list[int] = []
        self._at = 0.0

    def watch_until(self, moment: float) -> None:
        """Return at *moment*, in monotonic seconds."""
        while (left := moment - time.monotonic()) > 0:
            if not self._at and self._end.poll():
                self._at = self._end.recv()
                self._acked = [session._acked for session in self._sessions]
            for number, acked in enumerate(self._acked):
                if math.isinf(self.seconds[number]) and self._sessions[number]._acked > acked:
                    self.seconds[number] = time.monotonic() - self._at
            time.sleep(min(left, WATCH_SECONDS if self._at else left))


def _identity(rank: int, world: int) -> Identity:
    """Return the identity of a rank; each `NODE` of them have a machine."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % NODE),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(NODE),
    }
    identity = identify(RUN, RUN)
    if rank >= NODE:
        boot = str(uuid.uuid5(uuid.NAMESPACE_OID, str(rank // NODE)))
        identity = replace(identity, boot=boot, host=f"node-{rank // NODE:03d}")
    return identity


def _open(endpoint: str, rank: int, world: int) -> Run:
    session = Session(_identity(rank, world))
    sender = Sender(endpoint)
    queue = RowQueue(session, sender)
    sender.add(session)
    return Run(queue)


def _await_end(run: Run) -> int:
    """Wait until everything is acknowledged; return how many messages are not after a minute."""
    session, until = run.queue.session, time.monotonic() + 60
    while not session.done and time.monotonic() < until:
        time.sleep(0.01)
    return len(session.pending)
