"""One of the ranks of a run that hangs or pauses: ``python hanging_ranks.py STORE FAULT COLLECTIVE``; the faulty rank is ``$FAULTY``.

The comments name the lines at which a rank, or a process below it, stays. A single rank joins no collective.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.utils.data import DataLoader

import trackside
from trackside.captures.answers import ANSWERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 120  # before the fault
STEP_SECONDS = 0.05  # in all, long enough that a busy daemon has seen the pace by then
SEGMENT = (
    1024 * 1024 // 4
)  # elements; Gloo's all_reduce sends in segments of this size, and only whole ones may be missing

PR_SET_PDEATHSIG = 1  # of linux/prctl.h: no process outlives its rank
LIBC = ctypes.CDLL(None)
FORK = multiprocessing.get_context("fork")
LONG = 40.0  # seconds of a pause that is no hang


class Numbers:
    """Dataset whose worker process stays at an index, as long as its rank lives."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> int:
        if index == STEPS and self._fault == "loader":
            self._sleep()
        if index == STEPS and self._fault == "loader deadlock":
            self._lock.acquire()
            with self._lock:  # fault: loader deadlock
                pass
        if index == STEPS and self._fault == "slow item":
            self._compute()
        if index == STEPS and self._fault == "stopped worker":
            os.kill(os.getpid(), signal.SIGSTOP)
        if index == STEPS and self._fault == "worker's read":
            os.read(os.pipe()[0], 1)  # fault: worker's read
        return index

    def _sleep(self) -> None:
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(0.05)  # fault: loader

    def _compute(self) -> None:
        parent = os.getppid()
        while os.getppid() == parent:
            sum(range(100_000))  # fault: slow item


def produce(queue: Any) -> None:
    """Fill a queue."""
    for number in count():
        queue.put(number)  # fault: full queue


def consumed() -> Iterator[int]:
    """Yield numbers that a process makes, which is killed after so many steps."""
    queue = FORK.Queue(4)
    producer = FORK.Process(target=produce, args=(queue,), daemon=True)
    producer.start()
    for step in count():
        if step == STEPS and producer.pid is not None:
            os.kill(producer.pid, signal.SIGKILL)
            while True:
                queue.get()  # fault: dead worker
        yield queue.get()


def full_queue() -> None:
    """Wait for the end of a process that waits for room in a queue."""
    queue = FORK.Queue(4)
    producer = FORK.Process(target=produce, args=(queue,), daemon=True)
    producer.start()
    producer.join()


def read_late() -> None:
    """Stay outside any collective."""
    threading.Event().wait()  # fault: late


def spin() -> None:
    """Compute for ever."""
    while True:
        sum(range(100_000))  # fault: Python


def read() -> None:
    """Wait for data that do not come."""
    os.read(os.pipe()[0], 1)  # fault: read


def lock_twice() -> None:
    """Wait for a lock that this thread has."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # fault: lock


def join_thread() -> None:
    """Wait for a thread that waits for this one."""
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()  # fault: thread


def wait_for_child() -> None:
    """Wait for a program that does not end."""
    subprocess.Popen(["cat"], stdin=subprocess.PIPE).wait()  # fault: child


def pause() -> None:
    """Stay outside any collective until the daemon has asked why."""
    asked, flight = threading.Event(), ANSWERS["flight?"]

    def answer(body: Any) -> Any:
        found = flight.make(body)
        asked.set()
        return found

    ANSWERS["flight?"] = flight._replace(make=answer)
    asked.wait()


def die(store: Path, *, early: bool = False) -> None:
    """Die, or finish, while a child, like a worker of a data loader, keeps the connections open, so that the others wait."""
    if os.fork() == 0:
        LIBC.prctl(PR_SET_PDEATHSIG, 0)
        while store.exists():
            time.sleep(0.05)
        os._exit(0)
    if early:
        trackside.finish()
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def compute(seconds: float) -> None:
    """Compute without a mark."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(10_000))


def stop_for(seconds: float) -> None:
    """Be stopped for some time."""
    subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def marked(phase: str) -> None:
    """Spend some time in a phase."""
    with trackside.phase(phase):
        time.sleep(LONG)


def fail(fault: str, world: int, store: Path) -> None:
    """Do what the fault is, in place of a step."""
    if fault == "operation":
        distributed.broadcast(torch.ones(4), src=(distributed.get_rank() + 1) % world)  # fault: operation
    elif fault == "shape":
        distributed.all_reduce(torch.ones(4 * world * SEGMENT))  # fault: shape
    simple: dict[str, Callable[[], object]] = {
        "late": read_late,
        "pause": pause,
        "GIL": lambda: ctypes.PyDLL(None).sleep(3600),  # keeps the GIL, so that no other thread runs
        "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "dead": lambda: die(store),
        "early": lambda: die(store, early=True),
        "Python": spin,
        "read": read,
        "lock": lock_twice,
        "thread": join_thread,
        "child": wait_for_child,
        "full queue": full_queue,
        # What is no hang.
        "short pause": lambda: time.sleep(9),
        "collection": lambda: compute(9),
        "evaluation": lambda: marked("eval"),
        "checkpoint": lambda: marked("checkpoint"),
        "unmarked evaluation": lambda: compute(25),
        "stopped": lambda: stop_for(9),
    }
    if fault in simple:
        simple[fault]()


def batches(fault: str) -> Iterator[int]:
    """Return an iterator over numbers, some of which come from worker processes."""
    if fault == "dead worker":
        return consumed()
    if fault in {"loader", "loader deadlock", "slow item", "stopped worker", "worker's read"}:
        return iter(DataLoader(Numbers(fault), batch_size=None, num_workers=2))
    return iter(range(100_000))


def join(collective: str, size: int, world: int) -> None:
    """Call a collective with a tensor of *size* elements."""
    if world == 1:
        return
    if collective == "all_gather":
        distributed.all_gather([torch.empty(size) for _ in range(world)], torch.ones(size))
    elif collective == "barrier":
        distributed.barrier()
    else:
        distributed.all_reduce(torch.ones(size))


def wait_between(fault: str, step: int) -> float:
    """Return the seconds of a step."""
    if fault == "first batch" and step == 0:
        return LONG
    if fault == "compile" and step in {1, 2}:
        return LONG / 2
    if fault == "epochs" and step and step % 60 == 0:
        return 6.0
    return 2.0 if fault == "slower" and step >= STEPS else STEP_SECONDS


def main() -> None:
    """Train until the fault."""
    store, fault, collective = Path(sys.argv[1]), *sys.argv[2:]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    faulty = rank == int(os.environ["FAULTY"])
    torch.set_num_threads(1)
    timeout = dt.timedelta(minutes=30)
    if world > 1:
        distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world, timeout=timeout)
    os.register_at_fork(after_in_child=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
    data = batches(fault if faulty else "")
    if fault == "first batch":
        trackside.init()
        time.sleep(LONG)
    for step in range(100_000):
        next(data)  # fault: data
        if step == STEPS and faulty:
            fail(fault, world, store)
        join(collective, 2 * world * SEGMENT if fault == "shape" and STEPS - 1 <= step <= STEPS else 4, world)
        trackside.push(step=step, loss=1.0)
        time.sleep(wait_between(fault, step) if faulty else STEP_SECONDS)


if __name__ == "__main__":
    main()
