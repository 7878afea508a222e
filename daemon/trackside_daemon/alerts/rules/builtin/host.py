"""Rules for the resources of the host.

| alert | why this threshold |
|---|---|
| HostMemoryPressure | below 5 % the kernel drops caches that it needs, and the OOM killer is near; or all processes wait for memory a tenth of the time |
| IoBottleneck | for five minutes, all processes wait for I/O a fifth of the time, so steps wait too |
| CpuSaturated | for five minutes, something waits for a CPU half of the time: the data loader or the rank |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Query
from trackside_daemon.alerts.rules.rule import Rule
from trackside_daemon.model.families import host

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

MINUTE = 60.0
LONG = 300.0


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """Return the rules in the order of the table."""
    return [*_memory(thresholds), _io(thresholds), _cpu(thresholds)]


def _memory(thresholds: ThresholdsSection) -> list[Rule]:
    return [
        Rule(
            "HostMemoryPressure",
            "critical",
            Query(
                host.MEMORY_AVAILABLE,
                over=Query(host.MEMORY),
                below=thresholds.host_memory_ratio,
            ),
            "only {value:percent} of the host's memory is available, and the OOM killer is near",
            lasting=30.0,
            keep_firing=MINUTE,
        ),
        Rule(
            "HostMemoryPressure",
            "warning",
            Query(
                host.MEMORY_STALLED,
                function="rate",
                window=MINUTE,
                above=thresholds.host_memory_stalled_ratio,
            ),
            "all processes waited for memory in {value:percent} of the last {window}",
            keep_firing=MINUTE,
        ),
    ]


def _io(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "IoBottleneck",
        "warning",
        Query(
            host.IO_STALLED,
            function="rate",
            window=MINUTE,
            above=thresholds.io_stalled_ratio,
        ),
        "all processes waited for I/O in {value:percent} of the last {window}, for 5 min already",
        lasting=LONG,
        keep_firing=MINUTE,
    )


def _cpu(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "CpuSaturated",
        "warning",
        Query(
            host.CPU_WAITING,
            function="rate",
            window=MINUTE,
            above=thresholds.cpu_waiting_ratio,
        ),
        "a process waited for a CPU in {value:percent} of the last {window}, for 5 min already",
        lasting=LONG,
        keep_firing=MINUTE,
    )
