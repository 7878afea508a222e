"""Which evidence each alert is worth."""

from __future__ import annotations

from typing import Literal

Part = Literal["ranks", "samples", "stacks", "memory", "cpu", "io", "host", "cgroups", "gpus", "deaths"]

OF_RUNS: tuple[Part, ...] = ("ranks", "samples")
"""Of every alert that is about a run; samples only where it is about a key."""

_MEMORY: tuple[Part, ...] = ("memory", "host", "cgroups")
_DEATH: tuple[Part, ...] = ("deaths", *_MEMORY)

_WANTED: dict[str, tuple[Part, ...]] = {
    **dict.fromkeys(("TrainingStalled", "RankSilent", "StragglerRank"), ("stacks",)),
    **dict.fromkeys(("TrainingProcessDied", "OomKilled", "DataLoaderDied"), _DEATH),
    **dict.fromkeys(("HostMemoryPressure", "ContainerMemoryPressure", "HostMemoryLeak", "ShmFull"), _MEMORY),
    "CpuSaturated": ("cpu", "cgroups"),
    "DataLoaderBottleneck": ("cpu",),
    "IoBottleneck": ("io", "host"),
}

_UNTOLD = frozenset(("RunStarted", "RunRestarted", "RunFinished"))
"""What only happened needs no explanation."""


def wanted(alert: str, labels: dict[str, str]) -> tuple[Part, ...]:
    """What to gather for an alert of this name with these labels, in the order in which it is told."""
    if alert in _UNTOLD:
        return ()
    parts = _WANTED.get(alert, ())
    if "gpu" in labels or alert.startswith(("Gpu", "Nvlink")):
        parts = (*parts, "gpus")
    return (*OF_RUNS, *parts) if "run" in labels else parts
