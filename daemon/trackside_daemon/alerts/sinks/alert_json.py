"""Alerts as JSON for Prometheus and Alertmanager: stable labels, annotations and times."""

from collections.abc import Mapping
from typing import Any

from trackside_daemon.alerts.active_alert import page_of, series_labels
from trackside_daemon.alerts.sinks.sink import DaemonInfo
from trackside_daemon.model.families import alerts
from trackside_daemon.model.families.alerts import CORRELATION
from trackside_daemon.model.records import Alert
from trackside_daemon.model.text import rfc3339
from trackside_daemon.model.troubles import PREFIX


def labels(alert: Alert, daemon: DaemonInfo) -> dict[str, str]:
    """Return the labels that a Prometheus rule would give the alert, except `job`; empty ones are left out."""
    values = series_labels(alert.alert, alert.severity, alert.labels)
    named = dict(zip(alerts.FIRING.labels, values, strict=True))
    named["alertname"] = PREFIX + named.pop("alert")
    named["instance"] = daemon.instance
    return {name: value for name, value in sorted(named.items()) if value}


def annotation_texts(alert: Alert, daemon: DaemonInfo) -> dict[str, str]:
    """Return the texts of the alert; empty ones are left out."""
    runbook = f"{daemon.runbook}#{alert.alert.lower()}" if daemon.runbook else ""
    texts = {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": runbook,
        "dashboard_url": page_of(daemon.url, alert.run),
        "correlation_id": str(alert.evidence.get(CORRELATION, "")),
    }
    return {name: value for name, value in texts.items() if value}


def as_json(alert: Alert, daemon: DaemonInfo, ends: float, more: Mapping[str, str]) -> dict[str, Any]:
    """Return the alert as Alertmanager's API accepts it.

    Args:
        alert: Present state of the alert.
        daemon: This daemon.
        ends: Unix time of its end, or for a firing alert the time at which it expires unless it is resent.
        more: Further labels.
    """
    return {
        "labels": {**labels(alert, daemon), **more},
        "annotations": annotation_texts(alert, daemon),
        "startsAt": rfc3339(alert.started),
        "endsAt": rfc3339(max(ends, alert.started)),
        "generatorURL": daemon.url,
    }
