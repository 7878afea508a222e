"""Measure the cost of eight GPUs at 1 s: the daemon and its worker, a cycle, each NVML call; run by ``make bench``.

Once with simulated GPUs, and once with a C driver compiled here, below the real worker and the real pynvml. A call then
costs only the time in Python; a real driver adds its own.

"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from nvml.fake.library import Scenario, compile_library
from processes import Daemon

from bench.cost import cpu, memory
from bench.table import UNAVAILABLE, head, machine, row, verdict
from trackside_daemon.nvml.handle.handle import Nvml, NvmlUnavailable
from trackside_daemon.nvml.reading import WorkerSettings
from trackside_daemon.nvml.worker.lock import LOCK_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.nvml.reading import Reading

GPUS = 8
BOARD = "h100-busy"
SECONDS = 60
CYCLES = 240
PAUSE = 0.25
"""Seconds between two cycles; 100 ms is what GPM needs."""

CPU_LIMIT, RSS_LIMIT = 1.0, 95.0
"""Percent of a core, and MiB; all processes together."""

DCGM_MEMORY = 484
"""MiB: the median working set of dcgm-exporter on 12 nodes of 8 GPUs, as published (pytorch/ci-infra#1011); 467 to 479 on
nodes of fewer."""

PATIENCE = 60.0


class Cost(NamedTuple):
    """CPU in percent of a core; RSS and PSS in MiB."""

    cpu: float
    rss: float
    pss: float

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        return Cost(self.cpu + other.cpu, self.rss + other.rss, self.pss + other.pss)


def main() -> None:
    """Print the tables."""
    machine()
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        environ = c_driver(Path(directory))
        head(f"{GPUS} GPUs at 1 s, default families, a scrape every 15 s", "CPU, % of a core", "RSS, MiB", "PSS, MiB")
        costs = [_running("simulated", WorkerSettings(simulate=GPUS), {})]
        if environ is not None:
            costs.append(_running("C fake", WorkerSettings(), environ))
        row("dcgm-exporter on nodes of 8 GPUs, published median", UNAVAILABLE, f"{DCGM_MEMORY}", UNAVAILABLE)
        _limits(costs)
        head(f"one cycle of the worker, {GPUS} GPUs", "median, ms", "p99, ms")
        _cycles("simulated", WorkerSettings(simulate=GPUS), {})
        if environ is not None:
            _print_calls("C fake", _cycles("C fake", WorkerSettings(), environ))

    if _has_driver():
        head("the real GPUs of this machine at 1 s", "CPU, % of a core", "RSS, MiB", "PSS, MiB")
        _running("NVIDIA's driver", WorkerSettings(), {}, None)
        head("one cycle of the worker", "median, ms", "p99, ms")
        _print_calls("NVIDIA's driver", _cycles("NVIDIA's driver", WorkerSettings(), {}))


def _has_driver() -> bool:
    nvml = Nvml(WorkerSettings())
    try:
        nvml.read(PATIENCE)
    except NvmlUnavailable as error:
        print(f"\nThis machine has no usable GPU: {error}.")
        return False
    finally:
        nvml.close()
    return True


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
    """Run a daemon and its worker for a while; return the cost of each and of both together, and the last page."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        daemon = Daemon(Path(directory), f"--collector.gpu.simulate={order.simulate}", environ=environ, fresh=True)
        try:
            costs, page = _costs(daemon, seconds)
        finally:
            daemon.stop()
    return {**costs, "together": sum(costs.values(), Cost(0.0, 0.0, 0.0))}, page


def series_of_gpus(page: str) -> int:
    """Return the number of series of GPUs on a page of /metrics."""
    return sum(line.startswith("trackside_gpu_") for line in page.splitlines())


def _running(what: str, order: WorkerSettings, environ: Mapping[str, str], gpus: int | None = GPUS) -> Cost:
    """Print what a daemon and its worker cost in a minute, and return the cost of both."""
    costs, page = running(order, environ)
    up = page.count("\ntrackside_gpu_up{")
    assert gpus in {None, up}, f"{up} GPUs on the page"
    for name in ("daemon", "ingest worker", "NVML worker"):
        _cost(f"{what}: {name}", costs[name])
    _cost(f"{what}: together, {series_of_gpus(page)} series of GPUs", costs["together"])
    return costs["together"]


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


def _cost(what: str, cost: Cost) -> None:
    row(what, f"{cost.cpu:.2f}", f"{cost.rss:.1f}", f"{cost.pss:.1f}")


def _limits(costs: list[Cost]) -> None:
    head("limit, all processes together", "measured", "target", "")
    for what, cost in zip(("simulated", "C fake"), [*costs, None][:2], strict=True):
        verdict(
            f"{what}: CPU",
            f"{cost.cpu:.2f} %" if cost else "no compiler here",
            f"< {CPU_LIMIT:g} % of a core",
            met=cost.cpu < CPU_LIMIT if cost else None,
        )
        verdict(
            f"{what}: RSS",
            f"{cost.rss:.1f} MiB" if cost else "no compiler here",
            f"<= {RSS_LIMIT:g} MiB",
            met=cost.rss <= RSS_LIMIT if cost else None,
        )


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


def _cycles(what: str, order: WorkerSettings, environ: Mapping[str, str]) -> Reading:
    """Print the time of a cycle, and return the worker's last answer."""
    took, reading = cycle_times(order, environ)
    row(what, f"{statistics.median(took):.2f}", f"{statistics.quantiles(took, n=100)[98]:.2f}")
    return reading


def _print_calls(what: str, reading: Reading) -> None:
    """Print each function, the costliest first; functions that are not called in each cycle share one row."""
    head(f"NVML call, {len(reading.gpus)} GPUs, {what}", "calls per cycle", "mean, µs", "ms per cycle")
    times = {function: sum(results.values()) for function, results in reading.calls.items()}
    each = [function for function, called in times.items() if called >= CYCLES]
    for function in sorted(each, key=lambda function: -reading.call_seconds[function]):
        _call(f"`{function}`", times[function], reading.call_seconds[function])
    rest = [function for function in times if function not in each]
    _call("all others, at the start", sum(times[one] for one in rest), sum(reading.call_seconds[one] for one in rest))


def _call(what: str, called: int, seconds: float) -> None:
    cycles = CYCLES + 1
    row(what, f"{called / cycles:.3g}", f"{1e6 * seconds / max(1, called):.1f}", f"{1e3 * seconds / cycles:.3f}")


if __name__ == "__main__":
    main()
