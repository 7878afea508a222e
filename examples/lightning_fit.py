"""A character model with Lightning, trained on Python's help pages: fit, validation, checkpoints.

It trains the same without a daemon. To see the training, start a daemon first, in another terminal::

    trackside daemon
    python examples/lightning_fit.py --epochs 20

`--nan-at 150` makes the loss of that step NaN, so that you can see the alert.
"""

from __future__ import annotations

import argparse
from pydoc_data.topics import topics
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from trackside.integrations.lightning import TracksideCallback, TracksideLogger  # 1 of 3

CONTEXT = 16  # characters of input
BATCH = 256
STEPS = 100  # per epoch


def load_text() -> tuple[TensorDataset, TensorDataset, int]:
    """Return windows to train on and to validate with (CONTEXT characters and the next), and the vocabulary size."""
    text = "\n\n".join(topics.values()).lower()[: (STEPS + 10) * BATCH]
    code = {character: index for index, character in enumerate(sorted(set(text)))}
    windows = torch.tensor([code[character] for character in text]).unfold(0, CONTEXT + 1, 1)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
    training, validation = order[: STEPS * BATCH], order[STEPS * BATCH :]
    made = [TensorDataset(windows[part, :-1], windows[part, -1]) for part in (training, validation)]
    return made[0], made[1], len(code)


class CharacterModel(lightning.LightningModule):
    """A model from characters [BATCH, CONTEXT] to logits of the next character [BATCH, vocabulary]."""

    def __init__(self, vocabulary: int, width: int = 128, learning_rate: float = 3e-3, nan_at: int = 0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(
            nn.Embedding(vocabulary, 24),
            nn.Flatten(),
            nn.Linear(24 * CONTEXT, width),
            nn.GELU(),
            nn.Linear(width, vocabulary),
        )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = functional.cross_entropy(self.layers(batch[0]), batch[1])
        if self.global_step + 1 == self.hparams["nan_at"]:
            loss = loss + torch.nan
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        logits = self.layers(batch[0])
        self.log("val_loss", functional.cross_entropy(logits, batch[1]))
        self.log("val_accuracy", (logits.argmax(-1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["learning_rate"])
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 50))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small character model with Lightning.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="directory of checkpoints and logs (default: the working directory)")
    parser.add_argument("--nan-at", type=int, default=0, metavar="STEP", help="step whose loss becomes NaN")
    options = parser.parse_args()

    lightning.seed_everything(options.seed)
    training, validation, vocabulary = load_text()
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        default_root_dir=options.folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=10,
        logger=TracksideLogger(),  # 2 of 3: what self.log logs
        callbacks=[
            ModelCheckpoint(monitor="val_loss", save_top_k=2),
            TracksideCallback(),  # 3 of 3: each step, evaluations, checkpoints
        ],
    )
    trainer.fit(
        CharacterModel(vocabulary, nan_at=options.nan_at),
        DataLoader(training, BATCH, shuffle=True),
        DataLoader(validation, BATCH),
    )
    for name, value in sorted(trainer.callback_metrics.items()):
        print(f"{name} {float(value):.6f}")
    print(f"steps {trainer.global_step}")


if __name__ == "__main__":
    main()
