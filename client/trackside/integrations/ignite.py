"""PyTorch-Ignite: `TracksideCallback` pushes what a trainer's iterations return, and the metrics of evaluators.

from trackside.integrations.ignite import TracksideCallback

TracksideCallback().attach(trainer, eval=evaluator)  # before trainer.run(…)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ignite.engine import Events

from trackside.integrations.run_adapter import RunCallback, never_raises
from trackside.numbers import is_scalar
from trackside.pytorch.batches import counts


class TracksideCallback(RunCallback):
    """Handlers of a trainer and its evaluators: a step for each iteration, an evaluation for each run of an evaluator.

    Attributes:
        is_training: The trainer runs.
    """

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self.is_training = False
        self._trainer: Callable[[], Any] = _nothing  # with --auto this outlives it
        self._optimizer: Any = None
        self._names: dict[str, tuple[Callable[[], Any], int]] = {}
        """The data of an evaluation, and the iteration of the last one, by the name of its keys."""

    def attach(self, trainer: Any, optimizer: Any = None, **evaluators: Any) -> TracksideCallback:
        """Add this to a trainer and to evaluators, by the names of their keys, and return it.

        Args:
            trainer: The engine that trains.
            optimizer: Its optimizer, whose rate is pushed.
            evaluators: The engines that evaluate. Metrics of the data that the trainer has are ``train/…``.
        """
        self._optimizer = optimizer
        for event in (Events.STARTED, Events.ITERATION_COMPLETED, Events.EPOCH_COMPLETED, Events.COMPLETED):
            trainer.add_event_handler(event, getattr(self, event.value))
        for name, evaluator in evaluators.items():
            evaluator.add_event_handler(Events.STARTED, self.evaluation_started)
            evaluator.add_event_handler(Events.COMPLETED, self.evaluation_completed, name)
        return self

    def state_dict(self) -> dict[str, str]:
        """Return what ``Checkpoint({"trackside": this, …}, …)`` writes, so that a resume continues the run."""
        return self.adapter.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the run of a checkpoint."""
        self.adapter.resume(state)

    @never_raises
    def started(self, trainer: Any) -> None:
        """Open the run."""
        state = trainer.state
        self.is_training, self._trainer = True, weakref.ref(trainer)
        self.adapter.model = trainer if state.iteration else None
        if not state.iteration:
            self._names.clear()
        self.adapter.begin()
        total = state.epoch_length * state.max_epochs if state.epoch_length and state.max_epochs else None
        self.adapter.describe({"max_epochs": state.max_epochs, "epoch_length": state.epoch_length}, total)

    @never_raises
    def iteration_completed(self, trainer: Any) -> None:
        """Push what an iteration has returned: a loss, or values by name."""
        state = trainer.state
        output = state.output if isinstance(state.output, Mapping) else {"loss": state.output}
        values = {key: value for key, value in output.items() if is_scalar(value)}
        samples, tokens = counts(state.batch)
        values |= {key: count for key, count in (("samples", samples), ("tokens", tokens)) if count}
        if self._optimizer is not None:
            values["learning_rate"] = self._optimizer.param_groups[0]["lr"]
        self.adapter.open().push(values, step=state.iteration - 1)

    @never_raises
    def epoch_completed(self, trainer: Any) -> None:
        """Push the trainer's own metrics."""
        self._push_metrics("train", trainer)

    @never_raises
    def completed(self, trainer: Any) -> None:
        """Leave the run to what follows."""
        self.is_training = False
        self.adapter.rest()

    evaluation_started = RunCallback.evaluation_begins

    @never_raises
    def evaluation_completed(self, evaluator: Any, name: str = "") -> None:
        """Push the metrics of an evaluation, and end it. Without a name, each data set but the trainer's has its own."""
        data = _data(evaluator)
        trainer = self._trainer()
        if trainer is not None and data is _data(trainer):
            name = "train"
        self._push_metrics(name or self._name(data), evaluator)
        self.adapter.evaluates(begins=False)

    @property
    def _iteration(self) -> int:
        trainer = self._trainer()
        return 0 if trainer is None else int(trainer.state.iteration)

    def _name(self, data: Any) -> str:
        """Return the name of a data set: that of one that has gone is free for what is evaluated in its place later."""
        now, places = self._iteration, ("eval", *(f"eval-{number}" for number in range(2, len(self._names) + 2)))
        own = (name for name, (kept, _) in self._names.items() if data is not None and kept() is data)
        used = {name for name, (kept, last) in self._names.items() if kept() is not None or last == now}
        name = next(own, None) or next(place for place in places if place not in used)
        try:
            self._names[name] = weakref.ref(data), now
        except TypeError:  # a list
            self._names[name] = _nothing, now
        return name

    def _push_metrics(self, name: str, engine: Any) -> None:
        values = {f"{name}/{key}": value for key, value in engine.state.metrics.items() if is_scalar(value)}
        self.adapter.open().push(values, step=max(0, self._iteration - 1))


def _nothing() -> None:
    """Stand for a weak reference before a training."""


def _data(engine: Any) -> Any:
    loader = engine.state.dataloader
    return getattr(loader, "dataset", loader)
