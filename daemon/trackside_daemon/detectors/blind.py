"""The monitor itself: what it could not take or keep, it cannot tell of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.alarm import Alarm
from trackside_daemon.detectors.words import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside_daemon.detectors.clock import Clock
    from trackside_daemon.detectors.run_view import Run
    from trackside_daemon.metric import Sample

QUIET = 300.0
"""Seconds without a further loss after which it is over."""

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

    def take(self, count: float, at: float) -> bool:
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

    def take(self, samples: Sequence[Sample], clock: Clock) -> Iterator[Alarm]:
        """What the pipeline tells of itself each tick."""
        for metric, labels, value in samples:
            if metric.name != "trackside_pipeline_failures_total" or not isinstance(value, (int, float)):
                continue
            stage = self._stages.setdefault(labels[0], Growing(0.0))
            where = (("stage", labels[0]),)
            if stage.take(value, clock.at):
                text = f"the daemon's {labels[0]} has failed on {count(stage.lost)} batches of what it is told"
                look = f"{_LOOK.get(labels[0], 'Alerts may be missing.')} The daemon's log has the reason."
                yield Alarm("MonitorBlind", "warning", where, clock.now, text, look)
            elif stage.ends(clock.at):
                text = f"the daemon's {labels[0]} has not failed for {QUIET / 60:g} min"
                yield Alarm("MonitorBlind", "warning", where, clock.now, text, over=True)


class RunBlind:
    """`MonitorBlind` where the clients of one run lose what is pushed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._dropped = Growing(0.0)

    def look(self, clock: Clock) -> Iterator[Alarm]:
        """What time has changed."""
        run = self._run
        if self._dropped.take(run.dropped, clock.at):
            text = f"{count(self._dropped.lost)} values that run {run.name} pushed are lost: its client could not keep them"
            look = (
                "Values that are no numbers are dropped, and so is what finds no room while no daemon answers: see the "
                "log of the training, and whether this daemon was away."
            )
            yield run.alarm("MonitorBlind", "warning", clock.now, text, look)
        elif self._dropped.ends(clock.at):
            yield from self._over(clock)

    def end(self, clock: Clock) -> Iterator[Alarm]:
        """The run has ended."""
        if self._dropped.at is not None:
            self._dropped.at = None
            yield from self._over(clock)

    def _over(self, clock: Clock) -> Iterator[Alarm]:
        text = f"nothing more that run {self._run.name} pushes is lost"
        yield self._run.alarm("MonitorBlind", "warning", clock.now, text, over=True)
