"""Accelerate: what a training logs with its `Accelerator` is pushed as a tracker's numbers; `TrainingWatch` finds the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trackside.auto.hooks import auto_run
from trackside.auto.method_wrapping import after


@after
def init_trackers(_: Any, project_name: str, config: Any = None, *__: Any, **___: Any) -> None:
    auto_run().describe(name=project_name, config=config if isinstance(config, Mapping) else None)


@after
def log(_self: Any, values: Mapping[str, Any], step: int | None = None, *_: Any, **__: Any) -> None:
    auto_run().tracked(values, auto_run().step if step is None else step)
