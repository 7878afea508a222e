"""The alerts that fire, as the overview has them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from trackside_daemon.alerts.families import FIRING, labels
from trackside_daemon.history.record.alert_rows import number
from trackside_daemon.model.finding import SEVERITIES

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from trackside_daemon.model.records import Alert

MOST = 200
"""So many of the worst are told; all are counted."""

_Key = tuple[str, str, tuple[tuple[str, str], ...], float]


class Numbers:
    """The ids that the history has given to alerts; each is looked for until it is there, and then known."""

    def __init__(self) -> None:
        self._known: dict[_Key, int] = {}

    def unknown(self, alerts: Iterable[Alert]) -> list[Alert]:
        """Those that have none yet; what does not fire any more is forgotten."""
        keys = {_key(one): one for one in alerts}
        self._known = {key: id_ for key, id_ in self._known.items() if key in keys}
        return [one for key, one in keys.items() if key not in self._known]

    def look(self, connection: sqlite3.Connection, alerts: Iterable[Alert]) -> None:
        """See whether the history has them."""
        for one in alerts:
            if (id_ := number(connection, one)) is not None:
                self._known[_key(one)] = id_

    def of(self, alert: Alert) -> int | None:
        """An alert's id; None while it is not written."""
        return self._known.get(_key(alert))


def worst(alerts: Sequence[Alert]) -> list[Alert]:
    """The worst first, of those the last to begin, what is silenced after all others; not more than `MOST`."""
    rank = {severity: place for place, severity in enumerate(SEVERITIES)}
    return sorted(alerts, key=lambda one: (one.silenced, -rank.get(one.severity, 0), -one.started))[:MOST]  # type: ignore[call-overload]


def counted(alerts: Iterable[Alert]) -> dict[str, Counter[str]]:
    """How many of each severity people are told of, by the run's id."""
    runs: dict[str, Counter[str]] = {}
    for one in alerts:
        if not one.silenced:
            runs.setdefault(one.run, Counter())[one.severity] += 1
    return runs


def told(alert: Alert, id_: int | None) -> dict[str, Any]:
    """One of them; labels that it does not have are left out."""
    about = dict(zip(FIRING.labels, labels(alert.alert, alert.severity, alert.labels), strict=True))
    own: dict[str, Any] = {name: about[name] for name in ("rank", "key", "gpu", "subject") if about[name]}
    if own.get("rank", "").isdecimal():
        own["rank"] = int(own["rank"])
    return {
        "id": id_,
        "alert": alert.alert,
        "severity": alert.severity,
        **({"run": alert.run, "name": about["run"]} if alert.run else {}),
        **own,
        "summary": alert.summary,
        "started": alert.started,
        "silenced": alert.silenced,
    }


def _key(alert: Alert) -> _Key:
    return alert.alert, alert.run, tuple(sorted(alert.labels.items())), alert.started
