"""What a container, or any cgroup with a limit, is short of.

| alert | why this threshold |
|---|---|
| ContainerMemoryPressure | without cached files, which fill every container in the end and are dropped before anything is killed: critical; all of the limit and a tenth of the time lost by it: warning |
| CpuSaturated | a quarter of its periods ended at its CPU limit, for five minutes |
| OomKilled | the kernel killed something; when it was a rank or a worker, another alert names that, so info |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Matcher, Query
from trackside_daemon.alerts.rules.rule import Rule

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

CGROUP = ("cgroup",)
MINUTE = 60.0
LOOK = (
    "Since {since}. trackside_cgroup_memory_anonymous_bytes and _shmem_bytes say what holds it: processes, or batches in "
    "/dev/shm. Fewer data loader workers, or a higher limit."
)


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """In the order of the table."""
    return [*_memory(thresholds), _cpu(thresholds), _killed()]


def _memory(thresholds: ThresholdsSection) -> list[Rule]:
    limit = Query("trackside_cgroup_memory_limit_bytes")
    stalled = Query(
        "trackside_cgroup_pressure_waiting_seconds_total",
        (Matcher("resource", "memory"),),
        how="rate",
        window=MINUTE,
        above=thresholds.host_memory_stalled_ratio,
    )
    most = thresholds.container_memory_ratio
    return [
        Rule(
            "ContainerMemoryPressure",
            "critical",
            Query("trackside_cgroup_memory_unreclaimable_bytes", over=limit, on=CGROUP, above=most),
            "the cgroup {cgroup} holds {value:percent} of its memory limit, without caches; the OOM killer is near",
            LOOK,
            lasting=30.0,
            keep_firing=MINUTE,
            variant="held",
        ),
        Rule(
            "ContainerMemoryPressure",
            "warning",
            Query("trackside_cgroup_memory_limit_used_bytes", over=limit, on=CGROUP, above=most, only=(stalled,)),
            "the cgroup {cgroup} is at {value:percent} of its memory limit, caches included, and waits for memory",
            LOOK,
            lasting=30.0,
            keep_firing=MINUTE,
            variant="stalled",
        ),
    ]


def _cpu(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "CpuSaturated",
        "warning",
        Query(
            "trackside_cgroup_cpu_throttled_periods_total",
            how="rate",
            window=MINUTE,
            over=Query("trackside_cgroup_cpu_periods_total", how="rate", window=MINUTE),
            on=CGROUP,
            above=thresholds.cpu_throttled_ratio,
        ),
        "the cgroup {cgroup} was held at its CPU limit in {value:percent} of its periods, for 5 min",
        "Since {since}. Raise the limit (trackside_cgroup_cpu_limit_cores), or start fewer workers and threads.",
        lasting=300.0,
        keep_firing=MINUTE,
        variant="container",
    )


def _killed() -> Rule:
    return Rule(
        "OomKilled",
        "info",
        Query("trackside_cgroup_oom_kills_total", how="change", window=600.0, above=0.0),
        "the OOM killer killed {value:whole} processes of the cgroup {cgroup} in the last {window}",
        "Since {since}. dmesg names them and what each held; raise the limit, or look at what grew before.",
    )
