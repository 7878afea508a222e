"""Network devices: bytes, packets, errors, speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.metric import Metric, Sample


class NetworkCollector:
    """Network devices: bytes, packets, errors, speed."""

    name = "network"
    metrics: tuple[Metric, ...] = ()

    def __init__(self, proc: Path, sys: Path, exclude: str) -> None:
        pass

    def collect(self) -> list[Sample]:
        """Nothing yet."""
        return []
