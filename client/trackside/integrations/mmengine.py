"""MMEngine: `TracksideCallback` pushes what each iteration logs, and the metrics of validations and tests.

    from trackside.integrations.mmengine import TracksideCallback

    runner = Runner(…, custom_hooks=[TracksideCallback()])

In a configuration: ``custom_imports = dict(imports=["trackside.integrations.mmengine"])`` and
``custom_hooks = [dict(type="TracksideCallback")]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from trackside.integrations.run_adapter import RunCallback, never_raises
from trackside.numbers import numeric
from trackside.pytorch.batches import samples

if TYPE_CHECKING:
    from collections.abc import Mapping


@HOOKS.register_module()
class TracksideCallback(RunCallback, Hook):
    """A hook for ``custom_hooks=[…]``: a step for each iteration, with its losses, rate and samples."""

    @never_raises
    def before_train(self, runner: Any) -> None:
        """Open the run."""
        self.adapter.begin()
        self.adapter.describe(runner.cfg.to_dict(), runner.max_iters)

    @never_raises
    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Mapping[str, Any] | None = None
    ) -> None:
        """Push the losses and other values of an iteration."""
        values = dict(outputs or {})
        if count := samples(data_batch):
            values["samples"] = count
        if (rate := runner.message_hub.log_scalars.get("train/lr")) is not None:
            values["learning_rate"] = rate.current()  # that of this step; another hook may have changed it since
        self.adapter.open().push(values, step=runner.iter)

    @never_raises
    def after_val_epoch(self, runner: Any, metrics: Mapping[str, Any] | None = None) -> None:
        """End a validation, and push its metrics."""
        self._push_metrics("eval", runner, metrics)

    @never_raises
    def after_test_epoch(self, runner: Any, metrics: Mapping[str, Any] | None = None) -> None:
        """End a test, and push its metrics."""
        self._push_metrics("test", runner, metrics)

    @never_raises
    def before_save_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Let a checkpoint carry the run."""
        if state := self.adapter.state():
            checkpoint.setdefault("trackside", state)

    @never_raises
    def after_load_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Continue the run of a checkpoint, if the training is resumed."""
        if runner._resume:  # noqa: SLF001  MMEngine has no public name for it
            self.adapter.resume(checkpoint.get("trackside"))

    before_val = before_test = RunCallback.evaluation_begins
    after_train = RunCallback.training_ends

    def _push_metrics(self, name: str, runner: Any, metrics: Mapping[str, Any] | None) -> None:
        values = {f"{name}/{key}": value for key, value in numeric(metrics or {}).items()}
        self.adapter.open().push(values, step=max(0, runner.iter - 1))
        self.adapter.evaluates(begins=False)
