"""Frameworks whose trainings are not PyTorch's optimizers: each training gets the callback of its integration."""

from __future__ import annotations

import inspect
import weakref
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trackside.auto.hooks import auto_run, report_failure
from trackside.integrations.run_adapter import RunAdapter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_trained: list[Any] = []  # a weak reference to the model that is trained, where a second call goes on with it


class AutoAdapter(RunAdapter):
    """The run of this process: each training begins the next, unless it goes on with a model."""

    def begin(self) -> Any:
        """Return the run of a training that begins."""
        auto = auto_run()
        goes_on = bool(_trained) and self.model is not None and _trained[0]() is self.model
        if auto.queue is not None and not goes_on:
            auto.begin_next()
        _trained[:] = [] if self.model is None else [weakref.ref(self.model)]
        auto.open()
        return super().begin()

    def describe(self, config: Mapping[str, Any] | None = None, total_steps: int | None = None) -> None:
        """Add details to a run that `AutoRun` has opened."""
        auto = auto_run()
        auto.describe(config=config)
        if total_steps is not None and auto.is_new and auto.queue is not None:
            auto.queue.describe(total_steps=total_steps)


def _made(framework: str, callbacks: Any) -> list[Any]:
    """Return the callbacks with one of ours; unchanged if there is one, and after a failure."""
    given = list(callbacks) if isinstance(callbacks, list | tuple) else [] if callbacks is None else [callbacks]
    try:
        kind = import_module(f"trackside.integrations.{framework}").TracksideCallback
        if any(isinstance(one, kind) for one in given):
            return given
        callback = kind()
        callback.adapter = AutoAdapter(None, {})
    except Exception as error:  # noqa: BLE001  training must go on
        report_failure(f"{framework}: the callback", error)
        return given
    return [*given, callback]


def _adding(
    framework: str, parameter: str, permits: Callable[[Any], bool] = lambda _: True
) -> Callable[[Any, str], Any]:
    """Make a replacement that adds our callback to an argument."""

    def replace(original: Any, hook: str) -> Any:
        names = list(inspect.signature(original).parameters)  # XGBoost accepts by place what it names by keyword alone
        place = names.index(parameter) if parameter in names else len(names)

        @wraps(original)
        def called(*given: Any, **named: Any) -> Any:
            try:
                if permits(given[0] if given else None):
                    if place < len(given):
                        given = (*given[:place], _made(framework, given[place]), *given[place + 1 :])
                    else:
                        named = {**named, parameter: _made(framework, named.get(parameter))}
            except Exception as error:  # noqa: BLE001  the call itself states what is wrong with its arguments
                report_failure(hook, error)
            return original(*given, **named)

        return called

    return replace


def _has_no_gpu(model: Any) -> bool:
    return bool(model.get_param("task_type") != "GPU")  # with which CatBoost takes no callbacks


train_xgboost = _adding("xgboost", "callbacks")
train_lightgbm = _adding("lightgbm", "callbacks")
fit_catboost = _adding("catboost", "callbacks", _has_no_gpu)
fit_keras = _adding("keras", "callbacks")
fit_fastai = _adding("fastai", "cbs")
