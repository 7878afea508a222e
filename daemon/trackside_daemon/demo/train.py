"""``python -m trackside_daemon.demo.train``: a real training that uses trackside like a user's script.

It learns to write Python's help pages, character by character, for ``--steps`` steps or until it is interrupted.
"""

import argparse
import math
import os
import sys
import time
from itertools import count
from mmap import mmap
from pathlib import Path
from random import Random

import trackside
from trackside_daemon.demo import training_text
from trackside_daemon.demo.model_numpy import NumpyModel
from trackside_daemon.demo.options import NEEDS_NUMPY
from trackside_daemon.demo.stop_signal import StopRequest, stop_on_signals
from trackside_daemon.demo.troubles import TROUBLES, TroubleMaker

DESCRIPTION = "Learn to write Python's help pages, character by character, and push each step to trackside."

SEED = 0
PEAK_LEARNING_RATE = 3e-3
CYCLE_STEPS = 2000
EVAL_STEPS = 100
EVAL_WINDOWS = 128
POLL_SECONDS = 0.005


class Barrier:
    """A mapped file in which each rank counts its arrivals, and sees those of the others.

    A rank that has died never arrives, and the others wait for it, as in a collective of NCCL.

    Args:
        file: Path that all ranks share; the first rank makes the file.
        rank: This rank.
        ranks: Number of ranks.
    """

    def __init__(self, file: str, rank: int, ranks: int) -> None:
        with Path(file).open("a+b") as stream:
            stream.truncate(8 * ranks)  # keeps the counts of the ranks that came first
            self._counts = memoryview(mmap(stream.fileno(), 8 * ranks)).cast("q")
        self._rank = rank
        self._count = 0

    def wait(self, stop: StopRequest) -> bool:
        """Wait until all ranks have arrived as often as this one; return False if stopped before."""
        self._count += 1
        self._counts[self._rank] = self._count
        while min(self._counts) < self._count:
            if stop.is_set():
                return False
            time.sleep(POLL_SECONDS)
        return True


def main(arguments: list[str] | None = None) -> int:
    """Train; return the exit status."""
    options = parser("train", DESCRIPTION).parse_args(arguments)
    stop = stop_on_signals()
    limit_threads()
    corpus = training_text.load()
    try:
        model = NumpyModel(len(corpus.vocabulary), SEED)
    except ImportError:
        sys.stderr.write(f"trackside demo: {NEEDS_NUMPY}\n")
        return 2
    trackside.init("demo", total_steps=options.steps, config=config(model))
    trouble = TroubleMaker(options.trouble, model, len(corpus.vocabulary), Random(SEED))  # noqa: S311 - batches, not secrets
    ranks = int(os.environ.get("WORLD_SIZE") or 1)
    barrier = Barrier(options.meet, int(os.environ["RANK"]), ranks) if ranks > 1 else None
    train(model, corpus, trouble, barrier, steps=options.steps, stop=stop)
    trackside.finish(status="stopped" if stop.is_set() else "finished")
    return 0


def train(
    model: NumpyModel,
    corpus: training_text.Text,
    trouble: TroubleMaker,
    barrier: Barrier | None,
    *,
    steps: int | None,
    stop: StopRequest,
) -> None:
    """Train in step with the other ranks, until *steps* are done or *stop* is set."""
    random = Random(SEED)  # noqa: S311 - batches, not secrets
    length = model.context + 1
    held_out = training_text.windows(corpus.validation, count=EVAL_WINDOWS, length=length, random=random)
    for step in range(1, steps + 1) if steps else count(1):
        if stop.is_set():
            break
        rate = learning_rate(step, cycle=steps or CYCLE_STEPS)
        batch = training_text.windows(corpus.train, count=model.batch, length=length, random=random)
        batch, rate = trouble.before_step(batch, rate)
        # Forward and backward: the part of a step in which this rank waits for no other.
        with trackside.phase("forward"):
            loss, grad_norm = model.step(batch, rate)
            trouble.extra_work(batch)
        if barrier is not None:
            with trackside.phase("sync"):
                if not barrier.wait(stop):
                    break
        values = {"loss": loss, "grad_norm": grad_norm, "learning_rate": rate, "tokens": model.tokens}
        trackside.push(values | trouble.extra_values(), step=step)
        if step % EVAL_STEPS == 0:
            with trackside.phase("eval"):
                eval_loss = model.loss(held_out)
            trackside.push({"eval/loss": eval_loss}, step=step)


def learning_rate(step: int, *, cycle: int) -> float:
    """Return a linear warm-up, then cosines of *cycle* steps from the peak to a tenth of it, with restarts."""
    warmup = min(1.0, step / min(100.0, cycle / 10))
    cosine = 0.55 + 0.45 * math.cos(math.pi * ((step - 1) % cycle) / cycle)
    return PEAK_LEARNING_RATE * min(warmup, cosine)


def config(model: NumpyModel) -> dict[str, object]:
    """Return the run's configuration."""
    return {
        "backend": "numpy",
        "parameters": model.size,
        "context": model.context,
        "batch": model.batch,
        "peak_learning_rate": PEAK_LEARNING_RATE,
        "seed": SEED,
    }


def limit_threads() -> None:
    """Limit numpy to one core, unless the user has set otherwise; its libraries read the variables when they load."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def parser(module: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of the command line of a training, which is a module of this package."""
    parser = argparse.ArgumentParser(prog=f"python -m trackside_daemon.demo.{module}", description=description)
    parser.add_argument("--steps", type=positive, metavar="N", help="steps to train (default: until interrupted)")
    parser.add_argument("--trouble", choices=("", *TROUBLES), default="", help="trouble that SIGUSR1 starts")
    parser.add_argument("--meet", default="", metavar="FILE", help="file through which the ranks find each other")
    return parser


def positive(argument: str) -> int:
    """Parse a whole number above 0."""
    number = int(argument)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
