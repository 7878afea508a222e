"""What the GPUs do: how much of them works, and their memory."""

from __future__ import annotations

from grafana.board import Row
from grafana.gpu.queries import CHOSEN, GPU, by_gpu, each, total
from grafana.panels import Level, Query, above, lines

from trackside_daemon.alerts.rules.builtin.gpu_use import IDLE
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
IDLE_OR_LITTLE = [Level("red"), Level("orange", IDLE), Level("green", LIMITS.gpu_underutilized_ratio)]
SHARE = {"least": 0, "most": 1}


def rows() -> list[Row]:
    """Work above memory."""
    return [Row("Utilization is not work", _means(), *_shares()), Row("Memory", *_memory(), collapsed=True)]


def _means() -> object:
    means = {
        "utilization: some kernel ran": UTILIZATION,
        "SMs active": SM,
        "SM occupancy": OCCUPANCY,
        "tensor cores active": TENSOR,
        "memory bandwidth": BANDWIDTH,
    }
    return lines(
        "How much of the GPUs works",
        "Means of the chosen GPUs. Utilization is 100 % when one SM of a hundred is at work, or a kernel only waits for other "
        "ranks. A wide gap to the SMs is small kernels or waiting, one from there to the tensor cores no half precision.",
        "percentunit",
        *(Query(f"avg ({series} {CHOSEN})", name) for name, series in means.items()),
        width=24,
        **SHARE,
    )


def _shares() -> list[object]:
    return [
        by_gpu(
            "Utilization",
            "Share of time in which a kernel ran. Below the upper line for five minutes while its rank makes steps it is "
            "GpuUnderutilized: look at the run's data wait and phases. None for ten minutes and memory held is GpuIdleButHeld.",
            "percentunit",
            UTILIZATION,
            levels=IDLE_OR_LITTLE,
            **SHARE,
        ),
        by_gpu(
            "SMs active",
            "Share of time in which an SM had a warp, over all SMs. Far below utilization: larger batches or fused kernels. "
            "Hopper and later have it.",
            "percentunit",
            SM,
            **SHARE,
        ),
        by_gpu(
            "Tensor cores active",
            "Share of time in which the tensor cores worked; 0.3 to 0.6 is good for a large model. Near 0: no half precision, "
            "or no large matrices. Hopper and later have it.",
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
            "Device memory in use, without what the driver keeps. Growth from step to step is GpuMemoryLeak: look at the run.",
            "bytes",
            USED,
            least=0,
        ),
        by_gpu(
            "Share of memory in use",
            "Above the line it is GpuMemoryPressure: the next larger batch or longer sequence may be out of memory.",
            "percentunit",
            MEMORY,
            levels=above(LIMITS.gpu_memory_ratio),
            **SHARE,
        ),
        lines(
            "Memory of all chosen GPUs",
            "What there is, what is used, and what the driver keeps for itself and no training can have.",
            "bytes",
            Query(total(SIZE), "size"),
            Query(total(USED), "used"),
            Query(total(reserved), "kept by the driver"),
            width=8,
            least=0,
        ),
    ]
