"""Simulated ranks of one job: several in a process, each with the real client's queue, session, sender thread and socket."""

from __future__ import annotations

import logging
import os
import resource
import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from bench.feeder import KEYS, values
from trackside.environment.identity import identify
from trackside.row_queue import RowQueue
from trackside.run import Run
from trackside.transport.batch import BATCH_ROWS
from trackside.transport.sender import Sender
from trackside.transport.session import Session

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

RUN = "scale"
NODE = 8
"""Ranks of a node. Those of the first node are processes of the daemon's machine; the others look like those of others."""


class Job(NamedTuple):
    """A job: the work of all its ranks.

    Attributes:
        world: The number of ranks.
        rate: Steps a second.
        steps: Steps in all.
        nan: The step at which the last rank pushes NaN as its loss; 0 for none.
    """

    world: int
    rate: float
    steps: int
    nan: int = 0


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
    """

    cpu: float
    ended: float
    unsent: int
    resent: int


def train(end: Connection, endpoint: str, ranks: range, job: Job) -> None:
    """Push as some ranks, in step with all others; send a `Trained`."""
    # The ranks of a real job do not use the daemon's cores. The first core is left to the daemon.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[1:] or [0])
    logging.getLogger("trackside").setLevel(logging.ERROR)  # each rank would log the same
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 64 * len(ranks) + 1024), hard))
    runs = [_open(endpoint, rank, job.world) for rank in ranks]
    rows = [value_rows(rank, job) for rank in ranks]
    end.send("ready")
    begun = end.recv()
    for step in range(job.steps):
        time.sleep(max(0.0, begun + step / job.rate - time.monotonic()))
        for run, row in zip(runs, rows, strict=True):
            run.push(dict(zip(KEYS, row[step].tolist(), strict=True)), step=step)
    cpu, pushed = time.process_time(), time.monotonic()
    for run in runs:
        run.queue.close("finished", timeout=0.0)
    unsent = sum(_await_end(run) for run in runs)
    resent = sum(run.queue.session.totals.resent for run in runs)
    end.send(Trained(cpu, time.monotonic() - pushed, unsent, resent))


def _open(endpoint: str, rank: int, world: int) -> Run:
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
    session = Session(identity)
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
