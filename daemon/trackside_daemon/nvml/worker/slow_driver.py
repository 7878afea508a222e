"""Choice of the readers to skip for a while when the driver is too slow for the interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.nvml.reader_groups import GROUPS

if TYPE_CHECKING:
    from collections.abc import Collection

    from trackside_daemon.nvml.worker.gpu import Gpu

MAX_SLOW_CYCLES = 3  # number of successive cycles longer than the interval after which a reader is skipped

# The reader of MIG is not optional: without it the other readers would describe another layout of the GPU.
OPTIONAL = {name for name, group in GROUPS.items() if group.extra} | {
    "processes",
    "process-utilization",
    "row-remap-banks",
}


class CycleBudget:
    """Count of successive cycles that took longer than the interval."""

    def __init__(self) -> None:
        self._slow_cycles = 0

    def record_cycle(self, seconds: float, interval: float, gpus: Collection[Gpu]) -> None:
        """Record the duration of a cycle; after too many slow ones, skip the most expensive optional reader.

        Args:
            seconds: Duration of the cycle.
            interval: Seconds between the starts of two cycles.
            gpus: GPUs read in the cycle.
        """
        self._slow_cycles = self._slow_cycles + 1 if seconds > interval else 0
        if self._slow_cycles < MAX_SLOW_CYCLES:
            return
        self._slow_cycles = 0
        costs = {name: sum(gpu.seconds.get(name, 0.0) for gpu in gpus) for name in OPTIONAL}
        costliest = max(costs, key=lambda name: costs[name])
        if not costs[costliest]:
            return
        why = f"it took {costs[costliest]:.2f} s of a cycle that is longer than the interval"
        for gpu in gpus:
            # Until `PROBE_SECONDS` are over, after which the reader is tried again.
            gpu.unsupported.add(costliest, why)
