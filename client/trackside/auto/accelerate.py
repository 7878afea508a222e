"""Accelerate: what a training logs with its `Accelerator` is pushed as a tracker's numbers; `TrainingWatch` finds the rest."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from trackside.auto.hooks import auto_run
from trackside.auto.method_wrapping import after, mute_within


def install(name: str) -> None:
    """Patch the methods of `Accelerator`. Its own trackers get the same numbers, which count once."""
    accelerator = sys.modules[name].Accelerator

    def init_trackers(_: Any, project_name: str, config: Any = None, *__: Any, **___: Any) -> None:
        auto_run().describe(name=project_name, config=config if isinstance(config, Mapping) else None)

    def log(_self: Any, values: Mapping[str, Any], step: int | None = None, *_: Any, **__: Any) -> None:
        auto_run().tracked(values, auto_run().step if step is None else step)

    mute_within(accelerator, "log")
    for work in (init_trackers, log):
        after(accelerator, work.__name__, f"Accelerate: {work.__name__}", work)
