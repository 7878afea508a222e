"""``python -m trackside_daemon.demo.simulated``: a rank with the timing of a training, which computes nothing.

The rest is real: the ranks wait for each other, the data loader has workers, and the troubles really happen. The loss follows a curve, and reacts to
unusual text.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import time
from itertools import chain, count, repeat
from random import Random
from time import monotonic_ns
from typing import TYPE_CHECKING

import trackside
from trackside.wire import Device, Memory
from trackside_daemon.demo import training_text
from trackside_daemon.demo.stop_signal import StopRequest, stop_on_signals
from trackside_daemon.demo.train import CYCLE_STEPS, PEAK_LEARNING_RATE, Barrier, learning_rate, parser
from trackside_daemon.demo.troubles import TroubleMaker
from trackside_daemon.linux.signals import end_with_parent
from trackside_daemon.nvml.simulation.simulate import uuid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside.run import Run
    from trackside_daemon.demo.training_text import Text

# Seconds per step.
FORWARD = 0.025
BACKWARD = 0.05
OPTIMIZER = 0.01

FIRST_LOSS = 4.1  # loss of a guess among some 60 characters, in nats per character
LAST_LOSS = 1.1  # lower bound of the loss, in nats per character
DECAY_SUM = 0.3  # sum of learning rates after which much of the decline is over: about 150 steps

NOISE = 0.01
DEVICE_FLOPS = 989e12  # peak of an H100 in bfloat16, from its data sheet


class SimulatedModel:
    """Loss curve and timing of a language model on an H100.

    The loss falls by a power law of the sum of learning rates. It is higher for batches with rarer characters.
    A learning rate above 1 makes the weights grow without bounds, and the loss grows with their square.

    Attributes:
        random: Source of noise.
        context: Characters that the last prediction of a window uses; a window has one more.
        batch: Windows per step.
        tokens: Predictions per step.
        size: Number of parameters.
    """

    context = 2048
    batch = 8
    tokens = batch * context
    size = 350_000_000

    def __init__(self, corpus: Text, random: Random) -> None:
        codes = range(len(corpus.vocabulary))
        self.random = random
        self._information = [-math.log((corpus.train.count(code) + 1) / len(corpus.train)) for code in codes]
        self._mean_information_of_text = self._mean_information([corpus.train])
        self._learning_rate_sum = 0.0
        self._weights = 1.0

    def step(self, windows: Sequence[bytes], learning_rate: float) -> tuple[float, float]:
        """Sleep for the time of a step; return the loss in nats per character, and the unclipped gradient norm."""
        self._sleep(FORWARD)
        loss = self._loss(windows)
        with trackside.phase("backward"):
            self._sleep(BACKWARD)
            norm = loss / LAST_LOSS * 0.3 * self.random.lognormvariate(0, 0.1)
        with trackside.phase("optimizer"):
            self._sleep(OPTIMIZER)
            self._learning_rate_sum += learning_rate
            self._weights *= max(1.0, learning_rate)
        return loss, norm

    def loss(self, windows: Sequence[bytes]) -> float:
        """Sleep for the time of a forward pass; return the loss in nats per character."""
        self._sleep(FORWARD / 2)
        return self._loss(windows)

    def _loss(self, windows: Sequence[bytes]) -> float:
        curve = LAST_LOSS + (FIRST_LOSS - LAST_LOSS) * math.pow(1 + self._learning_rate_sum / DECAY_SUM, -0.7)
        surprise = self._mean_information(windows) - self._mean_information_of_text
        return (curve * self.random.gauss(1, NOISE) + max(0.0, surprise)) * self._weights * self._weights

    def _mean_information(self, windows: Sequence[bytes]) -> float:
        """Return the mean information of the characters, in nats, from their frequencies in the text."""
        codes = b"".join(windows)
        return sum(codes.count(code) * information for code, information in enumerate(self._information)) / len(codes)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds * self.random.lognormvariate(0, 0.05))


def accuracy(loss: float) -> float:
    """Return about the fraction of characters that a model with this loss predicts."""
    return math.exp(-0.4 * loss)


def utilization(model: SimulatedModel, seconds: float) -> float:
    """Return the model FLOPs utilization (MFU) of a step: six operations per parameter and token, over the peak."""
    return 6 * model.size * model.tokens / seconds / DEVICE_FLOPS


WORKER_NAME = b"pt_data_worker"
_PR_SET_NAME = 15

_libc = ctypes.CDLL(None)

PHASES = {"forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}

BUSY = 0.95  # fraction of a phase's time on the host; the rest is kernel launches
STATE_BYTES = 18  # bytes per parameter in mixed precision: the parameter, its gradient and Adam's moments
ACTIVATION_BYTES = 2**21  # bytes per token
RESERVED = 1.15  # memory that PyTorch reserves, divided by the peak of allocated memory
DESCRIPTION = "Simulate the timing of a training's steps, and push each step to trackside."
TOTAL_STEPS = 100_000  # total that a demo without end announces: about three hours
EPOCH_STEPS = 50
EVAL_STEPS = 50
CHECKPOINT_STEPS = 200
EVAL_BATCHES = 8
LOAD_SECONDS = 0.004
FIRST_SECONDS = 0.2
CHECKPOINT_SECONDS = 0.5
CHECKPOINT_BYTES = 12  # bytes per parameter: the parameter and Adam's two moments in float32
WORKERS = 2


def main(arguments: list[str] | None = None) -> int:
    """Train as the rank in the environment; return the exit status."""
    options = parser("simulated", DESCRIPTION).parse_args(arguments)
    stop = stop_on_signals()
    rank = int(os.environ["RANK"])
    ranks = int(os.environ["WORLD_SIZE"])
    workers = Workers(WORKERS)  # before the client starts its thread
    corpus = training_text.load()
    random = Random(rank)  # noqa: S311 - batches, not secrets
    model = SimulatedModel(corpus, random)
    total = options.steps or TOTAL_STEPS
    run = trackside.init(
        "demo",
        total_steps=total,
        config=config(model),
        tags=("demo", "simulated"),
        parameters=model.size,
        peak_flops=DEVICE_FLOPS,
    )
    trouble = TroubleMaker(options.trouble, model, len(corpus.vocabulary), random)
    gpu = SimulatedRankGpu(run, int(os.environ.get("LOCAL_RANK", rank)), model)
    barrier = Barrier(options.meet, rank, ranks)
    train(model, corpus, trouble, barrier, steps=options.steps, stop=stop, gpu=gpu)
    workers.end()
    trackside.finish(status="stopped" if stop.is_set() else "finished")
    return 0


def train(
    model: SimulatedModel,
    corpus: training_text.Text,
    trouble: TroubleMaker,
    barrier: Barrier,
    *,
    steps: int | None,
    stop: StopRequest,
    gpu: SimulatedRankGpu | None = None,
) -> None:
    """Train in step with the other ranks, until *steps* are done or *stop* is set."""
    loader = chain.from_iterable(repeat(trackside.data(Loader(model, corpus.train))))
    held_out = next(iter(Loader(model, corpus.validation)))
    start = time.monotonic()
    for step in range(1, steps + 1) if steps else count(1):
        if stop.is_set():
            break
        batch, rate = trouble.before_step(next(loader), learning_rate(step, cycle=steps or CYCLE_STEPS))
        with trackside.phase("forward"):
            loss, grad_norm = model.step(batch, rate)
            trouble.extra_work(batch)
        with trackside.phase("sync"):
            if not barrier.wait(stop):
                break
        values = {
            "loss": loss,
            "accuracy": accuracy(loss),
            "grad_norm": grad_norm,
            "learning_rate": rate,
            "epoch": step / EPOCH_STEPS,
            "samples": model.batch,
            "tokens": model.tokens,
            "train/mfu": utilization(model, time.monotonic() - start),
        }
        trackside.push(values | trouble.extra_values(), step=step)
        if gpu is not None:
            gpu.step()
        if step % EVAL_STEPS == 0:
            evaluate(model, held_out, step)
        if step % CHECKPOINT_STEPS == 0:
            save(model, step)
        start = time.monotonic()


def evaluate(model: SimulatedModel, held_out: list[bytes], step: int) -> None:
    """Push the loss on text that is not in the training set."""
    with trackside.phase("eval"):
        loss = sum(model.loss(held_out) for _ in range(EVAL_BATCHES)) / EVAL_BATCHES
    trackside.push({"eval/loss": loss, "eval/accuracy": accuracy(loss)}, step=step)


def save(model: SimulatedModel, step: int) -> None:
    """Sleep for the time of a checkpoint, and push its event."""
    with trackside.phase("checkpoint"):
        time.sleep(CHECKPOINT_SECONDS)
    trackside.event("checkpoint", after=step, bytes=CHECKPOINT_BYTES * model.size)


class Loader:
    """Data loader of one epoch: each batch takes a little time, the first one more, as when workers start."""

    def __init__(self, model: SimulatedModel, codes: bytes) -> None:
        self._model = model
        self._codes = codes

    def __iter__(self) -> Iterator[list[bytes]]:
        model = self._model
        time.sleep(FIRST_SECONDS)
        for _ in range(EPOCH_STEPS):
            time.sleep(model.random.lognormvariate(0, 0.3) * LOAD_SECONDS)
            yield training_text.windows(self._codes, count=model.batch, length=model.context + 1, random=model.random)


def config(model: SimulatedModel) -> dict[str, object]:
    """Return the run's configuration."""
    return {
        "backend": "simulated",
        "parameters": model.size,
        "context": model.context,
        "batch": model.batch,
        "peak_learning_rate": PEAK_LEARNING_RATE,
        "workers": WORKERS,
    }


