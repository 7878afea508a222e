"""One of the ranks of a run that hangs: ``python hanging_ranks.py STORE FAULT COLLECTIVE``; the faulty rank is ``$FAULTY``.

The comments name the lines at which a rank stays.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader

import trackside
from trackside.captures.answers import ANSWERS

STEPS = 120  # before the fault
STEP_SECONDS = 0.05  # in all, long enough that a busy daemon has seen the pace by then
SEGMENT = (
    1024 * 1024 // 4
)  # elements; Gloo's all_reduce sends in segments of this size, and only whole ones may be missing


class Numbers:
    """Dataset whose worker process stays at an index, as long as its rank lives."""

    def __init__(self, stays_at: int) -> None:
        self._stays_at = stays_at
        self._parent = os.getpid()

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> int:
        while index == self._stays_at and os.getppid() == self._parent:
            time.sleep(0.05)
        return index


def read_late() -> None:
    """Stay outside any collective."""
    threading.Event().wait()  # fault: late


def pause() -> None:
    """Stay outside any collective until the daemon has asked why."""
    asked, flight = threading.Event(), ANSWERS["flight?"]

    def answer(body: Any) -> Any:
        found = flight.make(body)
        asked.set()
        return found

    ANSWERS["flight?"] = flight._replace(make=answer)
    asked.wait()


def die(store: Path) -> None:
    """Die while a child, like a worker of a data loader, keeps the connections open, so that the others wait."""
    if os.fork() == 0:
        while store.exists():
            time.sleep(0.05)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def fail(fault: str, world: int, store: Path) -> None:
    """Do what the fault is, in place of a step."""
    if fault == "late":
        read_late()
    elif fault == "pause":
        pause()
    elif fault == "operation":
        distributed.broadcast(torch.ones(4), src=(distributed.get_rank() + 1) % world)  # fault: operation
    elif fault == "shape":
        distributed.all_reduce(torch.ones(4 * world * SEGMENT))  # fault: shape
    elif fault == "GIL":
        ctypes.PyDLL(None).sleep(3600)  # keeps the GIL, so that no other thread runs
    elif fault == "SIGSTOP":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "dead":
        die(store)


def join(collective: str, size: int, world: int) -> None:
    """Call a collective with a tensor of *size* elements."""
    if collective == "all_gather":
        distributed.all_gather([torch.empty(size) for _ in range(world)], torch.ones(size))
    elif collective == "barrier":
        distributed.barrier()
    else:
        distributed.all_reduce(torch.ones(size))


def main() -> None:
    """Train until the fault."""
    store, fault, collective = Path(sys.argv[1]), *sys.argv[2:]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    faulty = rank == int(os.environ["FAULTY"])
    torch.set_num_threads(1)
    timeout = dt.timedelta(minutes=30)
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world, timeout=timeout)
    data: Any = range(100_000)
    if fault == "loader" and faulty:
        data = iter(DataLoader(Numbers(STEPS), batch_size=None, num_workers=1))
    batches = iter(data)
    for step in range(100_000):
        next(batches)  # fault: loader
        if step == STEPS and faulty:
            fail(fault, world, store)
        join(collective, 2 * world * SEGMENT if fault == "shape" and STEPS - 1 <= step <= STEPS else 4, world)
        trackside.push(step=step, loss=1.0)
        time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main()
