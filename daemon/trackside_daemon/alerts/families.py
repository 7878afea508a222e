"""What `/metrics` shows of alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.model.metric import Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trackside_daemon.alerts.active_alert import ActiveAlert

FIRING = Metric(
    "trackside_alert_firing",
    "gauge",
    "1 while the alert fires, 0 for 15 minutes after; if several ranks have it, the label has the first.",
    ("alert", "severity", "run", "rank", "key", "gpu", "uuid", "subject"),
)
BEGUN = Metric("trackside_alerts_total", "counter", "Times that the alert began to fire.", ("alert", "severity", "run"))
SILENCED = Metric(
    "trackside_alert_silenced",
    "gauge",
    "1 while the alert fires and a silence mutes it.",
    FIRING.labels,
)
EXCESS = Metric(
    "trackside_alerts_excess_total",
    "counter",
    "Alerts that had no room because 1,000 others of at least their severity fire.",
)

_OWN = FIRING.labels[2:-1]


def labels(alert: str, severity: str, about: Mapping[str, str]) -> tuple[str, ...]:
    """The labels of a firing series; what has none of its own is its subject, and what is not meant is empty."""
    others = (value for name, value in sorted(about.items()) if name not in _OWN)
    return (alert, severity, *(about.get(name, "") for name in _OWN), " ".join(others))


def firing(entries: Iterable[ActiveAlert]) -> list[Sample]:
    """What of *entries* fires, and what of that is silenced."""
    fires: dict[tuple[str, ...], float] = {}
    silenced: set[tuple[str, ...]] = set()
    for entry in entries:
        if entry.fires and entry.silenced:
            silenced.add(labels(entry.alert, entry.severity, entry.labels))
        for severity in entry.severities:
            series = labels(entry.alert, severity, entry.labels)
            value = float(entry.fires and severity == entry.severity)
            fires[series] = max(value, fires.get(series, 0.0))
    return [
        *(Sample(FIRING, series, value) for series, value in fires.items()),
        *(Sample(SILENCED, series, 1.0) for series in silenced),
    ]
