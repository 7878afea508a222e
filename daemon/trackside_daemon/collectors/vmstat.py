"""Faults, swapping and OOM kills of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from trackside_daemon.metric import Metric, Sample


class VmstatCollector:
    """Faults, swapping and OOM kills of the host."""

    name = "vmstat"
    metrics: tuple[Metric, ...] = ()

    def __init__(self, proc: Path) -> None:
        pass

    def collect(self) -> list[Sample]:
        """Nothing yet."""
        return []
