"""Metric families of alerts."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING
from urllib.parse import quote

from trackside_daemon.model.families import alerts as alert_families
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.records import LIFE_CYCLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trackside_daemon.alerts.active_alert import ActiveAlert

_OWN = alert_families.FIRING.labels[2:-1]


def series_labels(alert: str, severity: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the label values of an alert's series; labels without a column of their own make up its ``subject``."""
    others = (value for name, value in sorted(labels.items()) if name not in _OWN)
    return (alert, severity, *(labels.get(name, "") for name in _OWN), " ".join(others))


def text_samples(alerts: Iterable[ActiveAlert], host: str, url: str) -> list[Sample]:
    """Return the samples of `TEXT`; *url* is the address of the dashboard, with a slash at its end."""
    samples = []
    for active in alerts:
        if active.exported and active.alert not in LIFE_CYCLE:
            record = active.record()
            page = page_of(url, active.run)
            since = datetime.fromtimestamp(active.started, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
            texts = (
                active.label,
                record.description,
                since,
                host,
                active.run,
                page,
                str(active.evidence.get(alert_families.CORRELATION, "")),
            )
            samples.append(
                Sample(alert_families.TEXT, (*series_labels(active.alert, active.severity, active.labels), *texts), 1.0)
            )
    return samples


def page_of(url: str, run: str) -> str:
    """Return the address of a run's page on the dashboard at *url*, or for the machine that of its alerts; else empty."""
    return url and url + (f"runs/{quote(run, safe='')}" if run else "alerts")


def firing_samples(alerts: Iterable[ActiveAlert]) -> list[Sample]:
    """Return the samples of `FIRING` and `SILENCED` for *alerts*, one for each severity that an alert has had."""
    firing: dict[tuple[str, ...], float] = {}
    silenced: set[tuple[str, ...]] = set()
    for active in alerts:
        if active.alert in LIFE_CYCLE:
            continue
        if active.fires and active.silenced:
            silenced.add(series_labels(active.alert, active.severity, active.labels))
        for severity in active.severities:
            series = series_labels(active.alert, severity, active.labels)
            # Events with different texts share a series, which is 1 while any of them fires.
            value = float(active.exported and severity == active.severity)
            firing[series] = max(value, firing.get(series, 0.0))
    return [
        *(Sample(alert_families.FIRING, series, value) for series, value in firing.items()),
        *(Sample(alert_families.SILENCED, series, 1.0) for series in silenced),
    ]
