"""Panels about the run's GPUs by rank, joined with `trackside_gpu_rank_info`."""

from __future__ import annotations

from typing import NamedTuple

from grafana.board import Row
from grafana.panels import Level, Query, above, below, lines, spread
from grafana.run.joins import GPU_OF_RANK, of_gpu
from grafana.run.ranks import GPU_OF_RANK_LINK

from trackside_daemon.alerts.settings import ThresholdsSection

LIMITS = ThresholdsSection()


class Device(NamedTuple):
    """A panel about a value of GPUs.

    Attributes:
        title: Title of the panel.
        description: Description of the panel.
        unit: Grafana's name of the unit.
        value: A query with one series per GPU.
        levels: Threshold of its alert.
        width: Width in columns.
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
        "Share of time in which any kernel ran; it does not show how much of the GPU the kernel used. GpuUnderutilized fires "
        "below the line for five minutes while steps are made; see the row Where the time goes.",
        "percentunit",
        "trackside_gpu_utilization_ratio{HERE}",
        below(LIMITS.gpu_underutilized_ratio),
    ),
    Device(
        "SM activity by rank",
        "Share of time in which an SM had a warp, averaged over all SMs: how much of the GPU is used. High utilization with low "
        "SM activity means small kernels. Available on Hopper and later.",
        "percentunit",
        "trackside_gpu_sm_active_ratio{HERE}",
    ),
    Device(
        "Device memory in use by rank",
        "Share of a GPU's memory in use. GpuMemoryPressure fires above the line: the next larger batch may be out of memory. "
        "Growth from step to step is GpuMemoryLeak, such as a loss that is kept with its graph.",
        "percentunit",
        "trackside_gpu_memory_used_bytes{HERE} / trackside_gpu_memory_bytes{HERE}",
        above(LIMITS.gpu_memory_ratio),
    ),
    Device(
        "Temperature by rank",
        "Temperature of the GPUs. If one is above its neighbors, check its fan or airflow; if all are hot, check the room. The line "
        "applies to GPUs that do not report when they slow down; the others have their margin on the dashboard GPUs.",
        "celsius",
        'trackside_gpu_temperature_celsius{HERE, sensor="gpu"}',
        above(LIMITS.gpu_hot_celsius),
        width=12,
    ),
    Device(
        "Power by rank",
        "Power of the GPUs. One rank far below the others waits for them or is capped. Low power of all ranks means little work.",
        "watt",
        "trackside_gpu_power_watts{HERE}",
        width=12,
    ),
)


def row() -> Row:
    """Return the row with a panel for each of `DEVICES` and those about PyTorch."""
    return Row("GPUs of the run", *(_panel(device) for device in DEVICES), *_pytorch())


def _pytorch() -> list[object]:
    memory = "trackside_training_device_memory"
    return [
        lines(
            "GPU time by phase",
            "Share of the ranks' time in which their GPUs worked on a phase, measured with CUDA events if the model is watched. For the "
            "rest of the time the GPUs were idle; see the row Where the time goes for the host's time.",
            "percentunit",
            Query(
                "avg by (phase) (rate(trackside_training_device_phase_seconds_total{RANK}[$__rate_interval]))",
                "{{phase}}",
            ),
            stacked=True,
            minimum=0,
        ),
        lines(
            "PyTorch allocator memory",
            "Memory of the fullest GPU: used by tensors, reserved by the allocator, and the peak used by tensors. Much reserved and "
            "little used memory means fragmentation; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps.",
            "bytes",
            Query(f"max({memory}_allocated_bytes{{RANK}})", "used"),
            Query(f"max({memory}_reserved_bytes{{RANK}})", "reserved"),
            Query(f"max({memory}_peak_bytes{{RANK}})", "peak used"),
            minimum=0,
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
        links=[GPU_OF_RANK_LINK],
        **({"minimum": 0, "maximum": 1} if device.unit == "percentunit" else {}),
    )
