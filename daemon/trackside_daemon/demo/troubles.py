"""What can go wrong in the demo's training, for real: ``trackside demo --trouble``.

The supervisor sends SIGUSR1 to the rank that is to go wrong, and so knows when that was.
"""

from __future__ import annotations

import os
import resource
import signal
from ctypes import string_at
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trackside

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

MAD_RATE = 3e3
"""A learning rate of 3e-3 without its minus: weights grow by hundreds a step until they overflow."""

GARBAGE_STEPS = 5
LEAK_BYTES, LEAK_MOST = 2**18, 2**30
"""What is kept of each step, and in all, so that a demo that is left alone does not fill the machine."""

SLOWER = 4
PAGE_BYTES = resource.getpagesize()


class Trouble(NamedTuple):
    """One of them.

    Attributes:
        alerts: Any of them tells it.
        what: What happens, as the demo says it; ``{last}`` is the rank that goes wrong.
        ranks: Processes that train, at least; the last goes wrong.
        settings: Variables of the daemon, so that nobody waits for minutes.
        note: What they mean, as the demo says it.
    """

    alerts: tuple[str, ...]
    what: str
    ranks: int = 1
    settings: Mapping[str, str] = {}
    note: str = ""


TROUBLES = {
    "nan": Trouble(("NonFinite",), "the learning rate becomes 3e3 instead of 3e-3, until the loss overflows"),
    "spike": Trouble(("LossSpike",), f"{GARBAGE_STEPS} batches are random characters instead of text"),
    "stall": Trouble(
        ("TrainingStalled", "RankSilent"),
        "rank {last} waits for a lock that nobody gives back, and all others wait for it",
        ranks=2,
        settings={"TRACKSIDE_ALERTS__STALL_AFTER": "10"},
        note="Here a run is stalled after 10 s; otherwise after a minute at least (alerts.stall-after).",
    ),
    "leak": Trouble(
        ("HostMemoryLeak",),
        f"the training keeps {LEAK_BYTES // 1024} KiB of each step, {LEAK_MOST // 2**30} GiB in all at most",
        note="It tells its memory with each step (process_resident_bytes), so that no quarter of an hour is waited for.",
    ),
    "straggler": Trouble(
        ("StragglerRank",),
        f"rank {{last}} computes each batch's loss {SLOWER} times more, and all others wait for it",
        ranks=2,
        settings={"TRACKSIDE_ALERTS__STRAGGLER_WINDOW": "0.5"},
        note="A straggler is slow in 30 of 50 windows; they are of 1 s here, and of 10 s otherwise (alerts.straggler-window).",
    ),
    "crash": Trouble(("TrainingProcessDied",), "the training reads address 0 and dies of SIGSEGV"),
}


class Learns(Protocol):
    """What a trouble needs of the model."""

    def loss(self, windows: list[bytes]) -> float:
        """Cross-entropy; nothing is learned."""
        ...


class Ailing:
    """What goes wrong in this process from SIGUSR1 on.

    Args:
        name: One of `TROUBLES`; empty for none.
        model: That is trained.
        vocabulary: Codes that a character can have.
        random: Where garbage comes from.
    """

    def __init__(self, name: str, model: Learns, vocabulary: int, random: Random) -> None:
        self._name = name
        self._model = model
        self._vocabulary = vocabulary
        self._random = random
        self._begun = False
        self._garbage = GARBAGE_STEPS
        self._kept: list[bytes] = []
        if name:
            signal.signal(signal.SIGUSR1, self._begin)

    def _begin(self, *_: object) -> None:
        self._begun = True

    def spoil(self, batch: list[bytes], rate: float) -> tuple[list[bytes], float]:
        """The next step's batch and learning rate as the trouble has them; it may not return."""
        if self._begun:
            if self._name == "nan":
                return batch, MAD_RATE
            if self._name == "spike" and self._garbage:
                self._garbage -= 1
                codes = range(self._vocabulary)
                return [bytes(self._random.choices(codes, k=len(window))) for window in batch], rate
            if self._name == "stall":
                hang()
            if self._name == "crash":
                crash()
            if self._name == "leak" and len(self._kept) * LEAK_BYTES < LEAK_MOST:
                self._kept.append(b"\xff" * LEAK_BYTES)
        return batch, rate

    def work(self, batch: list[bytes]) -> None:
        """What a rank computes beside its step."""
        if self._begun and self._name == "straggler":
            for _ in range(SLOWER):
                self._model.loss(batch)

    def values(self) -> dict[str, float]:
        """What is pushed beside the rest."""
        if self._name != "leak":
            return {}
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return {"process_resident_bytes": float(pages) * PAGE_BYTES}


def hang() -> None:
    """Wait for a lock that this thread holds itself; only a signal ends that."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    lock = Lock()
    lock.acquire()
    lock.acquire()


def crash() -> None:
    """Read where nothing is, and leave no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    string_at(0)


class Meeting:
    """Where the ranks of a run meet after each step: a collective of PyTorch over gloo, the mean of their losses.

    Without PyTorch, or alone, nobody is waited for.

    Args:
        backend: Of the model.
        store: A file that all ranks know and that is not there yet.
    """

    def __init__(self, backend: str, store: str) -> None:
        self._ranks = int(os.environ.get("WORLD_SIZE") or 1)
        self._meets = self._ranks > 1 and backend == "torch"
        if self._meets:
            from torch import distributed

            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            rank = int(os.environ["RANK"])
            distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=self._ranks)

    def mean(self, loss: float) -> float:
        """The mean over all ranks, once all are here.

        Raises:
            RuntimeError: Another rank has ended.
        """
        if not self._meets:
            return loss
        import torch
        from torch import distributed

        total = torch.tensor([loss])
        with trackside.phase("sync"):
            distributed.all_reduce(total)
        return float(total) / self._ranks

    def end(self) -> None:
        """Nobody is met any more."""
        if self._meets:
            from torch import distributed

            distributed.destroy_process_group()
