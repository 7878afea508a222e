"""Frameworks of reinforcement learning with loggers: `RlLogger` has the methods that verl, OpenRLHF and NeMo RL call.

    tracking.logger["trackside"] = RlLogger("my-run")             # verl's Tracking
    trainer.wandb_logger = RlLogger("my-run")                     # OpenRLHF; or its tensorboard_logger
    logger.loggers.append(RlLogger("my-run", config=config))      # NeMo RL's Logger

It imports none of them. The keys stay as the framework writes them: `trackside.rl_keys` has their meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside.integrations.run_adapter import RunCallback, never_raises
from trackside.numbers import numeric

if TYPE_CHECKING:
    from collections.abc import Mapping


class RlLogger(RunCallback):
    """A logger that pushes what a framework logs. The run ends with `finish` or `close`, unless the user opened it."""

    @never_raises
    def log(self, data: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        self._push("", data, step)

    @never_raises
    def log_train(self, global_step: int, logs_dict: Mapping[str, Any]) -> None:
        self._push("train", logs_dict, global_step)

    @never_raises
    def log_eval(self, global_step: int, logs_dict: Mapping[str, Any]) -> None:
        self._push("eval", logs_dict, global_step)

    @never_raises
    def log_metrics(self, metrics: Mapping[str, Any], step: int, prefix: str | None = "", *_: Any, **__: Any) -> None:
        self._push(prefix or "", metrics, step)

    @never_raises
    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        self.adapter.describe(params)

    def log_plot(self, *_: Any, **__: Any) -> None:
        """Do nothing with NeMo RL's plots."""

    def log_histogram(self, *_: Any, **__: Any) -> None:
        """Do nothing with NeMo RL's histograms."""

    finish = close = RunCallback.run_ends

    def _push(self, prefix: str, values: Mapping[str, Any], step: int | None) -> None:
        begin = f"{prefix}/" if prefix else ""
        numbers = {f"{begin}{key}": value for key, value in numeric(values).items()}
        self.adapter.open().push(numbers, step=step)
