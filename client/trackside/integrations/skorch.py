"""skorch: `TracksideCallback` pushes each batch's loss, and the row of each epoch in the net's history.

from trackside.integrations.skorch import TracksideCallback

net = NeuralNetClassifier(Model, callbacks=[TracksideCallback()])
"""

from __future__ import annotations

import weakref
from typing import Any

from skorch.callbacks import Callback

from trackside.integrations.run_adapter import RunCallback, never_raises
from trackside.numbers import numeric

TIMES = {"epoch", "dur", "batches", "train_batch_count", "valid_batch_count"}


class TracksideCallback(RunCallback, Callback):
    """A callback for ``callbacks=[…]``: a step for each batch, with its loss, rate and samples."""

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self._given = {"name": name, **arguments}
        self._steps = self._epochs = 0
        self._history: weakref.ref[Any] | None = None
        self._rate: float | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments, with which scikit-learn makes a copy for each fit of a search."""
        return dict(self._given)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a net's copy for another process, which counts its history anew."""
        return {**vars(self), "_history": None}

    @never_raises
    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **_: Any) -> None:  # noqa: N803  skorch's name
        """Open the run. A `partial_fit` goes on with what the net's history has."""
        history, epochs = net.history, len(net.history)
        if epochs != self._epochs or self._history is None or self._history() is not history:
            self._steps = sum("train_loss" in batch for row in history for batch in row["batches"])
        self._history, self._epochs = weakref.ref(history), epochs  # many call `partial_fit` for each batch
        self.adapter.model = net.module_
        self.adapter.begin()
        names = ("module", "criterion", "optimizer")
        config = {key: getattr(net, key) for key in ("lr", "max_epochs", "batch_size")}
        self.adapter.describe({**config, **{key: getattr(getattr(net, key), "__name__", None) for key in names}})

    @never_raises
    def on_batch_begin(self, net: Any, batch: Any = None, training: bool = False, **_: Any) -> None:
        """Note the rate of a step, or begin an evaluation."""
        if training:
            self._rate = net.optimizer_.param_groups[0]["lr"]
        else:
            self.adapter.evaluates(begins=True)

    @never_raises
    def on_batch_end(self, net: Any, batch: Any = None, training: bool = False, **_: Any) -> None:
        """Push a batch of the training."""
        if training:
            row = net.history[-1]["batches"][-1]
            values = {"loss": row["train_loss"], "samples": row["train_batch_size"], "learning_rate": self._rate}
            self.adapter.open().push(values, step=self._steps)
            self._steps += 1

    @never_raises
    def on_epoch_end(self, net: Any, **_: Any) -> None:
        """End an evaluation, and push the row of an epoch."""
        self.adapter.evaluates(begins=False)
        self._push_epochs(net)

    @never_raises
    def on_train_end(self, net: Any, **_: Any) -> None:
        """Push the row of an epoch that another callback has ended early, and leave the run to what follows."""
        self.adapter.evaluates(begins=False)
        self._push_epochs(net)
        self.adapter.rest()

    def _push_epochs(self, net: Any) -> None:
        for row in net.history[self._epochs :]:
            numbers = {key: value for key, value in row.items() if key not in TIMES and not isinstance(value, bool)}
            values = {_key(key): value for key, value in numeric(numbers).items()}
            self.adapter.open().push(values, step=max(0, self._steps - 1), epoch=row["epoch"] - 1)
        self._epochs = len(net.history)


def _key(key: str) -> str:
    return f"eval/{key[6:]}" if key.startswith("valid_") else key
