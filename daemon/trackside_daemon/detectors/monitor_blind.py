"""The monitor itself: what it could not take or keep, it cannot tell of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.detectors.wording import count
from trackside_daemon.model.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside_daemon.detectors.clock import Clock
    from trackside_daemon.detectors.run_view import Run
    from trackside_daemon.model.finding import Severity
    from trackside_daemon.model.metric import Sample
    from trackside_daemon.model.records import Alert

QUIET = 300.0
"""Seconds without a further loss after which it is over."""

MANY = 10
"""Messages: fewer are a gap of seconds, which is worth knowing and nothing to act on."""

_LOOK = {
    "state": "What /metrics shows may be old.",
    "history": "What was pushed may be missing from the history: see whether the disk of --storage.path is full.",
    "jsonl": "Lines are missing from the files of --storage.jsonl: see whether its disk is full.",
}


class Growing:
    """A count of losses that should not grow. Times are watched seconds.

    Attributes:
        lost: By how much it has grown since it was well.
    """

    __slots__ = ("_count", "_since", "at", "lost")

    def __init__(self, count: float) -> None:
        self._count = count
        self._since = count
        self.at: float | None = None
        self.lost = 0.0

    def begins_to_grow(self, count: float, at: float) -> bool:
        """The count is this now; whether it begins to grow."""
        grows, began = count > self._count, self.at is None
        if grows:
            self._since = self._count if began else self._since
            self.at, self.lost = at, count - self._since
        self._count = count
        return grows and began

    def ends(self, at: float) -> bool:
        """Whether it has stopped to grow, long enough ago."""
        over = self.at is not None and at - self.at > QUIET
        if over:
            self.at = None
        return over


class PipelineBlind:
    """`MonitorBlind` where stages of the pipeline fail."""

    def __init__(self) -> None:
        self._stages: dict[str, Growing] = {}

    def evaluate(self, samples: Sequence[Sample], clock: Clock) -> Iterator[Finding]:
        """What the pipeline tells of itself each tick."""
        for metric, labels, value in samples:
            if metric.name != "trackside_pipeline_failures_total" or not isinstance(value, (int, float)):
                continue
            stage = self._stages.setdefault(labels[0], Growing(0.0))
            where = (("stage", labels[0]),)
            if stage.begins_to_grow(value, clock.at):
                text = f"the daemon's {labels[0]} has failed on {count(stage.lost)} {'batch' if stage.lost == 1 else 'batches'} of what it is told"
                look = f"{_LOOK.get(labels[0], 'Alerts may be missing.')} The daemon's log has the reason."
                yield Finding("MonitorBlind", "warning", where, clock.now, text, look)
            elif stage.ends(clock.at):
                text = f"the daemon's {labels[0]} has not failed for {QUIET / 60:g} min"
                yield Finding("MonitorBlind", "warning", where, clock.now, text, over=True)


class RunBlind:
    """`MonitorBlind` where the clients of one run had to drop messages: no room was left while no daemon took them.

    Values that are no numbers are none of these: the client names their keys in the training's own log.
    """

    alert = "MonitorBlind"

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lost = 0
        self._at = 0.0
        self._severity: Severity | None = None

    def restore(self, kept: Alert) -> None:
        """Something was lost before this daemon, of late."""
        self._severity = "info" if kept.severity == "info" else "warning"

    def gap(self, messages: int, at: float) -> None:
        """A client had to drop so many messages, as is heard *at* this time, in watched seconds."""
        self._lost += messages
        self._at = at

    def evaluate(self, clock: Clock) -> Iterator[Finding]:
        """What time has changed."""
        if not self._lost and self._severity is None:
            return
        severity: Severity = "info" if self._lost < MANY else "warning"
        if clock.at - self._at > QUIET:
            yield from self.end(clock)
        elif self._severity not in {severity, "warning"}:
            self._severity = severity
            yield self._finding(severity, clock)

    def end(self, clock: Clock) -> Iterator[Finding]:
        """Nothing more is lost, or the run has ended."""
        if self._severity is not None:
            text = f"nothing more that run {self._run.name} pushes is lost"
            yield self._run.alarm("MonitorBlind", self._severity, clock.now, text, over=True)
        self._lost, self._severity = 0, None

    def _finding(self, severity: Severity, clock: Clock) -> Finding:
        run = self._run
        what = (
            "1 message of pushed values is" if self._lost == 1 else f"{count(self._lost)} messages of pushed values are"
        )
        text = f"{what} lost: the client of run {run.name} had no room for more while no daemon took them"
        look = (
            "See whether this daemon was away or its disk full for long; a spool with more room would have kept them."
        )
        return run.alarm("MonitorBlind", severity, clock.now, text, look)
