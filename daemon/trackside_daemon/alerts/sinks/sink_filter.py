"""Filter of the alerts that a sink sends, and the identity of an alert for sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.alerts.active_alert import OTHERS
from trackside_daemon.alerts.active_alerts import ONCE
from trackside_daemon.model.finding import SEVERITIES
from trackside_daemon.model.records import Notified

if TYPE_CHECKING:
    from trackside_daemon.model.records import Alert

"""Name, run, labels and start of an alert, which identify it in the history too."""


class SinkFilter(NamedTuple):
    """Filter that accepts alerts of at least a *severity*, and *also* some by name; with ``off``, none."""

    severity: str = "warning"
    also: tuple[str, ...] = ()

    def accepts(self, alert: Alert) -> bool:
        """Return True if the sink sends this alert."""
        if self.severity == "off":
            return False
        return severity_rank(alert) >= [*SEVERITIES].index(self.severity) or alert.alert in self.also  # type: ignore[arg-type]

    def accepts_late(self, alert: Alert) -> bool:
        """Return True if the sink sends this alert even after its end: a critical one, or an event."""
        return self.accepts(alert) and (alert.severity == "critical" or alert.alert in {*self.also, *ONCE})


def severity_rank(alert: Alert) -> int:
    """Return the index of the alert's severity, 0 for info; 1 for an unknown one."""
    return next((index for index, severity in enumerate(SEVERITIES) if severity == alert.severity), 1)


def notification_of(alert: Alert) -> Notified:
    """Return what a notification of the alert contains; a sink notifies again once this changes.

    Further ranks that have the alert are left out, so they cause no new message.
    """
    return Notified(alert.severity, alert.summary.partition(OTHERS)[0], alert.ended is not None)
