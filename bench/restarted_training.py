"""Train deterministically, with the troubles of a plan: ``python bench/restarted_training.py DIRECTORY NAME RANKS PLAN``.

The plan is a JSON list with one trouble for each start of the command: a kind, the rank that has it, and its step. Without
torchrun it forks its ranks, so that PyTorch is imported once. ``DIRECTORY/times`` gets lines: ``launch`` by the caller,
``fault`` and ``step``, the first one of a start, each with the Unix time.
"""

from __future__ import annotations

import io
import json
import math
import os
import pdb  # noqa: T100  its prompt is one of the pauses
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS, SAVE_EVERY = 260, 20
STEP_SECONDS = 0.05
PAUSE_SECONDS = 40.0  # four times the deadline of a stall
LEARNING_RATE, MOMENTUM = 0.05, 0.9

DIRECTORY, NAME, RANKS = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
PLAN: list[tuple[str, int, int]] = json.loads(sys.argv[4])
START = int(os.environ.get("TRACKSIDE_RESTART", "0").partition(":")[0])
KIND, VICTIM, AT = (*PLAN[START:], ("", 0, 0))[0]


def note(what: str) -> None:
    """Append what happens now, and the time."""
    with (DIRECTORY / "times").open("a") as file:
        file.write(f"{what} {time.time()}\n")


def launch() -> int:
    """Fork the ranks, and end the others once one has failed; return the exit status."""
    left = {}
    for rank in range(RANKS):
        if not (pid := os.fork()):
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
            train(rank)
            return 0
        left[pid] = rank
    failed = 0
    while left:
        pid, status = os.wait()
        del left[pid]
        if status and not failed:
            failed = max(1, os.waitstatus_to_exitcode(status))
            for other in left:
                os.kill(other, signal.SIGTERM)
    return failed


def hold_twice() -> None:
    """Wait for a lock that this thread holds."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


class Locked:
    """Data whose loader never returns an item."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, _: int) -> int:
        hold_twice()
        return 0


def fill_memory() -> None:
    """Join the cgroup of the benchmark, and use more memory than it allows."""
    Path(os.environ["CGROUP"]).write_text(str(os.getpid()))
    _ = bytearray(1 << 30)


def load_items() -> None:
    """Read an item with a data loader's worker."""
    from torch.utils.data import DataLoader

    next(iter(DataLoader(Locked(), num_workers=1)))


def call_another_collective() -> None:
    """Wait in a barrier, while the other ranks reduce."""
    from torch import distributed

    distributed.barrier()


def raise_error() -> None:
    """Raise an exception."""
    raise KeyError("planted")


FAULTS: dict[str, Callable[[], object]] = {
    "exception": raise_error,
    "SIGKILL of a rank": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "os._exit": lambda: os._exit(9),
    "out of memory in a cgroup": fill_memory,
    "loader deadlock": load_items,
    "collective mismatch": call_another_collective,
    "lock": hold_twice,
    "NaN": lambda: None,
}


def evaluate() -> None:
    """Evaluate for two minutes."""
    with trackside.phase("eval"):
        time.sleep(3 * PAUSE_SECONDS)


def save_slowly() -> None:
    """Write a checkpoint to a slow disk."""
    with trackside.phase("checkpoint"):
        time.sleep(PAUSE_SECONDS)


def use_some_cpu() -> None:
    """Compute a tenth of the time, less than a step would."""
    until = time.time() + PAUSE_SECONDS
    while time.time() < until:
        sum(range(200_000))
        time.sleep(0.05)


def compile_model() -> None:
    """Compile a model with PyTorch's inductor and the C++ compiler."""
    import torch

    weights = torch.nn.Linear(4, 1)
    torch.compile(lambda inputs: weights(inputs).sum().square())(torch.randn(8, 4)).backward()


def debug() -> None:
    """Wait at pdb's prompt."""
    reading, writing = os.pipe()
    threading.Timer(PAUSE_SECONDS, lambda: os.write(writing, b"c\n")).start()
    pdb.Pdb(stdin=os.fdopen(reading), stdout=io.StringIO()).set_trace()


