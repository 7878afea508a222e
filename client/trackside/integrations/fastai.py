"""fastai: `TracksideCallback` pushes each batch's loss, and the metrics of each epoch.

from trackside.integrations.fastai import TracksideCallback

learner = Learner(data, model, cbs=TracksideCallback())
"""

from __future__ import annotations

import weakref
from typing import Any

from fastai.callback.core import Callback

from trackside.integrations.run_adapter import RunCallback, never_raises

_steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Batches of each model: a second `fit` goes on with it."""


class TracksideCallback(RunCallback, Callback):
    """A callback for ``cbs=…``: a step for each batch, with its loss, rate and samples."""

    order = 60  # after fastai's own `Recorder`, whose values it reads

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self._is_on = False  # fastai warns of names that a learner has too

    @never_raises
    def before_fit(self) -> None:
        """Open the run, unless fastai only searches a rate or predicts."""
        self._is_on = not (hasattr(self.learn, "lr_finder") or hasattr(self, "gather_preds"))
        if self._is_on:
            self.adapter.model = self.learn.model
            self.adapter.begin()
            self.adapter.describe({"epochs": self.learn.n_epoch, "model": type(self.learn.model).__name__})

    @never_raises
    def after_batch(self) -> None:
        """Push a batch of the training."""
        if not self._is_on or not self.learn.training:
            return
        values: dict[str, Any] = {"loss": self.learn.loss, "learning_rate": self.learn.opt.hypers[-1]["lr"]}
        if self.learn.yb and hasattr(self.learn.yb[0], "__len__"):
            values["samples"] = len(self.learn.yb[0])
        step = _steps.get(self.learn.model, 0)
        self.adapter.open().push(values, step=step)
        _steps[self.learn.model] = step + 1

    @never_raises
    def before_validate(self) -> None:
        """Begin an evaluation."""
        if self._is_on:
            self.adapter.evaluates(begins=True)

    after_validate = RunCallback.evaluation_ends

    @never_raises
    def after_epoch(self) -> None:
        """Push what the recorder has of the epoch: ``eval/loss`` and the metrics."""
        recorder = getattr(self.learn, "recorder", None)
        if not self._is_on or recorder is None or not recorder.values:
            return
        names = [name for name in recorder.metric_names if name not in {"epoch", "time"}]
        values = {
            _key(name): value for name, value in zip(names, recorder.values[-1], strict=False) if value is not None
        }
        self.adapter.open().push(values, step=max(0, _steps.get(self.learn.model, 0) - 1), epoch=self.learn.epoch)

    @never_raises
    def after_fit(self) -> None:
        """Leave the run to what follows."""
        if self._is_on:
            self.adapter.rest()


def _key(name: str) -> str:
    """Return the key of a column of fastai's table: metrics are those of the validation."""
    return {"train_loss": "train_loss", "valid_loss": "eval/loss"}.get(name, f"eval/{name}")
