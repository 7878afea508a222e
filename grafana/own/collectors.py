"""What is read of machines and GPUs."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, lines, states, texts

FAILING = (
    "trackside_collector_success{HERE}"
    " and on (job, instance, collector) trackside_collector_last_success_timestamp_seconds{HERE}"
)
"""Of the collectors that have given values at all: a machine need not have InfiniBand."""


def row() -> Row:
    """Success, duration, age and what was left out."""
    return Row("Collectors", *_success(), *_time())


def _success() -> list[object]:
    return [
        states(
            "Collectors",
            "Whether each gave its values, on all daemons that are chosen. One that fails on one machine: `trackside doctor` "
            "there; on all: a change of the system or of the daemon.",
            Query(f"min by (collector) ({FAILING})", "{{collector}}"),
            mappings=texts({0: ("fails", "orange"), 1: ("well", "green")}),
        ),
        lines(
            "Time since the last success",
            "The oldest of all daemons. A line that rises is a collector that fails or hangs.",
            "s",
            Query(
                "time() - min by (collector) (trackside_collector_last_success_timestamp_seconds{HERE})",
                "{{collector}}",
            ),
            least=0,
        ),
    ]


def _time() -> list[object]:
    return [
        lines(
            "Duration of a run",
            "How long each collector took, on the slowest daemon. GPUs that take long are a driver that is slow to answer.",
            "s",
            Query("max by (collector) (trackside_collector_duration_seconds{HERE})", "{{collector}}"),
            least=0,
        ),
        lines(
            "Ticks left out",
            "Ticks in which a collector was still busy with the one before, on all daemons. Now and then is a busy machine; "
            "always is a source that takes longer than --sample.interval.",
            "none",
            Query(
                "sum by (collector) (increase(trackside_collector_skipped_total{HERE}[$__rate_interval]))",
                "{{collector}}",
            ),
            least=0,
        ),
    ]


def nvml() -> Row:
    """The process that reads NVML."""
    calls = "sum by (function) (rate(trackside_nvml_{}_total{{HERE}}[$__rate_interval]))"
    return Row(
        "NVML",
        lines(
            "Replaced workers",
            "How often the process that reads NVML was replaced, by reason. Timeouts are a driver that hangs; gpu_lost is a GPU "
            "that is gone.",
            "none",
            Query(
                "sum by (reason) (increase(trackside_nvml_worker_restarts_total{HERE}[$__rate_interval]))", "{{reason}}"
            ),
            least=0,
            width=8,
        ),
        lines(
            "Calls by function",
            "Calls of NVML a second. Of simulated GPUs they are those that real ones would take.",
            "short",
            Query(calls.format("calls"), "{{function}}"),
            least=0,
            width=8,
        ),
        lines(
            "Time in the driver by function",
            "Seconds a second that calls of NVML took. One function that grows is what the driver is slow at; "
            "--collector.gpu.skip leaves its group out. Of simulated GPUs they are those that real ones would take.",
            "percentunit",
            Query(calls.format("call_seconds"), "{{function}}"),
            least=0,
            width=8,
        ),
        collapsed=True,
    )