def attach() -> None:
    """Be held by gdb."""
    subprocess.run(
        ["gdb", "-p", str(os.getpid()), "-batch", "-nx", "-ex", f"shell sleep {PAUSE_SECONDS:g}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def stop() -> None:
    """Stop until SIGCONT comes."""
    subprocess.Popen(["sh", "-c", f"sleep {PAUSE_SECONDS:g}; kill -CONT {os.getpid()}"], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def read_files() -> None:
    """Read files, as of a slow data set."""
    until = time.time() + PAUSE_SECONDS
    while time.time() < until:
        with Path(sys.executable).open("rb") as file:
            file.read(200_000)
        time.sleep(0.5)


def step_slowly() -> None:
    """Step, slower than usual: the caller meanwhile kills or stops the daemon, or captures."""
    draw = random.Random(NAME)
    until = time.time() + PAUSE_SECONDS
    step = AT
    while time.time() < until:
        time.sleep(draw.uniform(0.1, 7))
        trackside.push(step=step, loss=0.5)
        step += 1


PAUSES: dict[str, Callable[[], object]] = {
    "eval of 2 min": evaluate,
    "slow checkpoint": save_slowly,
    "compilation": compile_model,
    "first batches": lambda: time.sleep(PAUSE_SECONDS),
    "pdb": debug,
    "gdb": attach,
    "SIGSTOP and SIGCONT": stop,
    "a tenth of a core": use_some_cpu,
    "slow reads": read_files,
    "shorter than the deadline": lambda: time.sleep(8),
    "capture": step_slowly,
    "daemon killed and back": step_slowly,
    "daemon stopped": step_slowly,
}


class Regression:
    """A linear model that learns by momentum, always in the same way; several ranks by their mean gradient, over gloo.

    One rank does without PyTorch, whose import is most of what a training here costs.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.state = {"weights": [0.0] * 4, "velocity": [0.0] * 4}
        if RANKS > 1:
            from torch import distributed

            store = f"file://{DIRECTORY}/store-{START}"
            distributed.init_process_group("gloo", store, rank=rank, world_size=RANKS)

    def step(self, number: int) -> float:
        """Make a step, and return the loss."""
        draw = random.Random(number * RANKS + self._rank)
        weights, velocity = self.state["weights"], self.state["velocity"]
        inputs = [[draw.gauss(0, 1) for _ in weights] for _ in range(8)]
        errors = [sum((weight - 1) * one for weight, one in zip(weights, row, strict=True)) for row in inputs]
        columns = zip(*inputs, strict=True)
        gradient = [sum(map(float.__mul__, errors, column)) / 4 for column in columns]
        if RANKS > 1:
            gradient = mean(gradient)
        if KIND == "NaN" and number >= AT:
            gradient = [float("nan")] * 4
        self.state["velocity"] = [MOMENTUM * old + new for old, new in zip(velocity, gradient, strict=True)]
        self.state["weights"] = [
            old - LEARNING_RATE * by for old, by in zip(weights, self.state["velocity"], strict=True)
        ]
        return sum(error * error for error in errors) / 8  # of the weights before the step


def mean(values: list[float]) -> list[float]:
    """Return the mean of the ranks' values. No rank goes on before all are here, so that none is ahead in a trouble."""
    import torch
    from torch import distributed

    summed = torch.tensor(values, dtype=torch.float64)
    distributed.all_reduce(summed)
    distributed.barrier()
    return [float(value) / RANKS for value in summed]


def train(rank: int) -> None:
    """Be a rank."""
    run = trackside.init(NAME)
    pauses = KIND in PAUSES
    model = None if pauses else Regression(rank)
    checkpoints = trackside.Checkpoints(DIRECTORY / "checkpoints")
    if model is not None:
        model.state = checkpoints.load() or model.state
    if KIND == "first batches":
        PAUSES[KIND]()
    loss = 0.0
    for step in range(checkpoints.next_step, STEPS):
        if step == AT and rank == VICTIM and KIND:
            note("fault")
            if KIND != "first batches":
                (PAUSES if pauses else FAULTS)[KIND]()
        loss = 1 / (1 + step) if model is None else model.step(step)
        run.push(step=step, loss=loss)
        if step == checkpoints.next_step and rank == 0:
            note("step")
        time.sleep(STEP_SECONDS if math.isfinite(loss) else 1.0)
        if model is not None and rank == 0 and step % SAVE_EVERY == SAVE_EVERY - 1:
            checkpoints.save(model.state, step)
    if rank == 0:
        print("final", loss.hex(), flush=True)


if __name__ == "__main__":
    if KIND == "loader deadlock":
        import torch.utils.data
    if KIND not in PAUSES and RANKS > 1:
        import torch  # noqa: F401  once for all ranks
    if "WORLD_SIZE" in os.environ:
        train(int(os.environ["RANK"]))
    else:
        sys.exit(launch())