class SimulatedRankGpu:
    """Simulated GPU of one rank.

    Args:
        run: Run to report the measurements to.
        index: Index of the GPU on this machine.
        model: Model that it trains.
    """

    def __init__(self, run: Run, index: int, model: SimulatedModel) -> None:
        self._run = run
        self._uuid = uuid(index)
        self._random = model.random
        self._state = STATE_BYTES * model.size
        self._activations = ACTIVATION_BYTES * model.tokens
        self._peak = 0

    def step(self) -> None:
        """Report the measurements of one step."""
        allocated = self._state + round(self._activations * self._random.uniform(0.9, 1.0))
        self._peak = max(self._peak, allocated)
        phases = {phase: BUSY * seconds * self._random.uniform(0.98, 1.02) for phase, seconds in PHASES.items()}
        memory = {self._uuid: Memory(self._state, round(RESERVED * self._peak), self._peak)}
        if self._run.is_open:
            self._run.queue.append(monotonic_ns(), Device(phases=phases, memory=memory))  # as a watched model does


class Workers:
    """Forked processes that end with this one, however it ends.

    Fork them before the process starts a thread: a fork copies only the thread that forks.
    """

    def __init__(self, count: int) -> None:
        self._pids = [_fork() for _ in range(count)]

    def end(self) -> None:
        """End them, and wait until they have ended."""
        for pid in self._pids:
            os.kill(pid, signal.SIGTERM)
        for pid in self._pids:
            os.waitpid(pid, 0)


def _fork() -> int:
    """Return a worker's pid; in the worker itself, never return."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    try:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # status 0, like a real worker at its end
        _libc.prctl(_PR_SET_NAME, WORKER_NAME)
        end_with_parent(parent, signal.SIGTERM)
        while True:
            signal.pause()
    finally:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
