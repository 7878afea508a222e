"""Alerts that fire now, from the pipeline, so they are right even if the history cannot be written."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trackside_daemon.model.records import LIFE_CYCLE, Alert

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.model.metric import Batch


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
