"""torchtune: `TracksideLogger` pushes what a recipe logs.

In a recipe's configuration:

    metric_logger:
      _component_: trackside.integrations.torchtune.TracksideLogger
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trackside.environment.config import as_mapping
from trackside.integrations.run_adapter import RunCallback, never_raises

if TYPE_CHECKING:
    from collections.abc import Mapping


class TracksideLogger(RunCallback):
    """A metric logger: values with the recipe's own keys and steps, which count from 1.

    Args:
        name: As for `trackside.init`.
        log_dir: Left out; configurations have it for torchtune's own loggers.
        arguments: Further arguments of `trackside.init`.
    """

    def __init__(self, name: str | None = None, log_dir: Any = None, **arguments: Any) -> None:
        super().__init__(name, **arguments)

    @never_raises
    def log_config(self, config: Any) -> None:
        """Open the run with the recipe's configuration."""
        self.adapter.begin()
        self.adapter.describe(as_mapping(config))

    @never_raises
    def log(self, name: str, data: Any, step: int) -> None:
        """Push a value."""
        self.adapter.open().push({name: data}, step=step)

    @never_raises
    def log_dict(self, payload: Mapping[str, Any], step: int) -> None:
        """Push the values of a step."""
        self.adapter.open().push(payload, step=step)

    close = RunCallback.run_ends
