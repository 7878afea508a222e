"""Measure an audit of 10 GB beside a training: how long it takes, and how much longer the steps get. It needs 11 GB of disk.

The training runs for the whole audit. Then steps are compared in pairs of windows, in one of which the process that reads is
stopped. In the other it also makes up for what it has missed, and so reads up to twice as fast as it may.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from bench import table
from bench.pairs import bootstrapped
from trackside_daemon.checkpoints.audit.request import MODULE, Audited, AuditRequest
from trackside_daemon.checkpoints.settings import CheckpointSection
from trackside_daemon.linux.process_limits import WORKER_BYTES
from trackside_daemon.linux.worker_call import CallWorker

if TYPE_CHECKING:
    from collections.abc import Callable

GIGABYTES = 10
TENSOR_BYTES = 100_000_000
PATIENCE_SECONDS = 600.0
WINDOW_STEPS = 10
PAIRS = 40
WIDTH, BATCH = 1024, 128
ALLOWED_SECONDS, ALLOWED_PERCENT = 60.0, 1.0


def main() -> None:
    """Print the tables."""
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else GIGABYTES
    rate = CheckpointSection().rate_mb * 1e6
    table.machine()
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/var/tmp") as directory:
        path = Path(directory) / "step-1000.pt"
        write(path, round(gigabytes * 1e9 / TENSOR_BYTES))
        process = CallWorker(MODULE, Audited, memory=WORKER_BYTES)
        request = AuditRequest(str(path), path.stat().st_size, rate)
        step = training()
        torch.set_num_threads(1)
        seconds = audited(process, request, step)
        process.end()
        table.head(f"audit of {path.stat().st_size / 1e9:.1f} GB at {rate / 1e6:.0f} MB/s", "measured", "target", "")
        table.verdict(
            "seconds, beside a training of 1 thread",
            f"{seconds:.1f}",
            f"<= {ALLOWED_SECONDS:.0f}",
            met=seconds <= ALLOWED_SECONDS,
        )
        for threads in (1, os.cpu_count() or 1):
            torch.set_num_threads(threads)
            longer, null = compared(process, request, step)
            table.verdict(
                f"steps of a training of {threads} thread{'s' * (threads > 1)} are longer by",
                f"{table.interval(longer)}, null pairs {table.interval(null)}",
                f"<= {ALLOWED_PERCENT:g} %",
                met=longer[0] <= ALLOWED_PERCENT,
            )


def write(path: Path, tensors: int) -> None:
    """Write a checkpoint as `torch.save` does, of random bytes, and leave none of it in the page cache."""
    data = os.urandom(TENSOR_BYTES)
    with path.open("wb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", b"")
            for number in range(tensors):
                archive.writestr(f"archive/data/{number}", data)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def training() -> Callable[[], None]:
    """Return a step of some ten milliseconds."""
    torch.manual_seed(4711)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(BATCH, WIDTH)

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def audited(process: CallWorker[Audited], request: AuditRequest, step: Callable[[], None]) -> float:
    """Return the seconds of an audit; raise a RuntimeError if it finds damage."""
    begun = time.monotonic()
    process.begin(request, PATIENCE_SECONDS)
    while (answer := process.poll()) is None:
        step()
    if answer.problem or answer.unread:
        raise RuntimeError(answer.problem or answer.unread)
    return time.monotonic() - begun


def compared(
    process: CallWorker[Audited], request: AuditRequest, step: Callable[[], None]
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return by how many percent steps are longer with an audit, and the same of pairs without one, with their intervals."""
    chance = random.Random(4711)
    for _ in range(2 * WINDOW_STEPS):
        step()
    process.begin(request, PATIENCE_SECONDS)
    worker = process.pid
    assert worker is not None
    differences: dict[bool, list[float]] = {True: [], False: []}
    tests = [True, False] * PAIRS
    chance.shuffle(tests)
    for tested in tests:
        first = chance.random() < 0.5
        measured = {second: window(worker, step, reads=tested and second == first) for second in (False, True)}
        differences[tested].append((measured[first] / measured[not first] - 1) * 100)
        if process.poll() is not None:
            process.begin(request, PATIENCE_SECONDS)
    process.end()
    return bootstrapped(np.array(differences[True])), bootstrapped(np.array(differences[False]))


def window(worker: int, step: Callable[[], None], *, reads: bool) -> float:
    """Return the seconds of some steps."""
    os.kill(worker, signal.SIGCONT if reads else signal.SIGSTOP)
    begun = time.perf_counter()
    for _ in range(WINDOW_STEPS):
        step()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
