"""``python -m trackside_daemon.demo.train``: a real training that uses trackside as any user's script would.

It learns to write Python's help pages, one character after the other, for ``--steps`` steps or until it is interrupted.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from itertools import count
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trackside
from trackside_daemon.demo import model_numpy, model_torch, training_text
from trackside_daemon.demo.stop_signal import Stop, stopped_by_signals
from trackside_daemon.demo.troubles import TROUBLES, Ailing, Meeting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DESCRIPTION = "Learns to write Python's help pages, one character after the other, and tells trackside of each step."

SEED = 0
PEAK_LEARNING_RATE = 3e-3
CYCLE_STEPS = 2000
EVAL_STEPS = 100
EVAL_WINDOWS = 128


class Model(Protocol):
    """What both backends offer.

    Attributes:
        context: Characters that a prediction sees; a window has one more, the last one to be predicted.
        batch: Windows in a step.
        tokens: Predictions in a step.
        size: Parameters.
    """

    context: int
    batch: int
    tokens: int
    size: int

    def step(self, windows: Sequence[bytes], learning_rate: float) -> tuple[float, float]:
        """Learn from a batch; its loss in nats a character, and the gradient's norm before clipping."""
        ...

    def loss(self, windows: Sequence[bytes]) -> float:
        """Cross-entropy in nats a character; nothing is learned."""
        ...


MODELS: dict[str, Callable[[int, int], Model]] = {"torch": model_torch.Model, "numpy": model_numpy.Model}
NEEDED = {
    "auto": "the training needs numpy or PyTorch: pip install 'trackside[demo]'",
    "numpy": "numpy cannot be imported: pip install 'trackside[demo]'",
    "torch": "PyTorch cannot be imported: pip install 'trackside[torch]'",
}


class Chosen(NamedTuple):
    """A model and the name of the library that it runs on."""

    backend: str
    model: Model


def main(arguments: list[str] | None = None) -> int:
    """Train; the exit status."""
    options = parser().parse_args(arguments)
    stop = stopped_by_signals()
    limit_threads()
    corpus = training_text.load()
    chosen = choose(options.backend, vocabulary=len(corpus.vocabulary))
    if chosen is None:
        sys.stderr.write(f"trackside demo: {NEEDED[options.backend]}\n")
        return 2
    trackside.init("demo", total_steps=options.steps, config=config(chosen))
    meeting = Meeting(chosen.backend, options.meet)
    ailing = Ailing(options.trouble, chosen.model, len(corpus.vocabulary), Random(SEED))  # noqa: S311 - batches, not secrets
    train(chosen.model, corpus, ailing, meeting, steps=options.steps, stop=stop, verbose=options.verbose)
    meeting.end()
    trackside.finish(status="stopped" if stop.is_set() else "finished")
    return 0


def train(
    model: Model,
    corpus: training_text.Text,
    ailing: Ailing,
    meeting: Meeting,
    *,
    steps: int | None,
    stop: Stop,
    verbose: bool,
) -> None:
    """Step after step, until *steps* are done or *stop* is set."""
    random = Random(SEED)  # noqa: S311 - batches, not secrets
    length = model.context + 1
    held_out = training_text.windows(corpus.validation, count=EVAL_WINDOWS, length=length, random=random)
    for step in range(1, steps + 1) if steps else count(1):
        if stop.is_set():
            break
        rate = learning_rate(step, cycle=steps or CYCLE_STEPS)
        batch = training_text.windows(corpus.train, count=model.batch, length=length, random=random)
        batch, rate = ailing.spoil(batch, rate)
        with trackside.phase("forward"):  # and backward: all of a step that is this rank's own
            loss, grad_norm = model.step(batch, rate)
            ailing.work(batch)
        try:
            loss = meeting.mean(loss)
        except RuntimeError:
            if stop.is_set():
                break  # the others have stopped too
            raise
        values = {"loss": loss, "grad_norm": grad_norm, "learning_rate": rate, "tokens": model.tokens}
        trackside.push(values | ailing.values(), step=step)
        if step % EVAL_STEPS == 0:
            with trackside.phase("eval"):
                eval_loss = model.loss(held_out)
            trackside.push({"eval/loss": eval_loss}, step=step)
            if verbose:
                sys.stdout.write(f"step {step}  loss {loss:.3f}  eval loss {eval_loss:.3f}\n")
                sys.stdout.flush()


def learning_rate(step: int, *, cycle: int) -> float:
    """A linear warm-up, then cosines of *cycle* steps from the peak to a tenth of it, each a fresh start."""
    warmup = min(1.0, step / min(100.0, cycle / 10))
    cosine = 0.55 + 0.45 * math.cos(math.pi * ((step - 1) % cycle) / cycle)
    return PEAK_LEARNING_RATE * min(warmup, cosine)


def choose(backend: str, *, vocabulary: int) -> Chosen | None:
    """The first model asked for whose library can be imported."""
    for name in MODELS if backend == "auto" else (backend,):
        try:
            return Chosen(name, MODELS[name](vocabulary, SEED))
        except (ImportError, OSError):  # OSError: a library of PyTorch's own is missing
            continue
    return None


def config(chosen: Chosen) -> dict[str, object]:
    """What is worth knowing of the run later."""
    return {
        "backend": chosen.backend,
        "parameters": chosen.model.size,
        "context": chosen.model.context,
        "batch": chosen.model.batch,
        "peak_learning_rate": PEAK_LEARNING_RATE,
        "seed": SEED,
    }


def limit_threads() -> None:
    """Hold numpy to one core, unless the user says otherwise; the libraries beneath it read this as they load."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m trackside_daemon.demo.train", description=DESCRIPTION)
    parser.add_argument("--steps", type=positive, metavar="N", help="steps to train (default: until interrupted)")
    parser.add_argument("--backend", choices=("auto", *MODELS), default="auto", help="default: torch, else numpy")
    parser.add_argument("--trouble", choices=("", *TROUBLES), default="", help="what goes wrong after SIGUSR1")
    parser.add_argument("--meet", default="", metavar="FILE", help="where several ranks find each other")
    parser.add_argument("--verbose", action="store_true", help="print the losses now and then")
    return parser


def positive(argument: str) -> int:
    """A whole number above 0."""
    number = int(argument)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
