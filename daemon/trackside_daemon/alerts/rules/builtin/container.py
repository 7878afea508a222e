"""Rules for containers, and for every cgroup with a limit.

| alert | why this threshold |
|---|---|
| ContainerMemoryPressure | critical: near the limit without cached files, which fill every container in the end and which the kernel drops before it kills a process; warning: near the limit with caches, and a tenth of the time lost waiting for memory |
| CpuSaturated | for five minutes, a quarter of the periods reached the CPU limit |
| OomKilled | the kernel killed a process; if it was a rank or a worker, another alert reports that, so info |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Matcher, Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.model.families import cgroup

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

CGROUP = ("cgroup",)
MINUTE = 60.0


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """Return the rules in the order of the table."""
    return [*_memory(thresholds), _cpu(thresholds), _killed()]


def _memory(thresholds: ThresholdsSection) -> list[Rule]:
    limit = Query(cgroup.LIMIT)
    stalled = Query(
        cgroup.WAITING,
        (Matcher("resource", "memory"),),
        function="rate",
        window=MINUTE,
        above=thresholds.host_memory_stalled_ratio,
    )
    most = thresholds.container_memory_ratio
    return [
        Rule(
            "ContainerMemoryPressure",
            "critical",
            Query(cgroup.UNRECLAIMABLE, over=limit, on=CGROUP, above=most),
            "the cgroup {cgroup} uses {value:percent} of its memory limit without caches, and the OOM killer is near",
            lasting=30.0,
            keep_firing=MINUTE,
            variant="held",
        ),
        Rule(
            "ContainerMemoryPressure",
            "warning",
            Query(cgroup.LIMIT_USED, over=limit, on=CGROUP, above=most, only=(stalled,)),
            "the cgroup {cgroup} uses {value:percent} of its memory limit with caches, and something in it waits for memory",
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
            cgroup.THROTTLED_PERIODS,
            function="rate",
            window=MINUTE,
            over=Query(cgroup.PERIODS, function="rate", window=MINUTE),
            on=CGROUP,
            above=thresholds.cpu_throttled_ratio,
        ),
        "the cgroup {cgroup} reached its CPU limit in {value:percent} of its periods, for 5 min already",
        lasting=300.0,
        keep_firing=MINUTE,
        variant="container",
    )


def _killed() -> Rule:
    return Rule(
        "OomKilled",
        "info",
        Query(cgroup.OOM_KILLS, function="change", window=600.0, above=0.0),
        "the OOM killer killed {value:whole} processes of the cgroup {cgroup} in the last {window}",
    )
