"""The training's processes: what each rank and its data loaders take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trackside_daemon.member import Member
    from trackside_daemon.metric import Metric, Sample
    from trackside_daemon.record import Record


class ProcessCollector:
    """The training's processes: what each rank and its data loaders take."""

    name = "process"
    metrics: tuple[Metric, ...] = ()

    def __init__(self, members: Callable[[], Sequence[Member]], proc: Path, *, smaps: bool = False) -> None:
        pass

    def collect(self) -> list[Sample]:
        """Nothing yet."""
        return []

    def reports(self) -> list[Record]:
        """What has befallen the processes since it was asked last, for the history."""
        return []
