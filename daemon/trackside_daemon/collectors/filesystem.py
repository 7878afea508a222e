"""Room on file systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trackside_daemon.metric import Metric, Sample


class FilesystemCollector:
    """Room on file systems."""

    name = "filesystem"
    metrics: tuple[Metric, ...] = ()

    def __init__(self, paths: Sequence[str], proc: Path, root: Path) -> None:
        pass

    def collect(self) -> list[Sample]:
        """Nothing yet."""
        return []
