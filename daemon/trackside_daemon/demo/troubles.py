"""Troubles of the demo's training, which really happen: ``trackside demo --trouble``.

The supervisor sends SIGUSR1 to the rank that is to go wrong, and so has the exact time.
"""

import resource
import signal
from collections.abc import Mapping
from ctypes import string_at
from pathlib import Path
from random import Random
from threading import Lock
from typing import NamedTuple, Protocol

from trackside_daemon.model.text import byte_size

# A learning rate of 3e-3 without its minus: weights grow by hundreds per step until they overflow.
BAD_LEARNING_RATE = 3e3

RANDOM_BATCHES = 5
LEAK_BYTES = 2**18  # bytes leaked per step
MAX_LEAK_BYTES = 2**30  # bytes leaked in total, so that an unattended demo does not fill the machine's memory

EXTRA_PASSES = 4
PAGE_BYTES = resource.getpagesize()


class DemoTrouble(NamedTuple):
    """A way in which the training goes wrong."""

    alerts: tuple[str, ...]  # alerts to expect: at least one of them
    description: str  # text for the user; ``{last}`` is the rank that goes wrong
    ranks: int = 1  # minimum of training processes; the last one goes wrong
    settings: Mapping[str, str] = {}  # environment variables for the daemon that shorten the wait for the alert
    note: str = ""  # text for the user about these settings


TROUBLES = {
    "nan": DemoTrouble(("NonFinite",), "the learning rate is 3e3 instead of 3e-3, until the loss overflows"),
    "spike": DemoTrouble(("LossSpike",), f"{RANDOM_BATCHES} batches are random characters instead of text"),
    "stall": DemoTrouble(
        ("TrainingStalled", "RankSilent"),
        "rank {last} waits forever for a lock, and all other ranks wait for rank {last}",
        ranks=2,
        settings={"TRACKSIDE_ALERTS__STALL_AFTER": "10"},
        note="Here a run counts as stalled after 10 s; by default, after at least a minute (alerts.stall-after).",
    ),
    "leak": DemoTrouble(
        ("HostMemoryLeak",),
        f"the training leaks {byte_size(LEAK_BYTES)} per step, up to {byte_size(MAX_LEAK_BYTES)}",
        note="The training pushes its memory with each step (process_resident_bytes), so you need not wait a quarter of an hour.",
    ),
    "straggler": DemoTrouble(
        ("StragglerRank",),
        f"rank {{last}} computes the loss of each batch {EXTRA_PASSES} more times, and all other ranks wait for it",
        ranks=2,
        settings={"TRACKSIDE_ALERTS__STRAGGLER_WINDOW": "0.5"},
        note="A straggler is slow in 30 of 50 windows. A window is 1 s long here, and 10 s by default (alerts.straggler-window).",
    ),
    "crash": DemoTrouble(("TrainingProcessDied",), "the training reads address 0 and dies of SIGSEGV"),
}


class HasLoss(Protocol):
    """Part of a model that the troubles use."""

    def loss(self, windows: list[bytes]) -> float:
        """Return the cross-entropy, without learning."""
        ...


class TroubleMaker:
    """Makes the training of this process go wrong from SIGUSR1 on.

    Args:
        name: A name of `TROUBLES`; empty for no trouble.
        model: Model in training.
        vocabulary: Number of character codes.
        random: Source of random characters.
    """

    def __init__(self, name: str, model: HasLoss, vocabulary: int, random: Random) -> None:
        self._name = name
        self._model = model
        self._vocabulary = vocabulary
        self._random = random
        self._begun = False
        self._random_batches_left = RANDOM_BATCHES
        self._leaked: list[bytes] = []
        if name:
            signal.signal(signal.SIGUSR1, self._begin)

    def _begin(self, *_: object) -> None:
        self._begun = True

    def before_step(self, batch: list[bytes], learning_rate: float) -> tuple[list[bytes], float]:
        """Return the batch and learning rate for the next step; some troubles never return."""
        if self._begun:
            if self._name == "nan":
                return batch, BAD_LEARNING_RATE
            if self._name == "spike" and self._random_batches_left:
                self._random_batches_left -= 1
                codes = range(self._vocabulary)
                return [bytes(self._random.choices(codes, k=len(window))) for window in batch], learning_rate
            if self._name == "stall":
                hang()
            if self._name == "crash":
                crash()
            if self._name == "leak" and len(self._leaked) * LEAK_BYTES < MAX_LEAK_BYTES:
                self._leaked.append(b"\xff" * LEAK_BYTES)
        return batch, learning_rate

    def extra_work(self, batch: list[bytes]) -> None:
        """Do the additional work of a straggler."""
        if self._begun and self._name == "straggler":
            for _ in range(EXTRA_PASSES):
                self._model.loss(batch)

    def extra_values(self) -> dict[str, float]:
        """Return values to push with the step."""
        if self._name != "leak":
            return {}
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return {"process_resident_bytes": float(pages) * PAGE_BYTES}


def hang() -> None:
    """Wait for a lock that this thread holds; only a signal ends that."""
    # The handler of `stop_on_signals` only sets a flag, which this rank no longer reads.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    lock = Lock()
    lock.acquire()
    lock.acquire()


def crash() -> None:
    """Die of SIGSEGV, without a core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    string_at(0)
