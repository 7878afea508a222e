"""Stable-Baselines3: `TracksideCallback` pushes what the model's logger gets, with the phases of generation and training.

from trackside.integrations.stable_baselines3 import TracksideCallback

model.learn(100_000, callback=TracksideCallback())
"""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter

from trackside.integrations.run_adapter import RunAdapter, RunCallback, never_raises
from trackside.numbers import numeric


class TracksideCallback(RunCallback, BaseCallback):
    """A callback for ``learn``. Steps are steps of the environments; each dump of the logger is a push."""

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self._writer = _Writer(self.adapter)
        self._phase: Any = None

    @never_raises
    def _on_training_start(self) -> None:
        self.adapter.begin()
        self.adapter.describe({"algorithm": type(self.model).__name__, "policy": type(self.model.policy).__name__})
        if self._writer not in self.logger.output_formats:
            self.logger.output_formats.append(self._writer)

    def _on_step(self) -> bool:
        return True

    @never_raises
    def _on_rollout_start(self) -> None:
        self._enter("generate")

    @never_raises
    def _on_rollout_end(self) -> None:
        self._enter("train")

    @never_raises
    def _on_training_end(self) -> None:
        self._enter("")
        self.adapter.rest()

    def _enter(self, phase: str) -> None:
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        self._phase = self.adapter.open().phase(phase) if phase else None
        if self._phase is not None:
            self._phase.__enter__()


class _Writer(KVWriter):
    """A format of the model's logger."""

    def __init__(self, adapter: RunAdapter) -> None:
        self._adapter = adapter

    @never_raises
    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        self._adapter.open().push(numeric(key_values), step=step)

    def close(self) -> None:
        """Leave the run open: the callback ends it."""
