"""Epochs of a fit with a callback that tracks and without, in pairs of random order one after the other; prints JSON.

    python bench/lightning_steps.py ipc:///tmp/push.sock 250     a fifth as many pairs of epochs, and as many without it at all

One fit: between two epochs the callback is turned on and off, so that both arms find the same machine. A figure is the
median step of an epoch, of about 10 ms.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from typing import Any

import lightning
import numpy as np
import torch
from bench.pairs import Pairs, now
from bench.work import calibrated

WARM_UP = 4
STEPS = 20


class Model(lightning.LightningModule):
    """Works for 10 ms; keeps when each step began, by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.work = calibrated(10.0, 8.0)
        self.begun: list[list[tuple[float, float]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """A batch."""
        if batch_idx == 0:
            self.begun.append([])
        self.begun[-1].append(now())
        self.work()
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> Any:
        """A plain one."""
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def turned(arms: list[bool]) -> Any:
    """The callback, whose hooks and whose view of the loader are there in some epochs only."""
    from trackside.integrations.lightning import TracksideCallback

    class Turned(TracksideCallback):
        """What it was at the beginning is put in its place again in epochs without it."""

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            on, fetcher = arms[trainer.current_epoch], trainer.fit_loop._data_fetcher
            self.raw = getattr(self, "raw", None) or fetcher._combined_loader
            fetcher._combined_loader, self.on = self.raw, on
            if on:
                super().on_train_epoch_start(trainer, pl_module)

        def on_train_batch_start(self, *given: Any) -> None:
            if self.on:
                super().on_train_batch_start(*given)

        def on_train_batch_end(self, *given: Any) -> None:
            if self.on:
                super().on_train_batch_end(*given)

    return Turned("steps")


def main() -> None:
    """Measure what the command line names."""
    os.environ["TRACKSIDE_ENDPOINT"] = sys.argv[1]
    pairs = Pairs(int(sys.argv[2]) // STEPS * 4, WARM_UP)
    begun = [np.median(np.diff(np.array(one), axis=0), axis=0) for one in fitted(pairs.arms)]
    print(json.dumps(pairs.figures([(float(wall), float(cpu)) for wall, cpu in begun])))


def fitted(arms: list[bool]) -> list[list[tuple[float, float]]]:
    """When each step of each epoch began, by the clock and in CPU time."""
    torch.set_num_threads(1)
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=len(arms),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[turned(arms)],
    )
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(STEPS * 4, 8), 4))
    return model.begun


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    main()
