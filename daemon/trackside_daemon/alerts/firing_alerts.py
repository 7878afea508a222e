"""Alerts that fire now, and those that begin, get worse or return, from the records of their changes."""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Literal

from trackside_daemon.alerts.active_alert import last_occurrence
from trackside_daemon.model.metric import Batch
from trackside_daemon.model.records import LIFE_CYCLE, Alert

MAX_REMEMBERED = 2000  # most firing alerts whose severity is remembered; the daemon keeps half as many active alerts


class FiringAlerts:
    """Listener of alerts in the pipeline's thread, read by any thread.

    Args:
        fired: Alerts that fired when an earlier daemon ended, and still fire.
    """

    def __init__(self, fired: Iterable[Alert] = ()) -> None:
        self._lock = threading.Lock()
        self._alerts = {alert.key: alert for alert in fired}

    def accept(self, batch: Batch) -> None:
        """Register alerts that began, got worse, were silenced or ended."""
        with self._lock:
            for record in batch.records:
                if not isinstance(record, Alert) or record.alert in LIFE_CYCLE:
                    continue
                if record.ended is None:
                    self._alerts[record.key] = record
                else:
                    self._alerts.pop(record.key, None)

    def now(self) -> list[Alert]:
        """Return the alerts that fire, in the order in which they began."""
        with self._lock:
            return list(self._alerts.values())


class Escalation:
    """Severities of the alerts that fire, and since when; *fired* are those of an earlier daemon. Used by one thread."""

    def __init__(self, fired: Iterable[Alert] = ()) -> None:
        self._known: OrderedDict[object, tuple[object, ...]] = OrderedDict()
        for alert in fired:
            self.of(alert)

    def of(self, alert: Alert) -> Literal["begun", "worse", "again"] | None:
        """Return whether an alert has begun, or since its last record got worse or stalled anew, or came again."""
        before = self._known.pop(alert.key, None)
        if alert.ended is not None:
            return None
        self._known[alert.key] = now = alert.severity, alert.evidence.get("since"), last_occurrence(alert)["number"]
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        if before is None:
            return "begun"
        return "worse" if before[:2] != now[:2] else "again" if before != now else None
