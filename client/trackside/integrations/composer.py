"""Composer: `TracksideLogger` pushes what the trainer logs: losses, metrics, rates.

from trackside.integrations.composer import TracksideLogger

trainer = Trainer(…, loggers=[TracksideLogger()])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer.loggers import LoggerDestination

from trackside.integrations.run_adapter import RunCallback, never_raises
from trackside.numbers import numeric

if TYPE_CHECKING:
    from collections.abc import Mapping


class TracksideLogger(RunCallback, LoggerDestination):
    """A logger for ``loggers=[…]``: values with Composer's own keys, by batch, and evaluations as phases."""

    @never_raises
    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Describe the run."""
        self.adapter.describe(hyperparameters)

    @never_raises
    def fit_start(self, state: Any, logger: Any) -> None:
        """Open the run."""
        self.adapter.begin()
        duration = state.max_duration.to_timestring() if state.max_duration is not None else ""
        self.adapter.describe({"max_duration": duration}, int(duration[:-2]) if duration.endswith("ba") else None)

    @never_raises
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Push the numbers among what is logged."""
        self.adapter.open().push(numeric(metrics), step=step)

    eval_start = RunCallback.evaluation_begins
    eval_end = RunCallback.evaluation_ends
    fit_end = RunCallback.training_ends

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint carries, so that a resume continues the run."""
        return self.adapter.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the run of a checkpoint."""
        self.adapter.resume(state)
