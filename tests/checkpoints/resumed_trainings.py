"""A small real training that is interrupted and resumed, rightly or with a planted fault."""

from __future__ import annotations

import copy
import math
import random
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FAULTS = ("optimizer", "scheduler", "order", "weights")
"""What a resume does not restore."""

CONTEXT = 16
SAMPLES = 4000
BATCH = 32
WARM_UP = 40
STEPS = 1200
AFTER = 40
"""Steps of a resumed training."""

KEYS = ("train/loss", "train/grad_norm", "train/lr", "train/update_ratio")

Row = tuple[int, tuple[float, ...]]
"""Step and the values of `KEYS`."""


@cache
def text() -> tuple[Tensor, int]:
    """Return a text as numbers of its characters, and how many there are: the documentation of Python."""
    letters = "\n\n".join(topics.values()).lower()
    codes = {letter: code for code, letter in enumerate(sorted(set(letters)))}
    return torch.tensor([codes[letter] for letter in letters]), len(codes)


class Training:
    """A model that foresees the next character, with AdamW, warm-up and cosine, and shuffled samples.

    Args:
        seed: Decides weights, samples and their order.
    """

    def __init__(self, seed: int) -> None:
        letters, count = text()
        torch.manual_seed(seed)
        self._seed = seed
        starts = torch.randint(0, len(letters) - CONTEXT - 1, (SAMPLES, 1))
        self._inputs, self._targets = letters[starts + torch.arange(CONTEXT)], letters[starts[:, 0] + CONTEXT]
        self.model = nn.Sequential(
            nn.Embedding(count, 24), nn.Flatten(), nn.Linear(24 * CONTEXT, 128), nn.GELU(), nn.Linear(128, count)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda at: min(1, (at + 1) / WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * min(1, at / STEPS)))
        )

    def _batch(self, step: int) -> Tensor:
        epoch, place = divmod(step, SAMPLES // BATCH)
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self._seed * 1000 + epoch))
        return order[place * BATCH : (place + 1) * BATCH]

    def step(self, number: int) -> tuple[float, ...]:
        """Make a step with the batch of this number, and return the values of `KEYS`."""
        batch = self._batch(number)
        loss = functional.cross_entropy(self.model(self._inputs[batch]), self._targets[batch])
        self.optimizer.zero_grad()
        loss.backward()
        weights = list(self.model.parameters())
        norm = nn.utils.clip_grad_norm_(weights, 1.0)
        before = [weight.detach().clone() for weight in weights]
        self.optimizer.step()
        moved = [after.detach() - weight for after, weight in zip(weights, before, strict=True)]
        ratio = nn.utils.get_total_norm(moved) / nn.utils.get_total_norm(before)
        rate = self.optimizer.param_groups[0]["lr"]
        self.scheduler.step()
        return loss.item(), norm.item(), rate, ratio.item()

    def state(self) -> dict[str, Any]:
        """Return a checkpoint."""
        parts = {"weights": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return copy.deepcopy({name: part.state_dict() for name, part in parts.items()})

    def load(self, state: dict[str, Any], fault: str) -> None:
        """Load a checkpoint but for what the fault leaves out."""
        if fault != "weights":
            self.model.load_state_dict(state["weights"])
            if fault != "optimizer":
                self.optimizer.load_state_dict(state["optimizer"])
        if fault == "scheduler":
            self.optimizer.param_groups[0]["lr"] = self.scheduler.get_last_lr()[0]
            return
        self.scheduler.load_state_dict(state["scheduler"])
        self.optimizer.param_groups[0]["lr"] = self.scheduler.get_last_lr()[0]


@dataclass
class Interrupted:
    """A training that ended some steps after its last checkpoint.

    Attributes:
        seed: Of the training.
        saved: The step of the checkpoint.
        rows: The steps so far.
        state: The checkpoint.
    """

    seed: int
    saved: int
    rows: list[Row]
    state: dict[str, Any]

    def resume(self, fault: str) -> list[Row]:
        """Return the first steps of a training that goes on from the checkpoint; *fault* is empty or one of `FAULTS`."""
        training = Training(self.seed)
        training.load(self.state, fault)
        skipped = 0 if fault == "order" else self.saved
        return [(self.saved + step + 1, training.step(skipped + step)) for step in range(AFTER)]


def interrupted(seed: int) -> Interrupted:
    """Train, and end 12 to 40 steps after a checkpoint."""
    choose = random.Random(seed)
    saved, more = choose.randrange(120, 420), choose.randrange(12, 40)
    training = Training(seed)
    rows = [(step + 1, training.step(step)) for step in range(saved)]
    state = training.state()
    rows += [(step + 1, training.step(step)) for step in range(saved, saved + more)]
    return Interrupted(seed, saved, rows, state)
