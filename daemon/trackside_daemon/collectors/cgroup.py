"""Memory, CPU and pressure of the cgroups that training runs in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trackside_daemon.member import Member
    from trackside_daemon.metric import Metric, Sample


class CgroupCollector:
    """Memory, CPU and pressure of the cgroups that training runs in."""

    name = "cgroup"
    metrics: tuple[Metric, ...] = ()

    def __init__(self, members: Callable[[], Sequence[Member]], proc: Path) -> None:
        pass

    def collect(self) -> list[Sample]:
        """Nothing yet."""
        return []
