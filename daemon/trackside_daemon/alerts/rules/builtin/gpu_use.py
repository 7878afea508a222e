"""How a GPU is used.

| alert | why this threshold |
|---|---|
| GpuMemoryPressure | frameworks keep what they have once had, so a full GPU may be well: only info |
| GpuIdleButHeld | no work for ten minutes and gigabytes held: a process that hangs, waits or was forgotten |
| PcieDegraded | fewer lanes than there are, for five minutes, while its rank makes steps: an idle link gets slower, not narrower |
| GpuUnderutilized | less than 30 % as a mean of five minutes, which is longer than most cycles, while its own rank makes steps |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Query
from trackside_daemon.alerts.rules.rule import Rule

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

GPU = ("gpu", "uuid")
IDLE = 0.005
"""Less than this is no work: the driver's utilisation is in whole percents."""


STEPS = Query("trackside_training_steps_total", how="rate", window=300.0, above=0.0)
TRAINS = Query("trackside_gpu_rank_info", on=("run", "rank"), only=(STEPS,))
"""GPUs whose rank makes steps."""


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """In the order of the table, but the cause before what it causes."""
    return [_memory(thresholds), _held(thresholds), _underutilized(thresholds), _narrow()]


def _memory(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "GpuMemoryPressure",
        "info",
        Query(
            "trackside_gpu_memory_used_bytes",
            over=Query("trackside_gpu_memory_bytes"),
            on=GPU,
            by=GPU,
            above=thresholds.gpu_memory_ratio,
        ),
        "GPU {gpu} has {value:percent} of its memory in use",
        "Since {since}. The next larger batch or longer sequence may be out of memory; what the framework has allocated "
        "but does not use does not count, look at torch.cuda.memory_summary().",
        lasting=120.0,
    )


def _held(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "GpuIdleButHeld",
        "warning",
        Query(
            "trackside_gpu_utilization_ratio",
            how="mean",
            window=600.0,
            on=GPU,
            by=GPU,
            below=IDLE,
            only=(Query("trackside_gpu_memory_used_bytes", above=thresholds.gpu_held_bytes),),
        ),
        "GPU {gpu} had no work for 10 min and holds memory",
        "Since {since}. trackside_gpu_process_memory_bytes and nvidia-smi name the processes: one that hangs, waits or was "
        "forgotten.",
    )


def _underutilized(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "GpuUnderutilized",
        "warning",
        Query(
            "trackside_gpu_utilization_ratio",
            how="mean",
            window=300.0,
            on=GPU,
            by=GPU,
            below=thresholds.gpu_underutilized_ratio,
            only=(TRAINS,),
        ),
        "GPU {gpu} was at work for {value:percent} of the last {window}, while its rank made steps",
        "Since {since}. Look at what the step waits for: trackside_training_data_wait_seconds, the phases, the CPUs; a larger "
        "batch or more data loader workers may help.",
        keep_firing=60.0,
        because=("GpuIdleButHeld",),
    )


def _narrow() -> Rule:
    return Rule(
        "PcieDegraded",
        "warning",
        Query(
            "trackside_gpu_pcie_link_width_lanes",
            over=Query("trackside_gpu_pcie_link_max_width_lanes"),
            on=GPU,
            by=GPU,
            below=0.99,
            only=(TRAINS,),
        ),
        "GPU {gpu} has {value:percent} of its PCIe lanes, while its rank makes steps",
        "Since {since}. Its copies from the host and to other nodes are that much slower. Look at dmesg for AER errors and at "
        "trackside_gpu_pcie_replays_total; reseat the GPU or its riser.",
        lasting=300.0,
        keep_firing=60.0,
    )
