"""Lightning: each `Trainer` gets a callback, which also pushes what ``self.log`` logs to the trainer's loggers."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from trackside.auto.hooks import quick_import
from trackside.auto.method_wrapping import after, muted
from trackside.auto.pytorch import pause


def install(name: str) -> None:
    """Patch the trainer of one of the two packages, ``lightning.pytorch`` or ``pytorch_lightning``."""
    module = sys.modules[name]
    with quick_import():
        from trackside.integrations.lightning import TracksideCallback

    class AutoCallback(TracksideCallback):
        """Pushes as `TracksideCallback` does, and leaves nothing in checkpoints."""

        pushes_logged = True

        def state_dict(self) -> dict[str, Any]:
            return {}

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            pause(on=True)
            super().on_train_start(trainer, pl_module)

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            super().teardown(trainer, pl_module, stage)
            pause(on=False)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            super().on_exception(trainer, pl_module, exception)
            pause(on=False)

    def add_callback(trainer: Any, *_: Any, **__: Any) -> None:
        callbacks = trainer.callbacks
        if any(isinstance(callback, TracksideCallback) for callback in callbacks):
            return
        # Lightning keeps the callbacks that write checkpoints behind all others.
        is_last = [hasattr(callback, "best_model_path") for callback in callbacks]
        callbacks.insert(is_last.index(True) if True in is_last else len(callbacks), AutoCallback())

    after(module.Trainer, "__init__", f"{name}: Trainer", add_callback)
    _push_logged(module._LoggerConnector, AutoCallback)  # noqa: SLF001  Lightning has no public name for it


def _push_logged(connector: Any, callback_type: Any) -> None:
    """Push what a trainer logs, in place of what its loggers pass on to trackers."""
    original = connector.log_metrics

    @wraps(original)
    def log_metrics(self: Any, metrics: Any, step: Any = None) -> Any:
        with muted():
            result = original(self, metrics, step)
        for callback in self.trainer.callbacks:
            if isinstance(callback, callback_type):
                callback.push_logged(metrics)
        return result

    connector.log_metrics = log_metrics
