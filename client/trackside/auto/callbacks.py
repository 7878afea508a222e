"""Each `Trainer` of Lightning and of Transformers gets a callback.

That of Lightning also pushes what ``self.log`` logs to the trainer's loggers.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import TYPE_CHECKING, Any

from trackside.auto.hooks import auto_run
from trackside.auto.method_wrapping import after, muted
from trackside.auto.pytorch import pause
from trackside.default_run import open_run
from trackside.integrations.run_adapter import RunAdapter

if TYPE_CHECKING:
    from trackside.run import Run


class NamedAdapter(RunAdapter):
    """Opens a run as `AutoRun` does: that of a trial of a search has the trial's name, parameters and tag.

    So has that of a trainer which an earlier trial has used.
    """

    def _init(self, before: Run | None) -> Run:
        auto = auto_run()
        if (before is None or auto.has_next) and not self._resumed:
            auto.describe(name=self.name, config=self._config)
            if auto.open() and (run := open_run()) is not None:
                run.queue.describe(None, self._arguments.get("total_steps"))
                return run
        return super()._init(before)


@cache
def _auto_callback() -> Any:
    from trackside.integrations.lightning import TracksideCallback

    class AutoCallback(TracksideCallback):
        """Pushes as `TracksideCallback` does, and leaves nothing in checkpoints."""

        pushes_logged = True

        def __init__(self) -> None:
            super().__init__()
            self._adapter = self._own_adapter = NamedAdapter(None, {})

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

    return AutoCallback


@after
def add_lightning(trainer: Any, *_: Any, **__: Any) -> None:
    """Add the callback, unless the trainer has one of ours."""
    from trackside.integrations.lightning import TracksideCallback

    callbacks = trainer.callbacks
    if any(isinstance(callback, TracksideCallback) for callback in callbacks):
        return
    # Lightning keeps the callbacks that write checkpoints behind all others.
    is_last = [hasattr(callback, "best_model_path") for callback in callbacks]
    callbacks.insert(is_last.index(True) if True in is_last else len(callbacks), _auto_callback()())


def push_logged(original: Any, hook: str) -> Any:
    """Push what a trainer logs, in place of what its loggers pass on to trackers."""
    kind = _auto_callback()

    @wraps(original)
    def log_metrics(self: Any, metrics: Any, step: Any = None) -> Any:
        with muted():
            result = original(self, metrics, step)
        for callback in self.trainer.callbacks:
            if isinstance(callback, kind):
                callback.push_logged(metrics)
        return result

    return log_metrics


def add_transformers(defaults: list[Any], hook: str) -> list[Any]:
    """Add the callback to the default callbacks."""
    from trackside.integrations.transformers import TracksideCallback

    class AutoCallback(TracksideCallback):
        """Pushes as `TracksideCallback` does, unless the Trainer has one, and leaves nothing in checkpoints."""

        is_carried = False
        yields = True
        adapter_kind = NamedAdapter

        def on_train_begin(self, *given: Any, **named: Any) -> None:
            pause(on=True)
            super().on_train_begin(*given, **named)

        def on_train_end(self, *given: Any, **named: Any) -> None:
            super().on_train_end(*given, **named)
            pause(on=False)

    defaults.append(AutoCallback)
    return defaults
