"""Load averages, and tasks that hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.metric import Metric, Sample


class LoadCollector:
    """Load averages, and tasks that hang."""

    name = "load"
    metrics: tuple[Metric, ...] = ()

    def __init__(self, proc: Path) -> None:
        pass

    def collect(self) -> list[Sample]:
        """Nothing yet."""
        return []
