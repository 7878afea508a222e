"""Detect a training that waits for its data because the data loader is slower than the GPU."""

from collections.abc import Iterator

from trackside_daemon.detectors.run_view import RunAlert, RunClock, RunProgress
from trackside_daemon.model.finding import Finding
from trackside_daemon.model.text import duration, percent
from trackside_daemon.model.troubles import TROUBLES

# A window has STEPS steps and LEAST_SECONDS or more, or SECONDS seconds and LEAST_STEPS or more.
STEPS, LEAST_STEPS = 100, 5
SECONDS, LEAST_SECONDS = 60.0, 10.0

CALM = 2 / 3  # an alert ends below this part of the share of time with which it begins

WINDOWS = 2  # consecutive windows needed to begin and to end an alert


class DataLoader(RunAlert):
    """`DataLoaderBottleneck` of one run: the mean share of time its ranks wait exceeds *share*."""

    alert = "DataLoaderBottleneck"
    ends = "run {run} no longer waits for its data"

    def __init__(self, run: RunProgress, share: float) -> None:
        super().__init__(run)
        self._share = share
        self._began: float | None = None
        self._steps = self._waited = self._first = 0.0
        self._in_a_row = 0

    def _changes(self, clock: RunClock) -> Iterator[Finding]:
        run = self._run
        if not run.waiting:
            return
        if self._began is None:
            self._begin(clock)
            return
        seconds, steps = clock.at - self._began, run.steps - self._steps
        if not ((steps >= STEPS and seconds >= LEAST_SECONDS) or (steps >= LEAST_STEPS and seconds >= SECONDS)):
            if seconds > 10 * SECONDS:
                self._begin(clock)
            return
        waited, first = run.waited - self._waited, run.waited_first - self._first
        share = min(1.0, waited / (seconds * len(run.waiting)))
        self._begin(clock)
        yield from self._judge(share, seconds / steps, clock, starts=first > waited / 2)

    def _begin(self, clock: RunClock) -> None:
        run = self._run
        self._began, self._steps, self._waited, self._first = clock.at, run.steps, run.waited, run.waited_first

    def _judge(self, share: float, step: float, clock: RunClock, *, starts: bool) -> Iterator[Finding]:
        changes = share > self._share if self._severity is None else share < CALM * self._share
        self._in_a_row = self._in_a_row + 1 if changes else 0
        if self._in_a_row < WINDOWS:
            return
        self._in_a_row = 0
        if self._severity is not None:
            yield from self.end(clock)
            return
        summary = (
            f"run {self._run.name} spends {percent(share)} of its time waiting for data: {duration(share * step)} of the {duration(step)} "
            "of a step"
        )
        advice = TROUBLES["DataLoaderBottleneck"].advice("starts" if starts else "")
        yield self.report("warning", clock, summary, advice)
