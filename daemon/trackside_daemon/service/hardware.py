"""What this machine has, for the history of the runs on it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import psutil

from trackside_daemon.collectors.gpu.gpu import INFO

if TYPE_CHECKING:
    from trackside_daemon.model.state import State


def hardware(state: State) -> dict[str, Any]:
    """CPUs, memory in bytes, and the names of the GPUs that *state* knows, in the order of their numbers."""
    (gpus,) = state.values(time.monotonic(), INFO)
    index, name = INFO.labels.index("gpu"), INFO.labels.index("name")
    return {
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [labels[name] for labels in sorted(gpus, key=lambda labels: int(labels[index]))],
    }
