"""Panels about notifications."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, lines

SENT = "trackside_notifications"


def row() -> Row:
    """Return the row with sent, failed, dropped and waiting notifications."""
    return Row("Notifications", *_sent(), *_waiting())


def _sent() -> list[object]:
    return [
        _by_sink(
            "Messages sent",
            "Messages that each sink was asked to send, over all daemons.",
            f"increase({SENT}_total{{HERE}}[$__rate_interval])",
        ),
        _by_sink(
            "Failed messages",
            "Messages that a sink rejected or did not send in time; they are retried. Any of them fires "
            "TracksideNotificationsFailed. /api/v1/status of the daemon has the last error.",
            f"increase({SENT}_failed_total{{HERE}}[$__rate_interval])",
        ),
    ]


def _waiting() -> list[object]:
    return [
        _by_sink(
            "Alerts never sent",
            "Alerts that a sink will never send, because they ended first or there were too many. Any of them fires "
            "TracksideNotificationsDropped.",
            f"increase({SENT}_dropped_total{{HERE}}[$__rate_interval])",
        ),
        _by_sink(
            "Alerts waiting by sink",
            "Alerts not sent yet. If a line does not fall, the sink does not accept them.",
            f"{SENT}_queue_length{{HERE}}",
        ),
    ]


def _by_sink(title: str, description: str, value: str) -> object:
    return lines(title, description, "none", Query(f"sum by (sink) ({value})", "{{sink}}"), minimum=0, width=6)
