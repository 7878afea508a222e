"""Parts of the evidence that each alert needs."""

from collections.abc import Mapping
from typing import Any, Literal

from trackside_daemon.alerts.active_alert import ADDITION, CONCLUSION
from trackside_daemon.model.records import OF_BATCHES, STALLS

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
    "console",
    "neighbours",
    "diagnosis",
]

# Parts of every alert about a run; samples exist only if it is about a key.
OF_RUNS: tuple[Part, ...] = ("ranks", "samples")
# Parts of one that comes again while it fires.
OF_OCCURRENCES: tuple[Part, ...] = ("batches", "checkpoint", "deaths", "console")
# Parts with sentences that end the description.
ADDITIONS = frozenset(("checkpoint", "console", "neighbours"))

_MEMORY: tuple[Part, ...] = ("memory", "host", "cgroups")
_DEATH: tuple[Part, ...] = ("checkpoint", "deaths", "console", *_MEMORY)

_PARTS: dict[str, tuple[Part, ...]] = {
    **dict.fromkeys(("TrainingStalled", "RankSilent"), ("stacks",)),
    **dict.fromkeys(("SlowStep", "ThroughputRegression"), ("causes", "gpus", "diagnosis")),
    "PerformanceRegression": ("diagnosis",),
    "GpuUnderutilized": ("causes", "diagnosis"),
    "StragglerRank": ("causes", "gpus", "stacks", "diagnosis"),
    **dict.fromkeys(OF_BATCHES - {"LossHardBatch"}, ("checkpoint",)),
    **dict.fromkeys(("LossDiscontinuity", "ReplicasDiffer", "KlBlowup", "RewardCollapse"), ("checkpoint",)),
    **dict.fromkeys(("TrainingProcessDied", "OomKilled", "DataLoaderDied"), _DEATH),
    **dict.fromkeys(("HostMemoryPressure", "ContainerMemoryPressure", "ShmFull"), _MEMORY),
    "HostMemoryLeak": ("checkpoint", *_MEMORY),
    "CpuSaturated": ("cpu", "neighbours", "cgroups"),
    "DataLoaderBottleneck": ("cpu", "diagnosis"),
    "IoBottleneck": ("io", "host"),
}

# Alerts about events that need no explanation.
_WITHOUT_EVIDENCE = frozenset(("RunStarted", "RunRestarted", "RunFinished"))


def awaits(alert: str, evidence: Mapping[str, Any]) -> bool:
    """Return whether a notification of an alert waits for what its text begins or ends with."""
    parts = frozenset(_PARTS.get(alert, ()))
    begins = alert in OF_BATCHES | STALLS or "causes" in parts
    return (begins and CONCLUSION not in evidence) or (bool(parts & ADDITIONS) and ADDITION not in evidence)


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
