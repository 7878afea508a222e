"""Which alerts fire: what a finding changes of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.base import Detection
    from trackside_daemon.model.finding import Severity

State = Literal["firing", "repeated", "resolved"]


class Firing:
    """The alerts that fire, of one rank: an alert of a key fires from what is found first until it is over."""

    def __init__(self) -> None:
        self._severity: dict[tuple[str, str], Severity] = {}

    def apply(self, key: str, finding: Detection) -> State | None:
        """What a finding of a key makes of its alert; None when nothing changes."""
        alert = (finding.alert, key)
        if finding.over:
            return None if self._severity.pop(alert, None) is None else "resolved"
        state: State = "repeated" if alert in self._severity else "firing"
        self._severity[alert] = finding.severity
        return state

    def end(self) -> Iterator[tuple[str, str, Severity]]:
        """Resolve all: each one's name, key and severity."""
        ended, self._severity = self._severity, {}
        return ((alert, key, severity) for (alert, key), severity in ended.items())

    def now(self) -> set[tuple[str, str]]:
        """The names of those that fire, and their keys."""
        return set(self._severity)

    def severity(self, key: str, finding: Detection) -> Severity:
        """That of the alert that fires, if it does: an end is as severe as what it ends."""
        return self._severity.get((finding.alert, key), finding.severity)
