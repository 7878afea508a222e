"""Which alerts a sink tells of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.alarm import SEVERITIES
from trackside_daemon.alerts.entry import OTHERS

if TYPE_CHECKING:
    from trackside_daemon.record import Alert

Key = tuple[str, str, tuple[tuple[str, str], ...], float]
"""An alert's name, run, labels and start, by which the history knows it too."""

Said = tuple[str, str]
"""What people are told of an alert: once this differs they are told anew."""


class Wants(NamedTuple):
    """Those of a *severity* at least, and *also* some by their names; with ``off``, none at all."""

    severity: str = "warning"
    also: tuple[str, ...] = ()

    def has(self, alert: Alert) -> bool:
        """Whether it is one of them."""
        if self.severity == "off":
            return False
        return rank(alert) >= [*SEVERITIES].index(self.severity) or alert.alert in self.also  # type: ignore[arg-type]


def rank(alert: Alert) -> int:
    """How severe it is; a greater one is worse."""
    return next((at for at, one in enumerate(SEVERITIES) if one == alert.severity), 1)


def key(alert: Alert) -> Key:
    """By what it is known."""
    return alert.alert, alert.run, tuple(sorted(alert.labels.items())), alert.started


def said(alert: Alert) -> Said:
    """Its severity and summary, without the other ranks that have it."""
    return alert.severity, alert.summary.partition(OTHERS)[0]
