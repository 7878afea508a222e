"""What fires now, for whoever shows it: as the book says it, so also while the history cannot be written."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.model.metric import Batch

_Key = tuple[str, str, tuple[tuple[str, str], ...], float]


class Firing:
    """Told of alerts in the pipeline's thread, asked by any.

    Args:
        fired: What fired when a daemon before this one ended, and does still.
    """

    def __init__(self, fired: Iterable[Alert] = ()) -> None:
        self._lock = threading.Lock()
        self._known = {_key(one): one for one in fired}

    def accept(self, batch: Batch) -> None:
        """What has begun, got worse, was silenced or has ended."""
        with self._lock:
            for one in batch.records:
                if not isinstance(one, Alert):
                    continue
                if one.ended is None:
                    self._known[_key(one)] = one
                else:
                    self._known.pop(_key(one), None)

    def now(self) -> list[Alert]:
        """Those that fire, in the order in which they began."""
        with self._lock:
            return list(self._known.values())


def _key(alert: Alert) -> _Key:
    """What the history knows one by, too."""
    return alert.alert, alert.run, tuple(sorted(alert.labels.items())), alert.started
