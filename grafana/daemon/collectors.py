"""Panels about collectors and the NVML worker."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, lines, states, value_texts

FAILING = (
    "trackside_collector_success{HERE}"
    " and on (job, instance, collector) trackside_collector_last_success_timestamp_seconds{HERE}"
)
"""Success of collectors that have produced values before: a machine need not have InfiniBand."""


def row() -> Row:
    """Return the row with success, duration, age and skipped ticks."""
    return Row("Collectors", *_success(), *_time())


def _success() -> list[object]:
    return [
        states(
            "Collectors",
            "Whether each collector produced its values, on all selected daemons. If one fails on one machine, run `trackside "
            "doctor` there. If it fails on all, the system or the daemon has changed.",
            Query(f"min by (collector) ({FAILING})", "{{collector}}"),
            mappings=value_texts({0: ("failing", "orange"), 1: ("ok", "green")}),
        ),
        lines(
            "Time since the last success",
            "The longest time over all daemons. A rising line is a collector that fails or hangs.",
            "s",
            Query(
                "time() - min by (collector) (trackside_collector_last_success_timestamp_seconds{HERE})",
                "{{collector}}",
            ),
            minimum=0,
        ),
    ]


def _time() -> list[object]:
    return [
        lines(
            "Collection time",
            "Time that each collector took, on the slowest daemon. If the GPU collector is slow, the driver is slow to answer.",
            "s",
            Query("max by (collector) (trackside_collector_duration_seconds{HERE})", "{{collector}}"),
            minimum=0,
        ),
        lines(
            "Skipped ticks",
            "Ticks in which a collector was still busy with an earlier tick, on all daemons. Occasional ones mean a busy machine; "
            "constant ones mean that a source needs longer than --sample.interval.",
            "none",
            Query(
                "sum by (collector) (increase(trackside_collector_skipped_total{HERE}[$__rate_interval]))",
                "{{collector}}",
            ),
            minimum=0,
        ),
    ]


def nvml() -> Row:
    """Return the row of the process that reads NVML."""
    calls = "sum by (function) (rate(trackside_nvml_{}_total{{HERE}}[$__rate_interval]))"
    return Row(
        "NVML",
        lines(
            "Worker restarts",
            "How often the process that reads NVML was replaced, by reason. timeout means that the driver hangs; gpu_lost means "
            "that a GPU is gone.",
            "none",
            Query(
                "sum by (reason) (increase(trackside_nvml_worker_restarts_total{HERE}[$__rate_interval]))", "{{reason}}"
            ),
            minimum=0,
            width=8,
        ),
        lines(
            "Calls by function",
            "NVML calls per second. Simulated GPUs show the calls that real ones would need.",
            "short",
            Query(calls.format("calls"), "{{function}}"),
            minimum=0,
            width=8,
        ),
        lines(
            "Time in the driver by function",
            "Seconds per second spent in NVML calls. If one function grows, the driver is slow at it, and --collector.gpu.skip "
            "leaves out its group. Simulated GPUs show the calls that real ones would need.",
            "percentunit",
            Query(calls.format("call_seconds"), "{{function}}"),
            minimum=0,
            width=8,
        ),
        collapsed=True,
    )
