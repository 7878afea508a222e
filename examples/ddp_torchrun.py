"""The character model of pytorch_loop.py on several ranks with DistributedDataParallel: NCCL with GPUs, otherwise gloo.

torchrun starts it, and restarts it from the last checkpoint when a rank dies. trackside shows one run with two
attempts::

    trackside daemon
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # else restarted ranks may read addresses of dead ones (PyTorch 2.13)
    torchrun --standalone --nproc-per-node=2 --max-restarts=1 examples/ddp_torchrun.py --checkpoints checkpoints

Two lines are enough. The lines marked `more` record the waits for data, save and load checkpoints, and end the run.
"""

from __future__ import annotations

import argparse
import math
import os
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import trackside  # 1 of 2

CONTEXT = 16  # characters of input


class Characters(Dataset[tuple[torch.Tensor, torch.Tensor]]):  # type: ignore[misc]  # torch may be missing where types are checked
    """Samples from Python's help pages: the codes of CONTEXT characters [CONTEXT], and of the next character []."""

    def __init__(self) -> None:
        text = "\n\n".join(topics.values()).lower()
        codes = {character: code for code, character in enumerate(sorted(set(text)))}
        self.vocabulary = len(codes)
        self._text = torch.tensor([codes[character] for character in text])

    def __len__(self) -> int:
        return len(self._text) - CONTEXT

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._text[place : place + CONTEXT], self._text[place + CONTEXT]


def build_model(vocabulary: int) -> nn.Module:
    """Return a model from characters [batch, CONTEXT] to logits of the next character [batch, vocabulary]."""
    return nn.Sequential(
        nn.Embedding(vocabulary, 24),
        nn.Flatten(),
        nn.Linear(24 * CONTEXT, 256),
        nn.GELU(),
        nn.Linear(256, vocabulary),
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small character model on several ranks.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=128, help="samples per step and rank")
    parser.add_argument("--workers", type=int, default=0, help="data loader workers of each rank")
    parser.add_argument("--checkpoints", type=Path, help="directory of the checkpoints; without it, none is written")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--nan-at", type=int, help="step whose loss becomes NaN, so that you can see the alert")
    return parser.parse_args()


def main() -> None:
    options = parse()
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")

    torch.manual_seed(0)
    characters = Characters()
    sampler: DistributedSampler[Any] = DistributedSampler(characters)
    loader = DataLoader(characters, options.batch, sampler=sampler, num_workers=options.workers, drop_last=True)
    model = DistributedDataParallel(build_model(characters.vocabulary).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    training = {"model": model, "optimizer": optimizer}
    checkpoints = trackside.Checkpoints(options.checkpoints, keep=2) if options.checkpoints else None  # more
    if checkpoints is not None:
        checkpoints.load(training)  # the newest intact one, on all ranks
    step = checkpoints.step if checkpoints is not None else 0

    while step < options.steps:
        epoch, trained = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        batches = trackside.data(loader)  # more
        for x, y in islice(batches, trained, trained + options.steps - step):  # without those before the checkpoint
            step += 1
            loss = cross_entropy(model(x.to(device)), y.to(device))
            if step == options.nan_at:
                loss = loss * math.nan
            optimizer.zero_grad()
            loss.backward()
            norm = clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            trackside.push(step=step, loss=loss, grad_norm=norm, epoch=epoch, samples=len(x))  # 2 of 2
            if rank == 0 and step % 50 == 0:
                print(f"step {step}  loss of rank 0 {loss.item():.4f}  gradient norm {norm.item():.4f}", flush=True)
            if checkpoints is not None and step % options.save_every == 0:
                checkpoints.save(training, step)
    # It sends the last pushes. It also gives gloo's threads the time to free their last collective: PyTorch 2.13
    # deadlocks if the model goes first.
    trackside.finish()  # more
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
