"""Ultralytics: `TracksideCallback` pushes each batch's losses, and the metrics of each epoch.

from trackside.integrations.ultralytics import TracksideCallback

TracksideCallback().attach(model)  # before model.train(…)
"""

from __future__ import annotations

from typing import Any

from trackside.integrations.run_adapter import RunCallback, never_raises, report_checkpoint

EVENTS = (
    *("on_train_start", "on_train_batch_start", "on_train_batch_end", "on_val_start", "on_val_end"),
    *("on_fit_epoch_end", "on_model_save", "on_train_end"),
)


class TracksideCallback(RunCallback):
    """The callbacks of a model: a step for each batch, with its losses, rate and samples."""

    _batch = _step = 0
    _epoch = -1

    def attach(self, model: Any) -> TracksideCallback:
        """Add this to the callbacks of a model, and return it."""
        for event in EVENTS:
            model.add_callback(event, getattr(self, event))
        return self

    @never_raises
    def on_train_start(self, trainer: Any) -> None:
        """Open the run."""
        self._epoch = -1
        self.adapter.begin()
        self.adapter.describe(vars(trainer.args), len(trainer.train_loader) * trainer.epochs)

    @never_raises
    def on_train_batch_start(self, trainer: Any) -> None:
        """Count the batch, as Ultralytics does: each epoch has the same number of them."""
        self._batch = self._batch + 1 if trainer.epoch == self._epoch else 0
        self._epoch = trainer.epoch
        self._step = self._batch + len(trainer.train_loader) * trainer.epoch

    @never_raises
    def on_train_batch_end(self, trainer: Any) -> None:
        """Push the losses of a batch: their sum, which the training minimizes, and each part."""
        loader, parts = trainer.train_loader, trainer.loss_items
        if not hasattr(parts, "items"):  # a tensor before version 8.4
            parts = dict(zip(trainer.loss_names, parts, strict=False))
        left = len(loader.sampler) - self._batch * loader.batch_size
        loss = trainer.loss.detach() / max(1, trainer.world_size)  # by which DDP multiplies it
        values = {"loss": loss, **parts, "learning_rate": trainer.optimizer.param_groups[0]["lr"]}
        self.adapter.open().push({**values, "samples": min(left, loader.batch_size)}, step=self._step)

    @never_raises
    def on_val_start(self, validator: Any) -> None:
        """Begin an evaluation of the training."""
        if self._epoch >= 0:
            self.adapter.evaluates(begins=True)

    on_val_end = RunCallback.evaluation_ends

    @never_raises
    def on_fit_epoch_end(self, trainer: Any) -> None:
        """Push the metrics of an epoch; those of the best model, which come last, are the results of the run."""
        metrics = {_key(key): float(value) for key, value in (trainer.metrics or {}).items()}
        if trainer.epoch != self._epoch:
            self.adapter.open().summary(metrics)
            return
        losses = {key: float(value) for key, value in trainer.label_loss_items(trainer.tloss).items()}
        self.adapter.open().push({**losses, **metrics}, step=self._step, epoch=trainer.epoch)

    @never_raises
    def on_model_save(self, trainer: Any) -> None:
        """Report a checkpoint."""
        report_checkpoint(self.adapter.open(), trainer.last)

    @never_raises
    def on_train_end(self, trainer: Any) -> None:
        """Leave the run to what follows."""
        self._epoch = -1
        self.adapter.rest()


def _key(key: str) -> str:
    return f"eval/{key.removeprefix('val/').removeprefix('metrics/')}"
