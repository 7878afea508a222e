"""Cost of the daemon and its worker with the real library of the driver."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from bench import gpu
from bench.gpu_report.result import Result, Table
from trackside_daemon.nvml.reading import WorkerSettings

if TYPE_CHECKING:
    from trackside_daemon.nvml.reading import Reading

CYCLES, SECONDS = 80, 45
FIELDS = (*range(74, 80), *range(251, 254), *range(269, 272))
CYCLE_LIMIT = 250.0
"""Milliseconds: a tick waits a quarter of its interval for the GPUs."""


def measure(result: Result, *, rehearse: bool) -> None:
    """Measure cycles of the worker, then a daemon at 1 s."""
    took, reading = gpu.cycle_times(WorkerSettings(), {}, 4 if rehearse else CYCLES)
    count = len(reading.gpus)
    result.at_most(
        f"NVML cycle of {count} GPU, median", statistics.median(took), CYCLE_LIMIT, "ms", judged=not rehearse
    )
    result.at_most(f"NVML cycle of {count} GPU, longest", max(took), CYCLE_LIMIT, "ms", judged=not rehearse)
    result.tables.append(_calls(reading, len(took) + 1))
    costs, page = gpu.running(WorkerSettings(), {}, 2 if rehearse else SECONDS)
    together = costs["together"]
    result.at_most("daemon and worker, CPU", together.cpu, gpu.CPU_LIMIT, "% of a core", judged=not rehearse)
    result.at_most("daemon and worker, RSS", together.rss, gpu.RSS_LIMIT, "MiB", judged=not rehearse)
    result.tables.append(_field_values())
    rows = [[name, f"{cost.cpu:.2f}", f"{cost.rss:.1f}", f"{cost.pss:.1f}"] for name, cost in costs.items()]
    result.tables.append(Table(["at 1 s, a scrape every 15 s", "CPU, % of a core", "RSS, MiB", "PSS, MiB"], rows))
    result.notes.append(f"/metrics has {gpu.series_of_gpus(page)} series of GPUs with the default families.")


def _field_values() -> Table:
    """Return the raw values of the first GPU's fields of limited time.

    Headers of NVML disagree on three of the numbers: 251 to 253 in some, 269 to 271 in others. nvidia-smi shows the same times as
    ``clocks_event_reasons_counters``.
    """
    import pynvml

    pynvml.nvmlInit()
    try:
        values = pynvml.nvmlDeviceGetFieldValues(pynvml.nvmlDeviceGetHandleByIndex(0), list(FIELDS))
        rows = [
            [str(field.fieldId), str(field.nvmlReturn), str(field.valueType), str(field.value.ullVal)]
            for field in values
        ]
    finally:
        pynvml.nvmlShutdown()
    return Table(["NVML field of limited time", "status", "type", "64-bit value"], rows)


def _calls(reading: Reading, cycles: int) -> Table:
    """Return each NVML function, the costliest first."""
    rows = []
    for function in sorted(reading.calls, key=lambda function: -reading.call_seconds[function]):
        called, seconds = sum(reading.calls[function].values()), reading.call_seconds[function]
        rows.append(
            [
                f"`{function}`",
                f"{called / cycles:.3g}",
                f"{1e6 * seconds / called:.1f}",
                f"{1e3 * seconds / cycles:.3f}",
            ]
        )
    return Table(["NVML call", "calls per cycle", "mean, µs", "ms per cycle"], rows)
