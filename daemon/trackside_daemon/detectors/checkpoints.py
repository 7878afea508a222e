"""Detect a run that has not saved a good checkpoint for too long."""

from collections import deque
from collections.abc import Iterator
from statistics import median

from trackside_daemon.detectors.run_view import RunAlert, RunClock, RunProgress
from trackside_daemon.model.checkpoint import DAMAGED, Checkpoint, reported_step
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.records import Event
from trackside_daemon.model.text import duration
from trackside_daemon.model.troubles import TROUBLES

INTERVALS = 16  # number of recent intervals between checkpoints that are kept
ENOUGH = 2  # intervals needed before a checkpoint can be overdue: three checkpoints
SAME = 10.0  # seconds within which the events of several ranks count as one checkpoint


class CheckpointOverdue(RunAlert):
    """`CheckpointOverdue` of one run, from the ``checkpoint`` events of the training, and from what the audits find.

    Args:
        run: The run.
        overdue: Factor over the median interval.
        least: Seconds without a checkpoint that are never too long.
    """

    alert = "CheckpointOverdue"
    ends = "run {run} has saved a checkpoint, or has ended"

    def __init__(self, run: RunProgress, overdue: float, least: float) -> None:
        super().__init__(run)
        self._overdue, self._least = overdue, least
        self._intervals: deque[float] = deque(maxlen=INTERVALS)
        self._last: float | None = None
        self._step: int | None = None
        self._before: tuple[float | None, int | None] = None, None
        self._damaged = ""
        self._found = (0.0, 0)

    def saved(self, event: Event, at: float) -> None:
        """Record a checkpoint that was reported at *at*, in watched seconds."""
        self._save(reported_step(event.fields, event.step), at)

    def _save(self, step: int | None, at: float) -> None:
        if self._last is not None:
            if at - self._last < SAME:
                return
            self._intervals.append(at - self._last)
        self._before = self._last, self._step
        self._last, self._step, self._damaged = at, step, ""

    def audited(self, checkpoint: Checkpoint, at: float) -> None:
        """Record what an audit has found: one that no event reports, or that the last one is damaged."""
        before, step = self._before
        if checkpoint.good and checkpoint.found != "event" and checkpoint.order > self._found:
            self._found = checkpoint.order
            self._save(checkpoint.step, at)
        elif checkpoint.state == DAMAGED and checkpoint.step == self._step and before is not None:
            self._last, self._step, self._before = before, step, (None, None)
            self._damaged = f"; the one {'' if checkpoint.step is None else f'of step {checkpoint.step:,} '}is damaged"

    def _changes(self, clock: RunClock) -> Iterator[Finding]:
        if self._last is None or len(self._intervals) < ENOUGH:
            return
        passed = clock.at - self._last
        if self._severity is not None:
            if passed < SAME:
                yield from self.end(clock)
            return
        if passed <= self._least:
            return
        usual = median(self._intervals)
        if passed > self._overdue * usual and not self._run.stalled:
            yield self._finding(passed, usual, clock)

    def _finding(self, passed: float, usual: float, clock: RunClock) -> Finding:
        step = "" if self._step is None else f", at step {self._step:,}"
        good = "good " if self._damaged else ""
        summary = (
            f"run {self._run.name} has saved no {good}checkpoint for {duration(passed)}{step}{self._damaged}; before, it saved one "
            f"every {duration(usual)}"
        )
        return self.report("warning", clock, summary, TROUBLES["CheckpointOverdue"].advice())
