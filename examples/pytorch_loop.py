"""A character model in PyTorch, trained on Python's help pages, with the two lines for trackside.

It trains the same without a daemon. To see the training, start a daemon first, in another terminal::

    trackside daemon
    python examples/pytorch_loop.py --steps 5000
"""

from __future__ import annotations

import argparse
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

import trackside  # 1 of 2

CONTEXT = 16  # characters of input
BATCH = 512


def load_text() -> tuple[torch.Tensor, str]:
    """Return the text as codes [characters], and the vocabulary that the codes index."""
    text = "\n\n".join(topics.values()).lower()
    vocabulary = "".join(sorted(set(text)))
    code = {character: index for index, character in enumerate(vocabulary)}
    return torch.tensor([code[character] for character in text]), vocabulary


def draw_batch(codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return characters from random positions of the text [BATCH, CONTEXT], and the next one of each [BATCH]."""
    starts = torch.randint(len(codes) - CONTEXT, (BATCH, 1))
    windows = codes[starts + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, -1]


def build_model(vocabulary: int) -> nn.Module:
    """Return a model from characters [BATCH, CONTEXT] to logits of the next character [BATCH, vocabulary]."""
    return nn.Sequential(
        nn.Embedding(vocabulary, 24),
        nn.Flatten(),
        nn.Linear(24 * CONTEXT, 256),
        nn.GELU(),
        nn.Linear(256, vocabulary),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small character model.")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=3e-3,
        help="peak learning rate, after a warm-up of 50 steps; 1e30 makes the loss NaN",
    )
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    codes, vocabulary = load_text()
    codes = codes.to(device)
    model = build_model(len(vocabulary)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 50))

    for step in range(1, options.steps + 1):
        x, y = draw_batch(codes)
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), 1.0)
        lr = scheduler.get_last_lr()[0]
        optimizer.step()
        scheduler.step()
        trackside.push(step=step, loss=loss, grad_norm=norm, learning_rate=lr, tokens=BATCH)  # 2 of 2
        if step % 100 == 0:
            print(f"step {step}  loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
