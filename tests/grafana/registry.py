"""Every family that a query can name: the daemon's, and those of Prometheus and prometheus_client."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from documents import documented

from trackside_daemon.model.families import foreign
from trackside_daemon.model.families.training import STATES
from trackside_daemon.model.finding import SEVERITIES
from trackside_daemon.nvml.readers.health import KINDS

TARGET = {"cluster", "namespace", "job", "instance", "pod"}
"""Labels that a target may add to all its series, as in the alert rules."""


class Series(NamedTuple):
    """The series of one name.

    Attributes:
        name: The name in a query; for a histogram also with ``_bucket``, ``_sum`` or ``_count``.
        family: Its family.
        unit: The base unit; empty for a number.
        labels: Its labels, including the target's.
    """

    name: str
    family: str
    unit: str
    labels: frozenset[str]


FOREIGN = {
    "up": "",
    "scrape_duration_seconds": "seconds",
    "scrape_samples_scraped": "",
    "scrape_samples_post_metric_relabeling": "",
    "scrape_series_added": "",
    "process_cpu_seconds_total": "seconds",
    "process_max_fds": "",
    "process_open_fds": "",
    "process_resident_memory_bytes": "bytes",
    "process_start_time_seconds": "seconds",
    "process_virtual_memory_bytes": "bytes",
}
"""The unit of each family without labels of its own."""


VALUES: dict[tuple[str, str], set[str]] = {
    ("trackside_training_state", "state"): set(STATES),
    ("trackside_training_rank_state", "state"): set(STATES),
    ("trackside_alert_firing", "severity"): set(SEVERITIES),
    ("trackside_alerts_total", "severity"): set(SEVERITIES),
    ("trackside_gpu_ecc_errors_total", "kind"): set(KINDS),
    ("trackside_gpu_ecc_volatile_errors_total", "kind"): set(KINDS),
    ("trackside_gpu_temperature_celsius", "sensor"): {"gpu", "memory"},
    ("trackside_host_cpu_seconds_total", "mode"): {
        *("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
    },
}
"""Possible values of a family's label, where the code knows them."""


@cache
def series() -> dict[str, Series]:
    """Return all families by their names."""
    found = {name: Series(name, name, unit, frozenset(TARGET)) for name, unit in FOREIGN.items()}
    for name in (*foreign.BANDWIDTH, *foreign.EXEC_TIME):
        found[name] = Series(name, name, "", frozenset({names[0] for names in foreign.OPERATION.values()} | TARGET))
    for metric in documented():
        labels = frozenset({*metric.labels, *TARGET})
        parts = {"": (metric.unit, labels)}
        if metric.kind == "histogram":
            buckets = ("", labels | {"le"})  # which a native histogram, under the name alone, has within
            parts = {"": buckets, "_sum": parts[""], "_count": ("", labels), "_bucket": buckets}
        for suffix, (unit, has) in parts.items():
            found[metric.name + suffix] = Series(metric.name + suffix, metric.name, unit, has)
    return found
