"""Rules for the use of GPUs.

| alert | why this threshold |
|---|---|
| GpuMemoryPressure | frameworks keep memory that they have allocated once, so a full GPU can be normal: info |
| GpuIdleButHeld | no work for ten minutes while gigabytes are in use: a process that hangs, waits or was forgotten |
| PcieDegraded | fewer lanes than possible for five minutes, while its rank makes steps: an idle link gets slower, not narrower |
| GpuUnderutilized | a mean below 30 % over five minutes, which is longer than most cycles, while its rank makes steps, and its run does not generate its own data |
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.model.families import gpu
from trackside_daemon.model.families import training as f
from trackside_daemon.model.families.rl import TOTALS

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

GPU = ("gpu", "uuid")
IDLE = 0.005  # utilization below which a GPU counts as idle; the driver reports whole percents

STEPS = Query(f.STEPS, function="rate", window=300.0, above=0.0)
# Selects the GPUs whose rank makes steps.
TRAINS = Query(gpu.RANK_INFO, on=("run", "rank"), only=(STEPS,))

# A training that generates its own data uses some GPUs only for that, and others only for the rest of the step.
GENERATES = Query(TOTALS["generation_seconds"])
ONLY_TRAINS = replace(TRAINS, only=(replace(STEPS, on=("run",), unless=(GENERATES,)),))


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """Return the rules, an inhibiting rule before those that it inhibits."""
    return [_memory(thresholds), _held(thresholds), _underutilized(thresholds), _narrow()]


def _memory(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "GpuMemoryPressure",
        "info",
        Query(
            gpu.MEMORY_USED,
            over=Query(gpu.MEMORY),
            on=GPU,
            by=GPU,
            above=thresholds.gpu_memory_ratio,
        ),
        "GPU {gpu} has {value:percent} of its memory in use",
        lasting=120.0,
    )


def _held(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "GpuIdleButHeld",
        "warning",
        Query(
            gpu.UTILIZATION,
            function="mean",
            window=600.0,
            on=GPU,
            by=GPU,
            below=IDLE,
            only=(Query(gpu.MEMORY_USED, above=thresholds.gpu_held_bytes),),
        ),
        "GPU {gpu} had no work for 10 min while its memory is in use",
    )


def _underutilized(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "GpuUnderutilized",
        "warning",
        Query(
            gpu.UTILIZATION,
            function="mean",
            window=300.0,
            on=GPU,
            by=GPU,
            below=thresholds.gpu_underutilized_ratio,
            only=(ONLY_TRAINS,),
        ),
        "GPU {gpu} was busy for {value:percent} of the last {window}, while its rank made steps",
        keep_firing=60.0,
        inhibited_by=("GpuIdleButHeld",),
    )


def _narrow() -> Rule:
    return Rule(
        "PcieDegraded",
        "warning",
        Query(
            gpu.PCIE_LINK_WIDTH,
            over=Query(gpu.PCIE_LINK_MAX_WIDTH),
            on=GPU,
            by=GPU,
            below=0.99,
            only=(TRAINS,),
        ),
        "GPU {gpu} has {value:percent} of its PCIe lanes, while its rank makes steps",
        lasting=300.0,
        keep_firing=60.0,
    )
