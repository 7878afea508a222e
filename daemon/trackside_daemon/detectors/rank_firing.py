"""The alerts that fire for one rank, as its detections change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Detection
    from trackside_daemon.model.finding import Severity

State = Literal["firing", "repeated", "resolved"]


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
