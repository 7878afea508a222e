"""What `/metrics` shows of alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.metric import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRING = Metric(
    "trackside_alert_firing",
    "gauge",
    "1 while the alert fires, 0 for 15 minutes after; of several ranks that have it, the first is named.",
    ("alert", "severity", "run", "rank", "key", "gpu", "uuid", "subject"),
)
BEGUN = Metric(
    "trackside_alerts_total", "counter", "How often the alert has begun to fire.", ("alert", "severity", "run")
)
SILENCED = Metric(
    "trackside_alert_silenced",
    "gauge",
    "1 while the alert fires and a silence has it: people are not told.",
    FIRING.labels,
)
EXCESS = Metric(
    "trackside_alerts_excess_total", "counter", "Alerts that were not kept, since 1,000 others fire already."
)

_OWN = FIRING.labels[2:-1]


def labels(alert: str, severity: str, about: Mapping[str, str]) -> tuple[str, ...]:
    """The labels of a firing series; what has none of its own is its subject, and what is not meant is empty."""
    others = (value for name, value in sorted(about.items()) if name not in _OWN)
    return (alert, severity, *(about.get(name, "") for name in _OWN), " ".join(others))
