"""``python -m trackside_daemon.demo.train``: a real training that uses trackside like a user's script.

It learns to write Python's help pages, character by character, for ``--steps`` steps or until it is interrupted.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import NamedTuple, Protocol

import trackside
from trackside_daemon.demo import model_numpy, model_torch, training_text
from trackside_daemon.demo.stop_signal import StopRequest, stop_on_signals
from trackside_daemon.demo.troubles import TROUBLES, LossReduction, TroubleMaker

DESCRIPTION = "Learn to write Python's help pages, character by character, and push each step to trackside."

SEED = 0
PEAK_LEARNING_RATE = 3e-3
CYCLE_STEPS = 2000
EVAL_STEPS = 100
EVAL_WINDOWS = 128


class Model(Protocol):
    """Interface of both backends.

    Attributes:
        context: Characters that a prediction uses; a window has one more, the last one to predict.
        batch: Windows per step.
        tokens: Predictions per step.
        size: Number of parameters.
    """

    context: int
    batch: int
    tokens: int
    size: int

    def step(self, windows: Sequence[bytes], learning_rate: float) -> tuple[float, float]:
        """Learn from a batch; return its loss in nats per character, and the gradient norm before clipping."""
        ...

    def loss(self, windows: Sequence[bytes]) -> float:
        """Return the cross-entropy in nats per character, without learning."""
        ...


MODELS: dict[str, Callable[[int, int], Model]] = {"torch": model_torch.TorchModel, "numpy": model_numpy.NumpyModel}
MISSING = {
    "auto": "the training needs numpy or PyTorch: pip install 'trackside[demo]'",
    "numpy": "numpy cannot be imported: pip install 'trackside[demo]'",
    "torch": "PyTorch cannot be imported: pip install 'trackside[torch]'",
}


class Backend(NamedTuple):
    """A model and the name of its library."""

    name: str
    model: Model


def main(arguments: list[str] | None = None) -> int:
    """Train; return the exit status."""
    options = parser().parse_args(arguments)
    stop = stop_on_signals()
    limit_threads()
    corpus = training_text.load()
    backend = load_backend(options.backend, vocabulary=len(corpus.vocabulary))
    if backend is None:
        sys.stderr.write(f"trackside demo: {MISSING[options.backend]}\n")
        return 2
    trackside.init("demo", total_steps=options.steps, config=config(backend))
    reduction = LossReduction(backend.name, options.meet)
    trouble = TroubleMaker(options.trouble, backend.model, len(corpus.vocabulary), Random(SEED))  # noqa: S311 - batches, not secrets
    train(backend.model, corpus, trouble, reduction, steps=options.steps, stop=stop, verbose=options.verbose)
    reduction.close()
    trackside.finish(status="stopped" if stop.is_set() else "finished")
    return 0


def train(
    model: Model,
    corpus: training_text.Text,
    trouble: TroubleMaker,
    reduction: LossReduction,
    *,
    steps: int | None,
    stop: StopRequest,
    verbose: bool,
) -> None:
    """Train until *steps* are done or *stop* is set."""
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
        try:
            loss = reduction.mean(loss)
        except RuntimeError:
            if stop.is_set():
                break  # the other ranks have stopped too
            raise
        values = {"loss": loss, "grad_norm": grad_norm, "learning_rate": rate, "tokens": model.tokens}
        trackside.push(values | trouble.extra_values(), step=step)
        if step % EVAL_STEPS == 0:
            with trackside.phase("eval"):
                eval_loss = model.loss(held_out)
            trackside.push({"eval/loss": eval_loss}, step=step)
            if verbose:
                sys.stdout.write(f"step {step}  loss {loss:.3f}  eval loss {eval_loss:.3f}\n")
                sys.stdout.flush()


def learning_rate(step: int, *, cycle: int) -> float:
    """Return a linear warm-up, then cosines of *cycle* steps from the peak to a tenth of it, with restarts."""
    warmup = min(1.0, step / min(100.0, cycle / 10))
    cosine = 0.55 + 0.45 * math.cos(math.pi * ((step - 1) % cycle) / cycle)
    return PEAK_LEARNING_RATE * min(warmup, cosine)


def load_backend(name: str, *, vocabulary: int) -> Backend | None:
    """Return the backend, or for ``auto`` the first one whose library can be imported; None if there is none."""
    for candidate in MODELS if name == "auto" else (name,):
        try:
            return Backend(candidate, MODELS[candidate](vocabulary, SEED))
        except (ImportError, OSError):  # OSError: a shared library of PyTorch is missing
            continue
    return None


def config(backend: Backend) -> dict[str, object]:
    """Return the run's configuration."""
    return {
        "backend": backend.name,
        "parameters": backend.model.size,
        "context": backend.model.context,
        "batch": backend.model.batch,
        "peak_learning_rate": PEAK_LEARNING_RATE,
        "seed": SEED,
    }


def limit_threads() -> None:
    """Limit numpy to one core, unless the user has set otherwise; its libraries read the variables when they load."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m trackside_daemon.demo.train", description=DESCRIPTION)
    parser.add_argument("--steps", type=positive, metavar="N", help="steps to train (default: until interrupted)")
    parser.add_argument("--backend", choices=("auto", *MODELS), default="auto", help="default: torch, else numpy")
    parser.add_argument("--trouble", choices=("", *TROUBLES), default="", help="trouble that SIGUSR1 starts")
    parser.add_argument("--meet", default="", metavar="FILE", help="file through which the ranks find each other")
    parser.add_argument("--verbose", action="store_true", help="print the losses after each evaluation")
    return parser


def positive(argument: str) -> int:
    """Parse a whole number above 0."""
    number = int(argument)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
