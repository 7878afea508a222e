"""Detect losses of the monitor itself: values it could not process or keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.detectors.run_view import RunAlert
from trackside_daemon.model.families import daemon
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.text import number
from trackside_daemon.model.troubles import TROUBLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside_daemon.detectors.run_view import RunClock, RunProgress
    from trackside_daemon.model.finding import Severity
    from trackside_daemon.model.metric import Sample
    from trackside_daemon.model.records import Alert

QUIET = 300.0  # seconds without a further loss after which the alert ends
MANY = 10  # Lost messages from which the severity is warning. Fewer are a gap of seconds, reported as info.


class Growing:
    """A counter of losses, which should not grow. Times are watched seconds.

    Attributes:
        at: Time of the last growth; None while the counter is at rest.
        lost: Growth since the counter was last at rest.
    """

    __slots__ = ("_count", "_since", "at", "lost")

    def __init__(self, count: float) -> None:
        self._count = count
        self._since = count
        self.at: float | None = None
        self.lost = 0.0

    def begins_to_grow(self, count: float, at: float) -> bool:
        """Set the counter to *count* and return whether it begins to grow."""
        grows, began = count > self._count, self.at is None
        if grows:
            self._since = self._count if began else self._since
            self.at, self.lost = at, count - self._since
        self._count = count
        return grows and began

    def ends(self, at: float) -> bool:
        """Return whether it stopped growing QUIET seconds ago, once."""
        over = self.at is not None and at - self.at > QUIET
        if over:
            self.at = None
        return over


class PipelineBlind:
    """`MonitorBlind` for stages of the pipeline that fail."""

    def __init__(self) -> None:
        self._stages: dict[str, Growing] = {}

    def evaluate(self, samples: Sequence[Sample], clock: RunClock) -> Iterator[Finding]:
        """Yield findings from the failure counters of the pipeline, once per tick."""
        for metric, labels, value in samples:
            if metric is not daemon.PIPELINE_FAILURES or not isinstance(value, (int, float)):
                continue
            stage = self._stages.setdefault(labels[0], Growing(0.0))
            where = (("stage", labels[0]),)
            if stage.begins_to_grow(value, clock.at):
                text = f"the daemon's {labels[0]} has failed on {number(stage.lost)} {'batch' if stage.lost == 1 else 'batches'}"
                advice = TROUBLES["MonitorBlind"].advice(labels[0])
                yield Finding("MonitorBlind", "warning", where, clock.now, text, advice)
            elif stage.ends(clock.at):
                text = f"the daemon's {labels[0]} has not failed for {QUIET / 60:g} min"
                yield Finding("MonitorBlind", "warning", where, clock.now, text, over=True)


class RunBlind(RunAlert):
    """`MonitorBlind` of one run whose clients dropped messages, because the spool was full while no daemon accepted them.

    Values that are not numbers do not count: the client names their keys in the log of the training.
    """

    alert = "MonitorBlind"

    def __init__(self, run: RunProgress) -> None:
        super().__init__(run)
        self._lost = 0
        self._at = 0.0
        self._severity: Severity | None = None

    def restore(self, kept: Alert) -> None:
        """Continue an alert of the previous daemon."""
        self._severity = "info" if kept.severity == "info" else "warning"

    def gap(self, messages: int, at: float) -> None:
        """Count *messages* that a client dropped, reported *at* this time in watched seconds."""
        self._lost += messages
        self._at = at

    def evaluate(self, clock: RunClock) -> Iterator[Finding]:
        """Yield what changed since the last call."""
        if not self._lost and self._severity is None:
            return
        severity: Severity = "info" if self._lost < MANY else "warning"
        if clock.at - self._at > QUIET:
            yield from self.end(clock)
        elif self._severity not in {severity, "warning"}:
            self._severity = severity
            yield self._finding(severity, clock)

    def end(self, clock: RunClock) -> Iterator[Finding]:
        """End the alert, because nothing more is lost or the run has ended."""
        if self._severity is not None:
            text = f"run {self._run.name} no longer loses pushed values"
            yield self._run.finding("MonitorBlind", self._severity, clock.now, text, over=True)
        self._lost, self._severity = 0, None

    def _finding(self, severity: Severity, clock: RunClock) -> Finding:
        run = self._run
        what = (
            "1 message of pushed values is"
            if self._lost == 1
            else f"{number(self._lost)} messages of pushed values are"
        )
        text = f"{what} lost: the spool of run {run.name} was full while no daemon accepted them"
        advice = TROUBLES["MonitorBlind"].advice("run")
        return run.finding("MonitorBlind", severity, clock.now, text, advice)
