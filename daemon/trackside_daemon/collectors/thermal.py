"""Temperatures and energy of CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.metric import Metric, Sample


class ThermalCollector:
    """Temperatures and energy of CPUs."""

    name = "thermal"
    metrics: tuple[Metric, ...] = ()

    def __init__(self, sys: Path) -> None:
        pass

    def collect(self) -> list[Sample]:
        """Nothing yet."""
        return []
