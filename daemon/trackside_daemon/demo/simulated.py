"""``python -m trackside_daemon.demo.simulated``: a rank that takes the time of a training's steps, and computes nothing.

All else is as in a real one: the ranks wait for each other, the loader has workers, and what goes wrong really does.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from itertools import chain, count, repeat
from random import Random
from typing import TYPE_CHECKING

import trackside
from trackside_daemon.demo import training_text
from trackside_daemon.demo.barrier import Barrier
from trackside_daemon.demo.gpu_simulated import Gpu
from trackside_daemon.demo.model_simulated import Model, accuracy, utilization
from trackside_daemon.demo.stop_signal import Stop, stopped_by_signals
from trackside_daemon.demo.train import CYCLE_STEPS, PEAK_LEARNING_RATE, learning_rate, positive
from trackside_daemon.demo.troubles import TROUBLES, Ailing
from trackside_daemon.demo.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

DESCRIPTION = "Takes the time of a training's steps, and tells trackside of each."

TOTAL_STEPS = 100_000
"""What a demo without end says that it will make: about three hours."""

EPOCH_STEPS, EVAL_STEPS, CHECKPOINT_STEPS = 50, 50, 200
EVAL_BATCHES = 8
LOAD_SECONDS, FIRST_SECONDS, CHECKPOINT_SECONDS = 0.004, 0.2, 0.5
CHECKPOINT_BYTES = 12
"""Of a parameter: it and Adam's two moments in float32."""
WORKERS = 2


def main(arguments: list[str] | None = None) -> int:
    """Train as the rank that the environment says; the exit status."""
    options = parser().parse_args(arguments)
    stop = stopped_by_signals()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    workers = Workers(WORKERS)  # before the client has its thread: a fork has none but the one that forks
    corpus = training_text.load()
    random = Random(rank)  # noqa: S311 - batches, not secrets
    model = Model(corpus, random)
    total = options.steps or TOTAL_STEPS
    run = trackside.init(
        "demo", total_steps=total, config=config(model), tags=("demo", "simulated"), parameters=model.size
    )
    ailing = Ailing(options.trouble, model, len(corpus.vocabulary), random)
    gpu = Gpu(run, int(os.environ.get("LOCAL_RANK", rank)), model)
    train(model, corpus, ailing, Barrier(options.meet, rank, ranks), steps=options.steps, stop=stop, gpu=gpu)
    workers.end()
    trackside.finish(status="stopped" if stop.is_set() else "finished")
    return 0


def train(
    model: Model,
    corpus: training_text.Text,
    ailing: Ailing,
    barrier: Barrier,
    *,
    steps: int | None,
    stop: Stop,
    gpu: Gpu | None = None,
) -> None:
    """Step after step, each with the other ranks, until *steps* are done or *stop* is set."""
    loader = chain.from_iterable(repeat(trackside.data(Loader(model, corpus.train))))
    held_out = next(iter(Loader(model, corpus.validation)))
    began = time.monotonic()
    for step in range(1, steps + 1) if steps else count(1):
        if stop.is_set():
            break
        batch, rate = ailing.spoil(next(loader), learning_rate(step, cycle=steps or CYCLE_STEPS))
        with trackside.phase("forward"):
            loss, grad_norm = model.step(batch, rate)
            ailing.work(batch)
        with trackside.phase("sync"):
            if not barrier.wait(stop):
                break
        values = {"loss": loss, "accuracy": accuracy(loss), "grad_norm": grad_norm, "learning_rate": rate}
        values |= {"epoch": step / EPOCH_STEPS, "samples": model.batch, "tokens": model.tokens}
        values["train/mfu"] = utilization(model, time.monotonic() - began)
        trackside.push(values | ailing.values(), step=step)
        if gpu is not None:
            gpu.step()
        if step % EVAL_STEPS == 0:
            evaluate(model, held_out, step)
        if step % CHECKPOINT_STEPS == 0:
            save(model, step)
        began = time.monotonic()


def evaluate(model: Model, held_out: list[bytes], step: int) -> None:
    """Tell the loss on text that was never trained on."""
    with trackside.phase("eval"):
        loss = sum(model.loss(held_out) for _ in range(EVAL_BATCHES)) / EVAL_BATCHES
    trackside.push({"eval/loss": loss, "eval/accuracy": accuracy(loss)}, step=step)


def save(model: Model, step: int) -> None:
    """Take a checkpoint's time, and tell of it."""
    with trackside.phase("checkpoint"):
        time.sleep(CHECKPOINT_SECONDS)
    trackside.event("checkpoint", after=step, bytes=CHECKPOINT_BYTES * model.size)


class Loader:
    """An epoch's batches, each a little late, and the first one later, as where workers start."""

    def __init__(self, model: Model, codes: bytes) -> None:
        self._model, self._codes = model, codes

    def __iter__(self) -> Iterator[list[bytes]]:
        model = self._model
        time.sleep(FIRST_SECONDS)
        for _ in range(EPOCH_STEPS):
            time.sleep(model.random.lognormvariate(0, 0.3) * LOAD_SECONDS)
            yield training_text.windows(self._codes, count=model.batch, length=model.context + 1, random=model.random)


def config(model: Model) -> dict[str, object]:
    """What is worth knowing of the run later."""
    return {
        "backend": "simulated",
        "parameters": model.size,
        "context": model.context,
        "batch": model.batch,
        "peak_learning_rate": PEAK_LEARNING_RATE,
        "workers": WORKERS,
    }


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m trackside_daemon.demo.simulated", description=DESCRIPTION)
    parser.add_argument("--steps", type=positive, metavar="N", help="steps to train (default: until interrupted)")
    parser.add_argument("--trouble", choices=("", *TROUBLES), default="", help="what goes wrong after SIGUSR1")
    parser.add_argument("--meet", required=True, metavar="FILE", help="where the ranks wait for each other")
    return parser


if __name__ == "__main__":
    sys.exit(main())
