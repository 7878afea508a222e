"""Frameworks that train: each training gets the callback of its integration, in place of what a loop of PyTorch shows."""

from __future__ import annotations

import inspect
import weakref
from functools import wraps
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

from trackside.auto.hooks import auto_run, report_failure
from trackside.auto.method_wrapping import after
from trackside.auto.pytorch import pause
from trackside.integrations.run_adapter import RunAdapter, guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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

    @property
    def _rests(self) -> bool:
        return auto_run().is_own

    def state(self) -> dict[str, str]:
        """Return nothing for checkpoints, which stay as they are."""
        return {}

    def describe(self, config: Mapping[str, Any] | None = None, total_steps: int | None = None) -> None:
        """Add details to a run that `AutoRun` has opened."""
        auto = auto_run()
        auto.describe(config=config)
        if total_steps is not None and auto.is_new and auto.queue is not None:
            auto.queue.describe(total_steps=total_steps)


def _new(framework: str, given: Iterable[Any]) -> Any:
    """Return our callback; None if one of those that are given is ours, or a method of one."""
    kind = import_module(f"trackside.integrations.{framework}").TracksideCallback
    if any(isinstance(getattr(one, "__self__", one), kind) for one in given):
        return None
    callback = kind()
    callback.adapter = AutoAdapter(None, {})
    return callback


class _Events:
    """Passes the events of a trainer on to a callback that the trainer's own list does not have.

    Args:
        framework: The module of the integration.
        begins: Whether a training begins with an event of an object.
        given: Returns the callbacks that an object has.

    Attributes:
        callback: Our callback; None before a training, and if it has one.
    """

    def __init__(
        self, framework: str, begins: Callable[[Any, str], bool], given: Callable[[Any], Iterable[Any]]
    ) -> None:
        self._framework, self._begins, self._given = framework, begins, given
        self._trainer: Callable[[], Any] = lambda: None
        self._is_nested = False
        self.callback: Any = None

    def trainer(self, trainer: Any, event: Any, **named: Any) -> None:
        """Pass an event of a trainer on, from the one on that begins a training; none of one within another's training."""
        if self._begins(trainer, event):
            if trainer is not self._trainer() and _is_in_call_of(self._trainer()):
                self._is_nested = True
                pause(on=True)
                return
            callback = _new(self._framework, self._given(trainer))
            goes_on = callback is not None and self.callback is not None and trainer is self._trainer()
            if not goes_on:  # else it knows how far it is
                self.callback = callback
            self._trainer = weakref.ref(trainer)
        if trainer is self._trainer():
            if self._is_nested:
                self._is_nested = False
                pause(on=False)
            self.evaluator(trainer, event, **named)

    def evaluator(self, evaluator: Any, event: Any, **named: Any) -> None:
        """Pass an event on of an object that evaluates."""
        if (hook := getattr(self.callback, event, None)) is not None:
            hook(evaluator, **named)


def _is_in_call_of(trainer: Any) -> bool:
    """Return whether a method of a trainer has called this, directly or not."""
    frame = None if trainer is None else inspect.currentframe()
    while frame is not None and frame.f_locals.get("self") is not trainer:
        frame = frame.f_back
    return frame is not None


def _adding(
    framework: str, parameter: str, permits: Callable[[Any], bool] = lambda _: True
) -> Callable[[Any, str], Any]:
    """Make a replacement that adds our callback to an argument."""

    def replace(original: Any, hook: str) -> Any:
        names = list(inspect.signature(original).parameters)  # XGBoost accepts by place what it names by keyword alone
        place = names.index(parameter) if parameter in names else len(names)

        @wraps(original)
        def called(*given: Any, **named: Any) -> Any:
            callback = None
            try:
                if permits(given[0] if given else None):
                    callbacks = _listed(given[place] if place < len(given) else named.get(parameter))
                    if place < len(given):
                        given = (*given[:place], callbacks, *given[place + 1 :])
                    else:
                        named = {**named, parameter: callbacks}
                    if (callback := _new(framework, callbacks)) is not None:
                        callbacks.append(callback)
            except Exception as error:  # noqa: BLE001  the call itself states what is wrong with its arguments
                report_failure(hook, error)
            try:
                return original(*given, **named)
            finally:
                if callback is not None:  # some frameworks call none of it at the end
                    guarded(hook, callback.adapter.rest)

        return called

    return replace


def _listed(callbacks: Any) -> list[Any]:
    return list(callbacks) if hasattr(callbacks, "__iter__") else [] if callbacks is None else [callbacks]


def _has_no_gpu(model: Any) -> bool:
    return bool(model.get_param("task_type") != "GPU")  # with which CatBoost takes no callbacks


def _has_none_of_ours(learner: Any) -> bool:
    return all(type(one).__module__ != "trackside.integrations.fastai" for one in learner.cbs)


train_xgboost = _adding("xgboost", "callbacks")
train_lightgbm = _adding("lightgbm", "callbacks")
fit_catboost = _adding("catboost", "callbacks", _has_no_gpu)
fit_keras = _adding("keras", "callbacks")
fit_fastai = _adding("fastai", "cbs", _has_none_of_ours)


def _trains(engine: Any) -> bool:
    """Return whether the function of an engine calls `backward`."""
    function = engine._process_function  # noqa: SLF001  Ignite has no public name for it
    code = getattr(getattr(function, "func", function), "__code__", None)
    return code is not None and "backward" in code.co_names


def _handlers(engine: Any) -> list[Any]:
    return [handler for all_ in engine._event_handlers.values() for handler, *_ in all_]  # noqa: SLF001  the same


_skorch = _Events("skorch", lambda _, event: event == "on_train_begin", lambda net: [one for _, one in net.callbacks_])
_mmengine = _Events("mmengine", lambda _, event: event == "before_train", lambda runner: runner.hooks)
_ultralytics = _Events(
    "ultralytics", lambda _, event: event == "on_train_start", lambda trainer: chain(*trainer.callbacks.values())
)
_ignite = _Events("ignite", lambda engine, event: event == "started" and _trains(engine), _handlers)

notify_skorch = after(_skorch.trainer)
call_mmengine_hook = after(_mmengine.trainer)
run_ultralytics_callbacks, run_validator_callbacks = after(_ultralytics.trainer), after(_ultralytics.evaluator)


@after
def fire_ignite_event(engine: Any, event: Any, *_: Any, **__: Any) -> None:
    """Pass an event of an engine on, by its name; one that runs within a training and does not train evaluates."""
    name = getattr(event, "value", "")
    if name not in {"started", "completed"} or _trains(engine):
        _ignite.trainer(engine, name)
    elif getattr(_ignite.callback, "is_training", False):
        _ignite.evaluator(engine, f"evaluation_{name}")
