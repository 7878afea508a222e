"""Measure what the daemon and its NVML worker cost, with simulated GPUs, with a C driver compiled here, or with the real one."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from nvml.fake.library import Scenario, compile_library

from bench.cost import cpu, memory
from bench.daemons import fresh_daemon
from trackside_daemon.nvml.handle.handle import Nvml
from trackside_daemon.nvml.worker.lock import LOCK_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from processes import Daemon

    from trackside_daemon.nvml.reading import Reading, WorkerSettings

GPUS = 8
BOARD = "h100-busy"
SECONDS = 60
CYCLES = 240
PAUSE = 0.25
"""Seconds between two cycles; 100 ms is what GPM needs."""

CPU_LIMIT, RSS_LIMIT = 1.0, 95.0
"""Percent of a core, and MiB; all processes together."""

PATIENCE = 60.0


class Cost(NamedTuple):
    """CPU in percent of a core; RSS and PSS in MiB."""

    cpu: float
    rss: float
    pss: float

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        return Cost(self.cpu + other.cpu, self.rss + other.rss, self.pss + other.pss)


def c_driver(directory: Path) -> dict[str, str] | None:
    """Return the variables that load the C driver into a worker; None without a compiler."""
    try:
        library = compile_library(directory)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"\nThe C fake cannot be compiled: {error}; the tables omit it.")
        return None
    scenario = Scenario(directory / "scenario", BOARD, GPUS)
    # The fake waits for events by looking at its file a hundred times a second; a driver waits for an interrupt.
    scenario.remove("* nvmlDeviceGetSupportedEventTypes")
    # A lock of its own, for another daemon may sample this machine's GPUs.
    return {"LD_LIBRARY_PATH": str(library.parent), LOCK_VARIABLE: f"trackside-bench-{os.getpid()}", **scenario.environ}


def running(order: WorkerSettings, environ: Mapping[str, str], seconds: int = SECONDS) -> tuple[dict[str, Cost], str]:
    """Run a daemon and its workers for a while; return the cost of each and of all together, and the last page."""
    with fresh_daemon(f"--collector.gpu.simulate={order.simulate}", environ=environ) as daemon:
        costs, page = _costs(daemon, seconds)
    return {**costs, "together": sum(costs.values(), Cost(0.0, 0.0, 0.0))}, page


def series_of_gpus(page: str) -> int:
    """Return the number of series of GPUs on a page of /metrics."""
    return sum(line.startswith("trackside_gpu_") for line in page.splitlines())


def _costs(daemon: Daemon, seconds: int) -> tuple[dict[str, Cost], str]:
    """Return the cost of the daemon and of its worker, and the last page."""
    time.sleep(3.0)  # the start's own work is over
    pids = daemon.pids()
    before, begun = {name: cpu(pid) for name, pid in pids.items()}, time.monotonic()
    for _ in range(max(1, seconds // 15)):
        time.sleep(min(15.0, seconds))
        page = daemon.get("/metrics").text
    took = time.monotonic() - begun
    return {name: Cost((cpu(pid) - before[name]) / took * 100, *memory(pid)) for name, pid in pids.items()}, page


def cycle_times(order: WorkerSettings, environ: Mapping[str, str], cycles: int = CYCLES) -> tuple[list[float], Reading]:
    """Return the milliseconds of each cycle of a separate worker, and its last answer."""
    with patch.dict(os.environ, environ):
        nvml = Nvml(order)
        reading = nvml.read(PATIENCE)
        took = []
        for _ in range(cycles):
            time.sleep(PAUSE)
            begun = time.perf_counter()
            reading = nvml.read(PATIENCE)
            took.append(1000 * (time.perf_counter() - begun))
        nvml.close()
    return took, reading
