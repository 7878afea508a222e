"""The GPUs of the run, by rank, through `trackside_gpu_rank_info`."""

from __future__ import annotations

from typing import NamedTuple

from grafana.board import Row
from grafana.panels import Level, Query, above, below, lines, spread
from grafana.run.joins import GPU_OF_RANK, of_gpu
from grafana.run.ranks import ITS_GPU

from trackside_daemon.alerts.settings import ThresholdsSection

LIMITS = ThresholdsSection()


class Device(NamedTuple):
    """A value of a GPU.

    Attributes:
        title: Of its panel.
        description: Of its panel.
        unit: As Grafana calls it.
        value: A query by GPU.
        levels: Where its alert begins.
        width: In columns.
    """

    title: str
    description: str
    unit: str
    value: str
    levels: list[Level] | None = None
    width: int = 8


DEVICES = (
    Device(
        "GPU utilization by rank",
        "Share of time in which any kernel ran, which says not how much of the GPU it used. Below the line for five minutes "
        "while steps are made it is GpuUnderutilized: see where the time goes.",
        "percentunit",
        "trackside_gpu_utilization_ratio{HERE}",
        below(LIMITS.gpu_underutilized_ratio),
    ),
    Device(
        "SM activity by rank",
        "Share of time in which an SM had a warp, over all SMs: how much of the GPU is used. High utilization and low SM "
        "activity are small kernels. Hopper and later have it.",
        "percentunit",
        "trackside_gpu_sm_active_ratio{HERE}",
    ),
    Device(
        "Device memory in use by rank",
        "Share of a GPU's memory in use. Above the line it is GpuMemoryPressure: the next larger batch may be out of memory. "
        "Growth from step to step is GpuMemoryLeak, such as a loss kept with its graph.",
        "percentunit",
        "trackside_gpu_memory_used_bytes{HERE} / trackside_gpu_memory_bytes{HERE}",
        above(LIMITS.gpu_memory_ratio),
    ),
    Device(
        "Temperature by rank",
        "Of the GPUs themselves. One above its neighbours is its fan or airflow, all are the room. The line is for GPUs that "
        "do not tell when they slow down; the others have their margin on the dashboard GPUs.",
        "celsius",
        'trackside_gpu_temperature_celsius{HERE, sensor="gpu"}',
        above(LIMITS.gpu_hot_celsius),
        width=12,
    ),
    Device(
        "Power by rank",
        "Power that the GPUs draw. One rank far below the others waits for them or is capped; all low is little work.",
        "watt",
        "trackside_gpu_power_watts{HERE}",
        width=12,
    ),
)


def row() -> Row:
    """A panel for each of `DEVICES`."""
    return Row("GPUs of the run", *(_panel(device) for device in DEVICES), *_of_torch())


def _of_torch() -> list[object]:
    memory = "trackside_training_device_memory"
    return [
        lines(
            "Time of the GPUs by phase",
            "Share of the ranks' time in which their GPUs worked on a phase, by CUDA events, where the model is watched. What is "
            "missing to 1 they had nothing to do: see where the host's time goes.",
            "percentunit",
            Query(
                "avg by (phase) (rate(trackside_training_device_phase_seconds_total{RANK}[$__rate_interval]))",
                "{{phase}}",
            ),
            stacked=True,
            least=0,
        ),
        lines(
            "Memory of PyTorch's allocator",
            "Of the fullest GPU: what tensors use, what the allocator holds, and the most that tensors have used. Much held and "
            "little used is fragmentation: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps.",
            "bytes",
            Query(f"max({memory}_allocated_bytes{{RANK}})", "used"),
            Query(f"max({memory}_reserved_bytes{{RANK}})", "held"),
            Query(f"max({memory}_peak_bytes{{RANK}})", "most used"),
            least=0,
        ),
    ]


def _panel(device: Device) -> object:
    return spread(
        device.title,
        device.description,
        device.unit,
        of_gpu(device.value),
        GPU_OF_RANK,
        levels=device.levels,
        width=device.width,
        links=[ITS_GPU],
        **({"least": 0, "most": 1} if device.unit == "percentunit" else {}),
    )
