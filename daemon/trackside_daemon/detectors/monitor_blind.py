"""Detect losses of the monitor itself: values it could not process or keep."""

from collections.abc import Iterator, Sequence

from trackside_daemon.detectors.run_view import RunAlert, RunClock, RunProgress
from trackside_daemon.model.families import daemon
from trackside_daemon.model.finding import Finding, Severity
from trackside_daemon.model.metric import Sample
from trackside_daemon.model.text import number
from trackside_daemon.model.troubles import TROUBLES

QUIET = 300.0  # seconds without a further loss after which the alert ends
MANY = 10  # Lost messages from which the severity is warning. Fewer are a gap of seconds, reported as info.


class PipelineBlind:
    """`MonitorBlind` for stages of the pipeline that fail."""

    def __init__(self) -> None:
        self._failures: dict[str, float] = {}
        self._failing: dict[str, float] = {}
        """When each stage with an alert failed last, in watched seconds."""

    def evaluate(self, samples: Sequence[Sample], clock: RunClock) -> Iterator[Finding]:
        """Yield findings from the failure counters of the pipeline, once per tick."""
        for metric, labels, value in samples:
            if metric is not daemon.PIPELINE_FAILURES or not isinstance(value, (int, float)):
                continue
            stage, where = labels[0], (("stage", labels[0]),)
            more = value - self._failures.get(stage, 0.0)
            self._failures[stage] = value
            if more > 0:
                if stage not in self._failing:
                    text = f"the daemon's {stage} has failed on {number(more)} {'batch' if more == 1 else 'batches'}"
                    yield Finding(
                        "MonitorBlind", "warning", where, clock.now, text, TROUBLES["MonitorBlind"].advice(stage)
                    )
                self._failing[stage] = clock.at
            elif clock.at - self._failing.get(stage, clock.at) > QUIET:
                del self._failing[stage]
                text = f"the daemon's {stage} has not failed for {QUIET / 60:g} min"
                yield Finding("MonitorBlind", "warning", where, clock.now, text, over=True)


class RunBlind(RunAlert):
    """`MonitorBlind` of one run whose clients dropped messages, because the spool was full while no daemon accepted them.

    Values that are not numbers do not count: the client names their keys in the log of the training.
    """

    alert = "MonitorBlind"
    ends = "run {run} no longer loses pushed values"

    def __init__(self, run: RunProgress) -> None:
        super().__init__(run)
        self._lost = 0
        self._at = 0.0

    def gap(self, messages: int, at: float) -> None:
        """Count *messages* that a client dropped, reported *at* this time in watched seconds."""
        self._lost += messages
        self._at = at

    def _changes(self, clock: RunClock) -> Iterator[Finding]:
        severity: Severity = "info" if self._lost < MANY else "warning"
        if clock.at - self._at > QUIET:
            yield from self.end(clock)
        elif self._lost and self._severity not in {severity, "warning"}:
            what = "1 message of pushed values is"
            if self._lost > 1:
                what = f"{number(self._lost)} messages of pushed values are"
            text = f"{what} lost: the spool of run {self._run.name} was full while no daemon accepted them"
            yield self.report(severity, clock, text, TROUBLES["MonitorBlind"].advice("run"))

    def end(self, clock: RunClock, since: float | None = None) -> Iterator[Finding]:
        """End the alert, because nothing more is lost or the run has ended."""
        yield from super().end(clock, since)
        self._lost = 0
