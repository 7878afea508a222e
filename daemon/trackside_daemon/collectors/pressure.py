"""Time that tasks of the host have waited for CPU, memory and IO."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.metric import Metric, Sample


class PressureCollector:
    """Time that tasks of the host have waited for CPU, memory and IO."""

    name = "pressure"
    metrics: tuple[Metric, ...] = ()

    def __init__(self, proc: Path) -> None:
        pass

    def collect(self) -> list[Sample]:
        """Nothing yet."""
        return []
