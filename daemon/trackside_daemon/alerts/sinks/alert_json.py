"""An alert as Prometheus and Alertmanager know alerts: stable labels, annotations, times."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts import families
from trackside_daemon.alerts.descriptions import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside_daemon.alerts.sinks.sink import About
    from trackside_daemon.model.records import Alert


def labels(alert: Alert, about: About) -> dict[str, str]:
    """Those that a Prometheus rule would give it, but for `job`; what has no value is not there."""
    values = families.series_labels(alert.alert, alert.severity, alert.labels)
    found = dict(zip(families.FIRING.labels, values, strict=True))
    found["alertname"] = PREFIX + found.pop("alert")
    found["instance"] = about.instance
    return {name: value for name, value in sorted(found.items()) if value}


def texts(alert: Alert, about: About) -> dict[str, str]:
    """What people read."""
    runbook = f"{about.runbook}#{alert.alert.lower()}" if about.runbook else ""
    found = {"summary": alert.summary, "description": alert.description, "runbook_url": runbook}
    return {name: value for name, value in found.items() if value}


def as_json(alert: Alert, about: About, ends: float, more: Mapping[str, str]) -> dict[str, Any]:
    """It as Alertmanager's API takes it.

    Args:
        alert: As it is now.
        about: The daemon.
        ends: When it ends, or is taken to have ended unless it is sent again; Unix seconds.
        more: Further labels.
    """
    return {
        "labels": {**labels(alert, about), **more},
        "annotations": texts(alert, about),
        "startsAt": rfc3339(alert.started),
        "endsAt": rfc3339(max(ends, alert.started)),
        "generatorURL": about.url,
    }


def rfc3339(seconds: float) -> str:
    """A moment of Unix time."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
