"""The hardware of this machine, for the history of its runs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from trackside_daemon.model.families import gpu

if TYPE_CHECKING:
    from trackside_daemon.model.state import State


def hardware(state: State) -> dict[str, Any]:
    """Return CPUs, memory in bytes, and the names of the GPUs in *state*, in the order of their indexes."""
    (gpus,) = state.values(time.monotonic(), gpu.INFO)
    index, name = gpu.INFO.labels.index("gpu"), gpu.INFO.labels.index("name")
    return {
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": [labels[name] for labels in sorted(gpus, key=lambda labels: int(labels[index]))],
    }
