"""A run that has not saved for long: what a crash would cost grows."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from trackside_daemon.detectors.wording import span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.clock import Clock
    from trackside_daemon.detectors.run_view import Run
    from trackside_daemon.model.finding import Finding
    from trackside_daemon.model.records import Alert, Event

INTERVALS = 16
"""So many intervals are remembered."""

ENOUGH = 2
"""Intervals, of three checkpoints."""

SAME = 10.0
"""Seconds in which what several ranks tell is one checkpoint."""

OVERDUE, LEAST = 2.0, 600.0
"""It is overdue after so many times the median interval, and so many seconds at least."""


class Checkpoints:
    """`CheckpointOverdue` of one run, by the events ``checkpoint`` that the training tells.

    Args:
        run: Whose they are.
        overdue: Times the median interval.
        least: Seconds without one that are never too long.
    """

    alert = "CheckpointOverdue"

    def __init__(self, run: Run, overdue: float = OVERDUE, least: float = LEAST) -> None:
        self._run = run
        self._overdue, self._least = overdue, least
        self._intervals: deque[float] = deque(maxlen=INTERVALS)
        self._last: float | None = None
        self._step: int | None = None
        self._said = False
        self._adopted: Alert | None = None

    def restore(self, kept: Alert) -> None:
        """One was overdue before this daemon, and is until it is made."""
        self._adopted, self._said = kept, True

    def saved(self, event: Event, at: float) -> None:
        """A checkpoint was made, as is heard at *at*, in watched seconds."""
        if self._last is not None:
            if at - self._last < SAME:
                return
            self._intervals.append(at - self._last)
        self._last, self._step = at, event.step

    def evaluate(self, clock: Clock) -> Iterator[Finding]:
        """What time has changed."""
        if self._adopted is not None:
            yield self._run.again(self._adopted, clock.now)
            self._adopted = None
        if self._last is None or len(self._intervals) < ENOUGH:
            return
        passed = clock.at - self._last
        if self._said:
            if passed < SAME:
                yield from self.end(clock)
            return
        if passed <= self._least:
            return
        usual = median(self._intervals)
        if passed > self._overdue * usual and not self._run.stalled:
            self._said = True
            yield self._finding(passed, usual, clock)

    def end(self, clock: Clock) -> Iterator[Finding]:
        """One was made, or the run has ended."""
        if self._said:
            text = f"run {self._run.name} needs no checkpoint any more, or has made one"
            yield self._run.alarm("CheckpointOverdue", "warning", clock.now, text, over=True)
        self._said = False

    def _finding(self, passed: float, usual: float, clock: Clock) -> Finding:
        run = self._run
        step = "" if self._step is None else f", at step {self._step:,}"
        summary = (
            f"run {run.name} has saved no checkpoint for {span(passed)}{step}, where it saved each {span(usual)} before"
        )
        text = (
            "A crash would lose all since then. See whether the disk for checkpoints is full or slow, and what the "
            "training's log says of saving."
        )
        return run.alarm("CheckpointOverdue", "warning", clock.now, summary, text)
