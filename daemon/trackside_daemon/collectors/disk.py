"""Block devices: bytes, operations and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.metric import Metric, Sample


class DiskCollector:
    """Block devices: bytes, operations and time."""

    name = "disk"
    metrics: tuple[Metric, ...] = ()

    def __init__(self, proc: Path, exclude: str) -> None:
        pass

    def collect(self) -> list[Sample]:
        """Nothing yet."""
        return []
