"""The life of an alert: it begins, may get worse while it is followed, and ends when the trouble is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from trackside_daemon.detectors.base import Detection
from trackside_daemon.model.finding import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trackside_daemon.model.finding import Severity

State = Literal["firing", "repeated", "resolved"]


class Streak:
    """Samples in a row that have something in common.

    Attributes:
        count: How many there are.
        since: The step of the first; without meaning while there is none.
    """

    __slots__ = ("count", "since")

    def __init__(self) -> None:
        self.count = self.since = 0

    def add(self, step: int) -> None:
        """Add the next sample."""
        if not self.count:
            self.since = step
        self.count += 1


class Episode:
    """An alert of a detector, which fires from a report of it to its end, again and again.

    Attributes:
        fires: It fires.
        severity: The severity that was reported last.
        seen: Samples since it began.
        calm: The last of them in a row that do not show the trouble.
    """

    __slots__ = ("_alert", "calm", "fires", "seen", "severity")

    def __init__(self, alert: str) -> None:
        self._alert = alert
        self.fires = False
        self.severity: Severity = "info"
        self.seen = self.calm = 0

    def report(self, severity: Severity, at: int, text: str, evidence: Mapping[str, float] | None = None) -> Detection:
        """Return the detection with which it begins, or is reported again; see `Detection` for the arguments."""
        if not self.fires:
            self.fires, self.seen, self.calm = True, 0, 0
        self.severity = severity
        return Detection(self._alert, severity, at, text, evidence=evidence or {})

    def follow(self, *, calm: bool) -> None:
        """Count a sample while it fires, which shows the trouble or is *calm*."""
        self.seen += 1
        self.calm = self.calm + 1 if calm else 0

    def worsens(self, severity: Severity) -> bool:
        """Return whether a severity is higher than the one reported last."""
        return SEVERITIES.index(severity) > SEVERITIES.index(self.severity)

    def end(self, at: int, text: str) -> Detection:
        """Return the detection with which it ends, as severe as it was."""
        self.fires = False
        return Detection(self._alert, self.severity, at, text, over=True)


class Firing:
    """The firing alerts of one rank: an alert of a key fires from its first detection until one ends it."""

    def __init__(self) -> None:
        self._severity: dict[tuple[str, str], Severity] = {}

    def apply(self, key: str, detection: Detection) -> State | None:
        """Apply a detection for a key, and return the new state of its alert; None if nothing changes."""
        alert = (detection.alert, key)
        if detection.over:
            return None if self._severity.pop(alert, None) is None else "resolved"
        state: State = "repeated" if alert in self._severity else "firing"
        self._severity[alert] = detection.severity
        return state

    def end(self) -> Iterator[tuple[str, str, Severity]]:
        """Resolve all alerts; return name, key and severity of each."""
        ended, self._severity = self._severity, {}
        return ((alert, key, severity) for (alert, key), severity in ended.items())

    def now(self) -> set[tuple[str, str]]:
        """Return name and key of each firing alert."""
        return set(self._severity)

    def severity(self, key: str, detection: Detection) -> Severity:
        """Return the severity of the firing alert, else that of the detection: an end is as severe as its alert."""
        return self._severity.get((detection.alert, key), detection.severity)
