"""Open findings that may not fire now: their sources report them only once, so they are kept here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.model.finding import SEVERITIES, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 1000  # most findings that are kept; with more, the oldest of the least severe is dropped

_Identity = tuple[str, str, tuple[tuple[str, str], ...]]


class SuppressedFindings:
    """Findings that are inhibited, turned off or without room, until they end or may fire."""

    def __init__(self) -> None:
        self._by_severity: dict[str, dict[_Identity, Finding]] = {severity: {} for severity in SEVERITIES}

    def __iter__(self) -> Iterator[Finding]:
        """Iterate over a copy, the most severe first."""
        severities = reversed(SEVERITIES)
        return iter([finding for severity in severities for finding in self._by_severity[severity].values()])

    def __contains__(self, finding: Finding) -> bool:
        return any(_identity(finding) in findings for findings in self._by_severity.values())

    def add(self, finding: Finding) -> None:
        """Add or replace a finding; drop an event, because nothing would report its end."""
        if finding.once:
            return
        # The severity may have changed, and the new entry must be the last.
        self.discard(finding)
        self._by_severity[finding.severity][_identity(finding)] = finding
        if sum(map(len, self._by_severity.values())) > MOST:
            least_severe = next(findings for findings in self._by_severity.values() if findings)
            del least_severe[next(iter(least_severe))]

    def discard(self, finding: Finding) -> None:
        """Remove a finding that has ended or fires."""
        for findings in self._by_severity.values():
            findings.pop(_identity(finding), None)


def _identity(finding: Finding) -> _Identity:
    return finding.alert, finding.run, finding.labels
