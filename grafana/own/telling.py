"""Whether people are told."""

from __future__ import annotations

from grafana.board import Row
from grafana.panels import Query, lines

SENT = "trackside_notifications"


def row() -> Row:
    """Sent, not sent, and waiting."""
    return Row("Notifications", *_sent(), *_waiting())


def _sent() -> list[object]:
    return [
        _by_sink(
            "Messages sent",
            "Messages that each sink was asked to take, over all daemons.",
            f"increase({SENT}_total{{HERE}}[$__rate_interval])",
        ),
        _by_sink(
            "Messages not taken",
            "Of these, what a sink refused or did not take in time; it is tried again. Any is TracksideNotificationsFailed: "
            "/api/v1/status of the daemon has the last error.",
            f"increase({SENT}_failed_total{{HERE}}[$__rate_interval])",
        ),
    ]


def _waiting() -> list[object]:
    return [
        _by_sink(
            "Alerts given up",
            "Alerts that a sink will never tell, as they were over before or there were too many. Any is "
            "TracksideNotificationsDropped.",
            f"increase({SENT}_dropped_total{{HERE}}[$__rate_interval])",
        ),
        _by_sink(
            "Alerts waiting by sink",
            "Alerts that are to be told yet. A line that does not come down is a sink that does not take them.",
            f"{SENT}_queue_length{{HERE}}",
        ),
    ]


def _by_sink(title: str, description: str, value: str) -> object:
    return lines(title, description, "none", Query(f"sum by (sink) ({value})", "{{sink}}"), least=0, width=6)
