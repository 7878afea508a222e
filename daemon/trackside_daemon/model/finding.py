"""Findings: what detectors and rules report to the active alerts."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")  # from the least to the most severe


def severity_of(stored: object) -> Severity:
    """Return a severity that was stored or sent; a warning if it is none."""
    return next((level for level in SEVERITIES if level == stored), "warning")


class Finding(NamedTuple):
    """A problem that a detector or a rule has found, or the end of one. Alert and labels identify it."""

    alert: str  # the alert's name, such as ``LossSpike``
    severity: Severity  # how severe it is
    # The subject, sorted by label name: ``run``, ``rank``, ``key``, ``gpu``, ``uuid``, ``device`` and others.
    labels: tuple[tuple[str, str], ...]
    time: float  # when it appeared, in Unix seconds
    summary: str  # what is wrong, where and how much, in one sentence with numbers
    description: str = ""  # since when, and what to check next
    over: bool = False  # the problem is over
    once: bool = False  # it is a single event: no finding will end it
    run: str = ""  # the id of the run; empty for the machine
    # Facts that help to understand it, as JSON values: last values, the phase, stacks, processes.
    evidence: Mapping[str, Any] = {}
    attempt: int | None = None  # the attempt of the run; None if it is about no one attempt, or unknown
    late: bool = False  # it is about values that waited in the spool of a process that has ended
