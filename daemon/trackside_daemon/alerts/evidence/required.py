"""Parts of the evidence that each alert needs."""

from typing import Literal

from trackside_daemon.model.records import OF_BATCHES

Part = Literal[
    "batches",
    "ranks",
    "samples",
    "stacks",
    "memory",
    "cpu",
    "io",
    "host",
    "cgroups",
    "gpus",
    "deaths",
    "causes",
    "checkpoint",
    "diagnosis",
]

# Parts of every alert about a run; samples exist only if it is about a key.
OF_RUNS: tuple[Part, ...] = ("ranks", "samples")

_MEMORY: tuple[Part, ...] = ("memory", "host", "cgroups")
_DEATH: tuple[Part, ...] = ("checkpoint", "deaths", *_MEMORY)

_PARTS: dict[str, tuple[Part, ...]] = {
    **dict.fromkeys(("TrainingStalled", "RankSilent"), ("stacks",)),
    **dict.fromkeys(("SlowStep", "ThroughputRegression"), ("causes", "gpus", "diagnosis")),
    "PerformanceRegression": ("diagnosis",),
    "GpuUnderutilized": ("causes", "diagnosis"),
    "StragglerRank": ("causes", "gpus", "stacks", "diagnosis"),
    **dict.fromkeys(("NonFinite", "LossDiverging", "LossDiscontinuity", "ReplicasDiffer"), ("checkpoint",)),
    **dict.fromkeys(("TrainingProcessDied", "OomKilled", "DataLoaderDied"), _DEATH),
    **dict.fromkeys(("HostMemoryPressure", "ContainerMemoryPressure", "HostMemoryLeak", "ShmFull"), _MEMORY),
    "CpuSaturated": ("cpu", "cgroups"),
    "DataLoaderBottleneck": ("cpu", "diagnosis"),
    "IoBottleneck": ("io", "host"),
}

# Alerts about events that need no explanation.
_WITHOUT_EVIDENCE = frozenset(("RunStarted", "RunRestarted", "RunFinished"))


def is_explained(alert: str) -> bool:
    """Return whether the evidence of an alert has what its text begins with, so that a notification waits for it."""
    return alert in OF_BATCHES or "causes" in _PARTS.get(alert, ()) or alert == "ReplicasDiffer"


def required_parts(alert: str, labels: dict[str, str]) -> tuple[Part, ...]:
    """Return the parts to gather for an alert with this name and these labels, in the order of the evidence."""
    if alert in _WITHOUT_EVIDENCE:
        return ()
    parts = _PARTS.get(alert, ())
    if alert in OF_BATCHES and "run" in labels:
        return ("batches", *OF_RUNS, *parts)  # first: a client keeps few of them
    if "gpu" in labels or alert.startswith(("Gpu", "Nvlink")):
        parts = (*parts, "gpus")
    return (*OF_RUNS, *parts) if "run" in labels else parts
