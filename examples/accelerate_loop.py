"""A character model with Accelerate, trained on Python's help pages, in one process or several.

It trains the same without a daemon. To see the training, start a daemon first, in another terminal::

    trackside daemon
    python examples/accelerate_loop.py --steps 3000
    torchrun --nproc-per-node 2 examples/accelerate_loop.py --steps 3000

`--nan-at 150` makes the loss of that step NaN, so that you can see the alert.
"""

from __future__ import annotations

import argparse
from pydoc_data.topics import topics
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from trackside.integrations.accelerate import TracksideTracker  # 1 of 2

CONTEXT = 16  # characters of input
BATCH = 128
ACCUMULATED = 2  # batches per step


def load_text() -> tuple[TensorDataset, int]:
    """Return windows of the text, as CONTEXT characters and the next one, and the size of the vocabulary."""
    text = "\n\n".join(topics.values()).lower()[:200_000]
    code = {character: index for index, character in enumerate(sorted(set(text)))}
    windows = torch.tensor([code[character] for character in text]).unfold(0, CONTEXT + 1, 1)
    return TensorDataset(windows[:, :-1], windows[:, -1]), len(code)


def build_model(vocabulary: int) -> nn.Module:
    """Return a model from characters [BATCH, CONTEXT] to logits of the next character [BATCH, vocabulary]."""
    return nn.Sequential(
        nn.Embedding(vocabulary, 24),
        nn.Flatten(),
        nn.Linear(24 * CONTEXT, 128),
        nn.GELU(),
        nn.Linear(128, vocabulary),
    )


def train(accelerator: Accelerator, options: argparse.Namespace) -> None:
    data, vocabulary = load_text()
    made = build_model(vocabulary)
    model, optimizer, loader = accelerator.prepare(
        made, torch.optim.AdamW(made.parameters(), lr=3e-3), DataLoader(data, BATCH, shuffle=True, drop_last=True)
    )
    step = 0
    while step < options.steps:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(x), y)
                if step + 1 == options.nan_at:
                    loss = loss + torch.nan
                accelerator.backward(loss)
                norm: Any = None
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            step += 1
            values = {"loss": loss.detach(), "grad_norm": norm, "samples": BATCH * ACCUMULATED}
            accelerator.log(values, step=step)
            if step % 100 == 0:
                accelerator.print(f"step {step}  loss {loss.item():.6f}")
            if step >= options.steps:
                break
    if options.folder:
        accelerator.save_state(options.folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small character model with Accelerate.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="directory of the checkpoint; without it, none is written")
    parser.add_argument("--nan-at", type=int, default=0, metavar="STEP", help="step whose loss becomes NaN")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=ACCUMULATED,
        log_with=TracksideTracker(total_steps=options.steps),  # 2 of 2
    )
    accelerator.init_trackers("characters", config=vars(options))
    train(accelerator, options)
    accelerator.end_training()


if __name__ == "__main__":
    main()
