"""Which alerts a sink tells of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.alerts.active_alert import OTHERS
from trackside_daemon.alerts.active_alerts import ONCE
from trackside_daemon.model.finding import SEVERITIES
from trackside_daemon.model.records import Notified

if TYPE_CHECKING:
    from trackside_daemon.model.records import Alert

Key = tuple[str, str, tuple[tuple[str, str], ...], float]
"""An alert's name, run, labels and start, by which the history knows it too."""


class Wants(NamedTuple):
    """Those of a *severity* at least, and *also* some by their names; with ``off``, none at all."""

    severity: str = "warning"
    also: tuple[str, ...] = ()

    def has(self, alert: Alert) -> bool:
        """Whether it is one of them."""
        if self.severity == "off":
            return False
        return rank(alert) >= [*SEVERITIES].index(self.severity) or alert.alert in self.also  # type: ignore[arg-type]

    def has_late(self, alert: Alert) -> bool:
        """Whether it is told though it is over already: what is critical, and what happened once."""
        return self.has(alert) and (alert.severity == "critical" or alert.alert in {*self.also, *ONCE})


def rank(alert: Alert) -> int:
    """How severe it is; a greater one is worse."""
    return next((at for at, one in enumerate(SEVERITIES) if one == alert.severity), 1)


def key(alert: Alert) -> Key:
    """By what it is known."""
    return alert.alert, alert.run, tuple(sorted(alert.labels.items())), alert.started


def said(alert: Alert) -> Notified:
    """What people are told of it, without the other ranks that have it: once this differs they are told anew."""
    return Notified(alert.severity, alert.summary.partition(OTHERS)[0], alert.ended is not None)
