"""What is given up for a while when the driver answers more slowly than it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.nvml.groups import GROUPS

if TYPE_CHECKING:
    from collections.abc import Collection

    from trackside_daemon.nvml.worker.gpu import Gpu

PATIENCE = 3
"""So many cycles in a row may be longer than the interval."""

OPTIONAL = {name for name, group in GROUPS.items() if group.extra} | {
    *("processes", "process-utilization", "row-remap-banks"),
}
"""What MIG makes of the GPU is not: what the other readers tell would be of another layout."""


class Pace:
    """Counts the cycles that took longer than the interval."""

    def __init__(self) -> None:
        self._late = 0

    def keep(self, seconds: float, interval: float, gpus: Collection[Gpu]) -> None:
        """A cycle in which the *gpus* were read took so many *seconds*, and the next is due after so many: its *interval*.

        When too many in a row took longer than that, the costliest optional reader of the GPUs is refused.
        """
        self._late = self._late + 1 if seconds > interval else 0
        if self._late < PATIENCE:
            return
        self._late = 0
        costs = {name: sum(gpu.seconds.get(name, 0.0) for gpu in gpus) for name in OPTIONAL}
        costliest = max(costs, key=lambda name: costs[name])
        if costs[costliest]:
            for gpu in gpus:
                gpu.refusals.add(
                    costliest, f"took {costs[costliest]:.2f} s of a cycle that is longer than the interval"
                )
