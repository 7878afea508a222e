"""Small fits with Lightning, one after the other; prints the values of Lightning and the models, as JSON.

python tests/integrations/lightning_fits.py FOLDER
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import lightning
import lightning.pytorch
import pytorch_lightning
import torch
from hydra.utils import instantiate
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import trackside
from trackside.integrations.lightning import TracksideCallback, TracksideLogger

FOLDER = Path(sys.argv[1])
BATCHES, ACCUMULATED, ROWS = 7, 2, 4
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "log_every_n_steps": 1}


class Model(lightning.pytorch.LightningModule):
    """A model that keeps the loss of each batch in ``losses``, and the learning rate of each step in ``rates``."""

    def __init__(self, width: int = 3, nan_at: int = -1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)
        self.losses: list[float] = []
        self.rates: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.layer(batch["x"]).square().mean()
        if batch_idx == self.hparams["nan_at"]:
            loss = loss + torch.nan
        self.losses.append(loss.item())
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", self.layer(batch[0]).square().mean())
        self.log("val_quietly", self.layer(batch[0]).sum(), logger=False)

    test_step = validation_step

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self) -> Any:
        return DataLoader([{"name": "row", "x": torch.randn(3)} for _ in range(BATCHES * ROWS)], ROWS)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.randn(8, 3)), 4)

    test_dataloader = val_dataloader


class Two(Model):
    """A model with manual optimization and two optimizers, which fails in its third batch."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2:
            raise KeyError("third")
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            loss = self.layer(batch["x"]).square().mean()
            self.manual_backward(loss)
            optimizer.step()
        return {"loss": loss}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.2)


class Silent(Model):
    """A model that fails in its first batch, so that its run has no values."""

    def training_step(self, *_: Any) -> Any:
        raise MemoryError


def both() -> dict[str, Any]:
    """Fit with callback and logger: an accumulated step, a NaN, two epochs, checkpoints, a rate logged early."""
    callback, model = TracksideCallback(), Model(nan_at=2)
    trainer = lightning.pytorch.Trainer(
        max_epochs=2,
        accumulate_grad_batches=ACCUMULATED,
        default_root_dir=FOLDER,
        logger=TracksideLogger("both", config={"author": "me"}),
        callbacks=[LearningRateMonitor("step"), ModelCheckpoint(save_top_k=-1), callback],
        **QUIET,
    )
    trainer.fit(model)
    return {
        "losses": model.losses,
        "rates": model.rates,
        "logged": {key: float(value) for key, value in trainer.logged_metrics.items()},
        "called": {key: float(value) for key, value in trainer.callback_metrics.items()},
        "bytes": [path.stat().st_size for path in sorted(FOLDER.rglob("*.ckpt"))],
        "given_back": "save_checkpoint" not in vars(trainer),
        "bases": [isinstance(callback, package.Callback) for package in (lightning.pytorch, pytorch_lightning)],
    }


def logged() -> dict[str, Any]:
    """Fit with the logger alone."""
    model = Model()
    trainer = lightning.pytorch.Trainer(
        max_epochs=1,
        default_root_dir=FOLDER / "logged",
        logger=TracksideLogger("logged"),
        **QUIET,
    )
    trainer.fit(model)
    model.layer.bias.data += 1.0
    [tested] = trainer.test(model, verbose=False)
    return {"losses": model.losses, "called": float(tested["val_loss"])}


def broken(name: str, model: Model, **made: Any) -> None:
    """Run a fit that fails."""
    try:
        lightning.pytorch.Trainer(max_epochs=1, enable_checkpointing=False, **QUIET, **made).fit(model)
    except (KeyError, MemoryError) as error:
        print(name, type(error).__name__, file=sys.stderr)  # noqa: T201


def tested() -> list[float]:
    """Fit and then test: the callback's run continues, also after it was finished by a call."""
    model = Model()
    target = "trackside.integrations.lightning.TracksideCallback"
    plans = {"watch": {"every": 1}, "profile": {"epochs": [9], "steps": 5}}  # as objects of OmegaConf
    callbacks = [instantiate({"_target_": target, "name": "tested", **plans})]
    trainer = lightning.pytorch.Trainer(
        max_epochs=1, enable_checkpointing=False, logger=False, callbacks=callbacks, **QUIET
    )
    trainer.fit(model)
    [first] = trainer.test(model, verbose=False)
    pickle.loads(pickle.dumps(trainer))  # although it holds who pushes
    trackside.finish()
    model.layer.bias.data += 1.0
    [second] = trainer.test(model, verbose=False)
    return [float(found["val_loss"]) for found in (first, second)]


def resumed(name: str, **plugged: Any) -> None:
    """Fit, and resume from the checkpoint with another Trainer and another callback or logger."""
    checkpoint = FOLDER / name / "first.ckpt"
    for epochs, begin in ((1, None), (2, checkpoint)):
        made = {part: make() for part, make in plugged.items()}
        trainer = lightning.pytorch.Trainer(
            max_epochs=epochs, default_root_dir=FOLDER / name, enable_checkpointing=False, **made, **QUIET
        )
        trainer.fit(Model(), ckpt_path=begin)
        trainer.save_checkpoint(checkpoint)
        trackside.finish()


def fabric() -> list[float]:
    """Train a loop of Fabric with the logger; return the losses."""
    fabric = lightning.Fabric(accelerator="cpu", devices=1, loggers=TracksideLogger("fabric", total_steps=5))
    layer = torch.nn.Linear(3, 1)
    model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    losses = []
    for step in range(5):
        loss = model(torch.ones(4, 3)).square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        fabric.log_dict({"loss": loss, "samples": 4}, step=step)
        losses.append(loss.item())
    trackside.finish()
    return losses


def given() -> bool:
    """Fit with pytorch_lightning in a run that the training code has opened; return whether it is open afterwards."""

    class Other(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    run = trackside.init("given")
    data = DataLoader(TensorDataset(torch.randn(8, 3)), 4)
    trainer = pytorch_lightning.Trainer(
        max_epochs=1, enable_checkpointing=False, logger=False, callbacks=TracksideCallback("mine"), **QUIET
    )
    trainer.fit(Other(), data)
    goes_on = run.is_open
    run.push(step=trainer.global_step, after=1.0)
    run.finish("stopped")
    return goes_on


if __name__ == "__main__":
    torch.manual_seed(0)
    found = {"both": both(), "logged": logged(), "tested": tested(), "given": given(), "fabric": fabric()}
    resumed(
        "carried",
        callbacks=lambda: [TracksideCallback("carried", epoch_line=True, resource_line=4)],
        logger=lambda: False,
    )
    resumed("logged_on", logger=lambda: TracksideLogger("logged_on"))
    broken("two", Two(), logger=False, callbacks=[TracksideCallback("two")])
    broken("silent", Silent(), logger=TracksideLogger("silent"))
    print(json.dumps(found))  # noqa: T201
