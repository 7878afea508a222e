"""Time epochs of a Lightning fit with and without a callback, in pairs of random order; print JSON.

    python bench/lightning_steps.py ipc:///tmp/push.sock 250     a fifth as many pairs of epochs, and as many null pairs

The callback is turned on and off between epochs of one fit, so that both arms see the same machine. A figure is the median
step of an epoch, of about 10 ms.

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

from bench.hooks import Calls, Switch, seen_seldom
from bench.pairs import Pairs, now
from bench.work import calibrated
from trackside.integrations.lightning import TracksideCallback

WARM_UP = 30
STEPS = 20


class Model(lightning.LightningModule):
    """A model that works for 10 ms per step and records when each step began, by epoch."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self.calls = calls
        self.layer = torch.nn.Linear(8, 1)
        self.work = calibrated(10.0, 8.0)
        self.begun: list[list[tuple[float, float, float]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Compute the loss of a batch."""
        if batch_idx == 0:
            self.begun.append([])
        self.begun[-1].append((*now(), self.calls.spent))
        self.work()
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> Any:
        """Return a plain optimizer."""
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def turned(arms: list[bool]) -> Any:
    """Return the callback, with its hooks and its data loader wrapper active in some epochs only."""

    class Turned(TracksideCallback):
        """A callback whose original state is restored in epochs without it."""

        switch: Switch | None = None
        was_on = True

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            on, fetcher = arms[trainer.current_epoch], trainer.fit_loop._data_fetcher
            self.raw = getattr(self, "raw", None) or fetcher._combined_loader
            fetcher._combined_loader, self.on = self.raw, on
            if self.switch is None:
                seen_seldom(self._watcher)
                self.switch = Switch(trainer.strategy.model, trainer.optimizers[0])
            elif not self.was_on:
                self.switch.on()
            self.was_on = on
            if on:
                super().on_train_epoch_start(trainer, pl_module)
            else:
                self.switch.off()

        def on_train_batch_start(self, *given: Any) -> None:
            if self.on:
                super().on_train_batch_start(*given)

        def on_train_batch_end(self, *given: Any) -> None:
            if self.on:
                super().on_train_batch_end(*given)

    return Turned("steps", watch=True)


def main() -> None:
    """Measure what the command line names."""
    os.environ["TRACKSIDE_ENDPOINT"] = sys.argv[1]
    pairs = Pairs(int(sys.argv[2]) // STEPS * 4, WARM_UP)
    calls = Calls()
    calls.time_watching()
    calls.time(TracksideCallback, "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end")
    epochs = [np.array(one) for one in fitted(pairs.arms, calls)]
    steps = [np.median(np.diff(one[:, :2], axis=0), axis=0) for one in epochs]
    spent = [float(one[-1, 2] - one[0, 2]) / (len(one) - 1) for one in epochs]
    print(json.dumps(pairs.figures([(float(wall), float(cpu)) for wall, cpu in steps], spent)))


def fitted(arms: list[bool], calls: Calls) -> list[list[tuple[float, float, float]]]:
    """Return when each step of each epoch began, in wall and CPU time, and the seconds in our calls until then."""
    torch.set_num_threads(1)
    model = Model(calls)
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
