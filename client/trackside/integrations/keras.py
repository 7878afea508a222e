"""Keras 3 on TensorFlow, JAX and PyTorch: `TracksideCallback` pushes each batch's loss, and what an epoch logs.

from trackside.integrations.keras import TracksideCallback

model.fit(x, y, callbacks=[TracksideCallback()])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keras.callbacks import Callback

from trackside.integrations.run_adapter import RunCallback, never_raises

if TYPE_CHECKING:
    from collections.abc import Mapping


class TracksideCallback(RunCallback, Callback):
    """A callback for ``callbacks=[…]``: a step for each batch, with its own loss, and an evaluation for each validation."""

    # Keras would call it in several threads at once, out of order, while the sums of the model go on.
    async_safe = False

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self._is_training = False
        self._first = self._batches = 0
        self._mean = 0.0
        self._sum: tuple[float, float] = (0.0, 0.0)

    @never_raises
    def on_train_begin(self, logs: Any = None) -> None:
        """Open the run."""
        self._is_training = True
        self._first = int(self.model.optimizer.iterations)
        self.adapter.model = self.model
        self.adapter.begin()
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        total = self._first + steps * epochs if steps and epochs else None
        self.adapter.describe(self.model.optimizer.get_config(), total)

    @never_raises
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin to count batches: Keras averages over an epoch."""
        self._first += self._batches
        self._batches, self._mean, self._sum = 0, 0.0, (0.0, 0.0)

    @never_raises
    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Push the loss of a batch, or the mean of those that Keras executes at once."""
        if not logs or "loss" not in logs:
            return
        # Of the last batches, Keras may execute fewer at once.
        before, count = self._batches, min(batch + 1, self.params.get("steps") or batch + 1)
        mean, self._batches = float(logs["loss"]), count
        values = self._by_samples()
        if not values:  # JAX: the model has the sums of the last epoch
            values = {"loss": (count * mean - before * self._mean) / (count - before)}
        self._mean = mean
        self.adapter.open().push(values, step=self._first + count - 1)

    @never_raises
    def on_test_begin(self, logs: Any = None) -> None:
        """Begin an evaluation of the training."""
        if self._is_training:
            self.adapter.evaluates(begins=True)

    on_test_end = RunCallback.evaluation_ends

    @never_raises
    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Push what an epoch logs: the metrics of a validation as ``eval/…``, and others as they are."""
        values = {_key(key): value for key, value in (logs or {}).items() if key != "loss"}
        values["learning_rate"] = float(self.model.optimizer.learning_rate)
        self.adapter.open().push(values, step=self._first + max(0, self._batches - 1), epoch=epoch)

    @never_raises
    def on_train_end(self, logs: Any = None) -> None:
        """Leave the run to what follows."""
        self._is_training = False
        self.adapter.rest()

    def _by_samples(self) -> dict[str, float]:
        """Return loss and samples by the model's own sums, which know the sizes of the batches; empty without these."""
        tracker = next((one for one in self.model.metrics if one.name == "loss"), None)
        if tracker is None or not hasattr(tracker, "count"):
            return {}
        before, now = self._sum, (float(tracker.total), float(tracker.count))
        self._sum = now
        samples = now[1] - before[1]
        return {"loss": (now[0] - before[0]) / samples, "samples": samples} if samples > 0 else {}


def _key(key: str) -> str:
    return f"eval/{key[4:]}" if key.startswith("val_") else key
