"""Records of alerts, as the active alerts return them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trackside_daemon.alerts.active_alert import ADDITION, CONCLUSION
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import Alert, Notified

START = 1_700_000_000.5


def alert(name: str = "NonFinite", *, rank: int = 0, run: str = "id", severity: str = "critical", **more: Any) -> Alert:
    labels = {"key": "loss", "rank": str(rank), "run": f"name-{run}"} if run else {"device": "/dev/sda"}
    given = {"summary": f"{name} on rank {rank}", "description": "look", **more}
    if name not in {"TrainingStalled", "SlowStep", "TrainingProcessDied"}:
        given.setdefault("evidence", {CONCLUSION: "", ADDITION: ""})  # a notification waits for no more
    return Alert(name, severity, given.pop("started", START), run, labels, **given)


def over(one: Alert, after: float = 150.0) -> Alert:
    return replace(one, ended=one.started + after)


def notification_of(one: Alert) -> Notified:
    """Return the notification of this record."""
    return Notified(one.severity, one.summary, one.ended is not None)


def batch(*alerts: Alert) -> Batch:
    return Batch("alerts", records=alerts)
