"""Firing alerts in the overview."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.alert_series import series_labels
from trackside_daemon.history.record.alert_rows import alert_id
from trackside_daemon.model.families import alerts as alert_families
from trackside_daemon.model.finding import SEVERITIES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from trackside_daemon.model.records import Alert

MAX_ALERTS = 200  # alerts listed in the overview; the counts per run include all

_Key = tuple[str, str, tuple[tuple[str, str], ...], float]


class AlertIds:
    """A cache of the ids that the history assigned to firing alerts."""

    def __init__(self) -> None:
        self._ids: dict[_Key, int] = {}

    def without_id(self, alerts: Iterable[Alert]) -> list[Alert]:
        """Return the alerts whose id is not cached, and drop cached ids of all other alerts."""
        keys = {_key(alert): alert for alert in alerts}
        self._ids = {key: id_ for key, id_ in self._ids.items() if key in keys}
        return [alert for key, alert in keys.items() if key not in self._ids]

    def read(self, connection: sqlite3.Connection, alerts: Iterable[Alert]) -> None:
        """Read the ids of alerts from the history; an unwritten alert has none yet."""
        for alert in alerts:
            if (id_ := alert_id(connection, alert)) is not None:
                self._ids[_key(alert)] = id_

    def get(self, alert: Alert) -> int | None:
        """Return an alert's id; None until the history has written it."""
        return self._ids.get(_key(alert))


def worst(alerts: Sequence[Alert]) -> list[Alert]:
    """Return at most `MAX_ALERTS`: silenced ones last, else the most severe first, then the most recent."""
    severity_rank: dict[str, int] = {severity: rank for rank, severity in enumerate(SEVERITIES)}

    def order(alert: Alert) -> tuple[bool, int, float]:
        return alert.silenced, -severity_rank.get(alert.severity, 0), -alert.started

    return sorted(alerts, key=order)[:MAX_ALERTS]


def count_by_run(alerts: Iterable[Alert]) -> dict[str, Counter[str]]:
    """Count the alerts without a silence by severity, for each run id."""
    runs: dict[str, Counter[str]] = {}
    for alert in alerts:
        if not alert.silenced:
            runs.setdefault(alert.run, Counter())[alert.severity] += 1
    return runs


def alert_json(alert: Alert, id_: int | None) -> dict[str, Any]:
    """Return an alert as JSON content; absent labels are omitted."""
    values = dict(
        zip(alert_families.FIRING.labels, series_labels(alert.alert, alert.severity, alert.labels), strict=True)
    )
    subject: dict[str, Any] = {name: values[name] for name in ("rank", "key", "gpu", "subject") if values[name]}
    if subject.get("rank", "").isdecimal():
        subject["rank"] = int(subject["rank"])
    return {
        "id": id_,
        "alert": alert.alert,
        "severity": alert.severity,
        **({"run": alert.run, "name": values["run"]} if alert.run else {}),
        **subject,
        "summary": alert.summary,
        "started": alert.started,
        "silenced": alert.silenced,
    }


def _key(alert: Alert) -> _Key:
    return alert.alert, alert.run, tuple(sorted(alert.labels.items())), alert.started
