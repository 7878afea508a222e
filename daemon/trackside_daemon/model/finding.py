"""Findings: what detectors and rules report to the active alerts."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")  # from the least to the most severe


def severity_of(stored: object) -> Severity:
    """Return a severity that was stored or sent; a warning if it is none."""
    return next((level for level in SEVERITIES if level == stored), "warning")


class Finding(NamedTuple):
    """A problem that a detector or a rule has found, or the end of one. Alert and labels identify it.

    Attributes:
        alert: The alert's name, such as ``LossSpike``.
        severity: How severe it is.
        labels: The subject, sorted by label name: ``run``, ``rank``, ``key``, ``gpu``, ``uuid``, ``device`` and others.
        time: When it appeared, in Unix seconds.
        summary: What is wrong, where and how much, in one sentence with numbers.
        description: Since when, and what to check next.
        over: The problem is over.
        once: It is a single event: no finding will end it.
        run: The id of the run; empty for the machine.
        evidence: Facts that help to understand it, as JSON values: last values, the phase, stacks, processes.
        attempt: The attempt of the run; None if it is about no one attempt, or unknown.
        late: It is about values that waited in the spool of a process that has ended.
    """

    alert: str
    severity: Severity
    labels: tuple[tuple[str, str], ...]
    time: float
    summary: str
    description: str = ""
    over: bool = False
    once: bool = False
    run: str = ""
    evidence: Mapping[str, Any] = {}
    attempt: int | None = None
    late: bool = False
