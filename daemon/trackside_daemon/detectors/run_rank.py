"""One rank of a run that is watched, by what it exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.detectors.pace import Longest

if TYPE_CHECKING:
    from trackside_daemon.detectors.run_view import Run

STEP_PHASES = frozenset(("data", "forward", "backward", "optimizer", "step", "other"))
"""Phases that are part of any step."""

SYNC_PHASES = frozenset(("sync", "allreduce", "all_reduce", "reduce", "communication", "comm", "barrier", "collective"))
"""Phases in which a rank waits for others. They are part of a step as well."""

_ORDINARY = STEP_PHASES | SYNC_PHASES


class Rank:
    """One rank of one attempt.

    Attributes:
        step: The one that it pushed last; None before the first.
        at: When that was, in watched seconds.
        longest: Its longest gap between two pushes of late.
        pushes: How often it was seen to have pushed.
        ended: It has, however.
        steps: How many it has made.
        phases: Seconds by phase.
        phase: The one that it is in, so far as that is known.
        wait: Seconds that it waited for data; None while it does not say.
        first_wait: Of the first batches of epochs, which are none of the others.
    """

    __slots__ = (
        "at",
        "ended",
        "first_wait",
        "longest",
        "number",
        "phase",
        "phases",
        "pushes",
        "run",
        "stamp",
        "step",
        "steps",
        "wait",
    )

    def __init__(self, run: Run, number: int, at: float) -> None:
        self.run = run
        self.number = number
        self.at = at
        self.stamp: float | None = None
        self.step: int | None = None
        self.longest = Longest()
        self.pushes = 0
        self.ended = False
        self.steps = 0.0
        self.phases: dict[str, float] = {}
        self.phase = ""
        self.wait: float | None = None
        self.first_wait: float | None = None

    @property
    def pauses(self) -> bool:
        """Whether it is in a phase that is no part of a step, such as an evaluation."""
        return bool(self.phase) and self.phase not in _ORDINARY
