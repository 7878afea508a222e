"""What the host is short of.

| alert | why this threshold |
|---|---|
| HostMemoryPressure | at 5 % the kernel drops caches that it needs and the OOM killer is near; or a tenth of the time all wait for memory |
| IoBottleneck | a fifth of five minutes in which nothing got on for want of IO is time that steps wait |
| CpuSaturated | half of five minutes something waited for a CPU: the data loader or the rank itself |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alerts.rules.query import Query
from trackside_daemon.alerts.rules.rule import Rule

if TYPE_CHECKING:
    from trackside_daemon.alerts.settings import ThresholdsSection

MINUTE = 60.0
LONG = 300.0


def rules(thresholds: ThresholdsSection) -> list[Rule]:
    """In the order of the table."""
    return [*_memory(thresholds), _io(thresholds), _cpu(thresholds)]


def _memory(thresholds: ThresholdsSection) -> list[Rule]:
    look = "Since {since}. trackside alerts show HostMemoryPressure and trackside_process_resident_memory_bytes say which processes hold it."
    return [
        Rule(
            "HostMemoryPressure",
            "critical",
            Query(
                "trackside_host_memory_available_bytes",
                over=Query("trackside_host_memory_bytes"),
                below=thresholds.host_memory_ratio,
            ),
            "the host has {value:percent} of its memory available; the OOM killer is near",
            look,
            lasting=30.0,
            keep_firing=MINUTE,
        ),
        Rule(
            "HostMemoryPressure",
            "warning",
            Query(
                "trackside_host_pressure_memory_stalled_seconds_total",
                how="rate",
                window=MINUTE,
                above=thresholds.host_memory_stalled_ratio,
            ),
            "nothing got on for want of memory in {value:percent} of the last {window}",
            look,
            keep_firing=MINUTE,
        ),
    ]


def _io(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "IoBottleneck",
        "warning",
        Query(
            "trackside_host_pressure_io_stalled_seconds_total",
            how="rate",
            window=MINUTE,
            above=thresholds.io_stalled_ratio,
        ),
        "nothing got on for want of IO in {value:percent} of the last {window}, and so for 5 min",
        "Since {since}. Look at which disk is busy (trackside_host_disk_io_time_seconds_total), at checkpoints being written "
        "and at where the data is read from.",
        lasting=LONG,
        keep_firing=MINUTE,
    )


def _cpu(thresholds: ThresholdsSection) -> Rule:
    return Rule(
        "CpuSaturated",
        "warning",
        Query(
            "trackside_host_pressure_cpu_waiting_seconds_total",
            how="rate",
            window=MINUTE,
            above=thresholds.cpu_waiting_ratio,
        ),
        "something waited for a CPU in {value:percent} of the last {window}, and so for 5 min",
        "Since {since}. Look at the number of data loader workers and of threads (OMP_NUM_THREADS) against the CPUs, and at "
        "who else computes here.",
        lasting=LONG,
        keep_firing=MINUTE,
    )
