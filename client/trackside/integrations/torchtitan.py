"""torchtitan: `TracksideMetrics` pushes what the trainer logs.

In a function of a configuration, in place of ``MetricsProcessor.Config(…)``:

    metrics=TracksideMetrics.Config(log_freq=1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtitan.components.metrics import BaseLogger, LoggerContainer, MetricsProcessor

from trackside.integrations.run_adapter import RunCallback, guarded, never_raises


class TracksideLogger(RunCallback, BaseLogger):
    """A logger: values with the trainer's own keys and steps, which count from 1."""

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        guarded("torchtitan: the run", self.adapter.begin)

    @never_raises
    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Push the values of a step."""
        self.adapter.open().push(metrics, step=step)

    close = RunCallback.run_ends


class TracksideMetrics(MetricsProcessor):
    """The trainer's metrics processor, which also pushes, on every rank, what it logs."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        """The metrics processor's settings, and the run's name."""

        run_name: str | None = None

    def _build_metric_logger(self, *, config: Any, config_dict: dict[str, Any] | None = None, **others: Any) -> Any:
        container = LoggerContainer()
        container.add_logger(super()._build_metric_logger(config=config, config_dict=config_dict, **others))
        container.add_logger(TracksideLogger(config.run_name, config=config_dict))
        return container
