"""Train a small language model with everything of trackside on, and print what its own clocks show, as JSON.

    trackside run -- python bench/gpu_report/train.py --seconds 70 --device cuda

Sequences count up in steps of their own, with noise. Loader workers, bf16, clipping, evaluation and checkpoints are as in a real
training.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import trackside

WORDS, NOISE, STRIDES = 256, 0.1, 8
WARM_UP = 100
EVALUATE_EVERY = 200
CHECKPOINT_SECONDS = 20.0


class Size(NamedTuple):
    """The size of the model and of a batch."""

    width: int
    layers: int
    length: int
    batch: int


LARGE, SMALL = Size(768, 6, 512, 32), Size(32, 1, 16, 4)


class Sequences(torch.utils.data.Dataset):  # type: ignore[misc]
    """Endlessly many sequences [length + 1] of words."""

    def __init__(self, length: int) -> None:
        self._places = torch.arange(length + 1)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, number: int) -> torch.Tensor:
        chance = torch.Generator().manual_seed(number)
        first, stride = torch.randint(WORDS, (2,), generator=chance).tolist()
        noise = torch.randint(WORDS, self._places.shape, generator=chance)
        noisy = torch.rand(self._places.shape, generator=chance) < NOISE
        return torch.where(noisy, noise, (first + (1 + stride % STRIDES) * self._places) % WORDS)


class Language(nn.Module):  # type: ignore[misc]
    """A causal transformer over words."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, size.width), nn.Embedding(size.length, size.width)
        layer = nn.TransformerEncoderLayer(size.width, 4, 4 * size.width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.head = nn.Linear(size.width, WORDS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(size.length))

    def forward(self, words: torch.Tensor) -> Any:
        """Return logits of the next word [batch, length, WORDS]."""
        hidden = self.words(words) + self.places.weight
        return self.head(self.layers(hidden, mask=self.mask, is_causal=True))


class Training:
    """A model and what trains it.

    Attributes:
        durations: Seconds of each step, without evaluation and checkpoints.
        waits: Seconds that each step waited for its batch.
        losses: The loss at each evaluation.
    """

    def __init__(self, size: Size, device: str) -> None:
        torch.manual_seed(1)
        self.durations: list[float] = []
        self.waits: list[float] = []
        self.losses: list[float] = []
        self._device = device
        self._model = Language(size).to(device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=3e-4)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
        self._run = trackside.init("gpu-report", config={**size._asdict(), "device": device}, tags=["gpu-report"])
        self._run.watch(self._model, self._optimizer)
        self._loader = torch.utils.data.DataLoader(
            Sequences(size.length), size.batch, shuffle=True, num_workers=2, pin_memory=device == "cuda"
        )
        self._tokens = size.batch * size.length

    def run(self, seconds: float, directory: Path) -> None:
        """Train for so many seconds."""
        begun = saved = asked = time.perf_counter()
        for step, batch in enumerate(self._run.data(self._loader)):
            self.waits.append(time.perf_counter() - asked)
            loss = self._step(batch)
            rate = self._schedule.get_last_lr()[0]
            self._run.push(step=step, loss=loss, learning_rate=rate, tokens=self._tokens)
            self.durations.append(time.perf_counter() - asked)
            if step % EVALUATE_EVERY == 0:
                self._evaluate(step, batch)
            if time.perf_counter() - saved >= CHECKPOINT_SECONDS:
                with self._run.phase("checkpoint"):
                    torch.save(self._model.state_dict(), directory / "model.pt")
                saved = time.perf_counter()
            if time.perf_counter() - begun >= seconds:
                break
            asked = time.perf_counter()
        self._run.finish()

    def _loss(self, batch: torch.Tensor) -> Any:
        words = batch.to(self._device, non_blocking=True)
        with torch.autocast(self._device, torch.bfloat16):
            logits = self._model(words[:, :-1])
        return nn.functional.cross_entropy(logits.float().transpose(1, 2), words[:, 1:])

    def _step(self, batch: torch.Tensor) -> Any:
        loss = self._loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def _evaluate(self, step: int, batch: torch.Tensor) -> None:
        with self._run.phase("eval"), torch.no_grad():
            loss = float(self._loss(batch))
        self.losses.append(loss)
        self._run.push(step=step, eval_loss=loss)


def main() -> None:
    """Train with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=70.0)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    training = Training(LARGE if options.device == "cuda" else SMALL, options.device)
    with tempfile.TemporaryDirectory() as directory:
        training.run(options.seconds, Path(directory))
    print(json.dumps({"durations": training.durations, "waits": training.waits, "losses": training.losses}))


if __name__ == "__main__":
    main()
