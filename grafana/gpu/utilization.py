"""Panels about GPU utilization, activity and memory."""

from __future__ import annotations

from grafana.board import Row
from grafana.gpu.queries import GPU, SELECTED, by_gpu, each, total
from grafana.panels import Level, Query, above, lines

from trackside_daemon.alerts.rules.builtin.gpu import IDLE
from trackside_daemon.alerts.settings import ThresholdsSection

LIMITS = ThresholdsSection()
UTILIZATION = each("trackside_gpu_utilization_ratio{GPU}")
SM = each("trackside_gpu_sm_active_ratio{GPU}")
TENSOR = each("trackside_gpu_tensor_active_ratio{GPU}")
OCCUPANCY = each("trackside_gpu_sm_occupancy_ratio{GPU}")
BANDWIDTH = each("trackside_gpu_dram_active_ratio{GPU}")
USED = each("trackside_gpu_memory_used_bytes{GPU}")
SIZE = each("trackside_gpu_memory_bytes{GPU}")
MEMORY = f"({USED} / on ({GPU}) {SIZE})"
UTILIZATION_LEVELS = [Level("red"), Level("orange", IDLE), Level("green", LIMITS.gpu_underutilized_ratio)]
SHARE = {"minimum": 0, "maximum": 1}


def rows() -> list[Row]:
    """Return the rows of activity and memory."""
    return [Row("Utilization and activity", _means(), *_shares()), Row("Memory", *_memory(), collapsed=True)]


def _means() -> object:
    means = {
        "utilization: a kernel ran": UTILIZATION,
        "SMs active": SM,
        "SM occupancy": OCCUPANCY,
        "tensor cores active": TENSOR,
        "memory bandwidth": BANDWIDTH,
    }
    return lines(
        "GPU activity",
        "Means over the selected GPUs. Utilization is 100 % even if one SM of a hundred works, or a kernel only waits for other "
        "ranks. A wide gap to the SMs means small kernels or waiting; a gap from there to the tensor cores means no half precision.",
        "percentunit",
        *(Query(f"avg ({series} {SELECTED})", name) for name, series in means.items()),
        width=24,
        **SHARE,
    )


def _shares() -> list[object]:
    return [
        by_gpu(
            "Utilization",
            "Share of time in which a kernel ran. GpuUnderutilized fires below the upper line for five minutes while its rank makes "
            "steps: check the run's data wait and phases. 0 for ten minutes with memory in use is GpuIdleButHeld.",
            "percentunit",
            UTILIZATION,
            levels=UTILIZATION_LEVELS,
            **SHARE,
        ),
        by_gpu(
            "SMs active",
            "Share of time in which an SM had a warp, averaged over all SMs. If it is far below utilization, use larger batches or "
            "fused kernels. Available on Hopper and later.",
            "percentunit",
            SM,
            **SHARE,
        ),
        by_gpu(
            "Tensor cores active",
            "Share of time in which the tensor cores worked; 0.3 to 0.6 is good for a large model. Near 0, there is no half precision "
            "or no large matrix. Available on Hopper and later.",
            "percentunit",
            TENSOR,
            **SHARE,
        ),
    ]


def _memory() -> list[object]:
    reserved = each("trackside_gpu_memory_reserved_bytes{GPU}")
    return [
        by_gpu(
            "Memory in use",
            "Device memory in use, without the driver's reserve. Growth from step to step is GpuMemoryLeak; see the run.",
            "bytes",
            USED,
            minimum=0,
        ),
        by_gpu(
            "Share of memory in use",
            "GpuMemoryPressure fires above the line: the next larger batch or longer sequence may be out of memory.",
            "percentunit",
            MEMORY,
            levels=above(LIMITS.gpu_memory_ratio),
            **SHARE,
        ),
        lines(
            "Memory of all selected GPUs",
            "Size, use, and the part that the driver reserves and training cannot use.",
            "bytes",
            Query(total(SIZE), "size"),
            Query(total(USED), "used"),
            Query(total(reserved), "reserved by the driver"),
            width=8,
            minimum=0,
        ),
    ]
