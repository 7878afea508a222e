"""What is wrong, in the daemon's words: between those who find it and the book that keeps what fires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""The least severe first."""

Stands: TypeAlias = "Callable[[int, float | None], bool]"
"""Tells of a run whether one of its ranks, by its number, stands still since its last push, in Unix seconds, None before
the first: it does no more once it has pushed again. Any thread may ask."""


class Finding(NamedTuple):
    """Something is wrong, or is no longer. The same alert and labels again are the same, found anew.

    Attributes:
        alert: Its name, such as ``LossSpike``.
        severity: How bad it is.
        labels: What it is about, sorted by name: ``run``, ``rank``, ``key``, ``gpu``, ``uuid``, ``device`` and the like.
        time: When it showed, in Unix seconds.
        summary: What it is, where and how bad, in one sentence with numbers.
        description: Since when, and what to look at next.
        over: It is not so any more.
        once: Nothing will say that it is over: it happened.
        run: The id of the run that it is about; empty for the machine.
        evidence: What helps to understand it: last values, the phase, stacks, processes; as JSON has it.
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
