"""Recognition of alerts that begin, get worse or return, among the records of their changes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from trackside_daemon.model.records import Alert

REMEMBERED = 2000  # most firing alerts whose severity is remembered; the daemon keeps half as many active alerts


class Escalation:
    """Severities of the alerts that fire, and since when. Used by one thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, object] = OrderedDict()

    def of(self, alert: Alert) -> Literal["begun", "worse"] | None:
        """Return whether an alert has begun, or got worse or returned since its last record; None for another change."""
        key = alert.alert, alert.run, alert.started, tuple(sorted(alert.labels.items()))
        before = self._known.pop(key, None)
        if alert.ended is not None:
            return None
        self._known[key] = now = alert.severity, alert.evidence.get("since")
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return "begun" if before is None else "worse" if before != now else None
