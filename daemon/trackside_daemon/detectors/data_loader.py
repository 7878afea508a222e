"""A training that waits for its data: the loader is slower than the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.detectors.wording import span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trackside_daemon.detectors.clock import Clock
    from trackside_daemon.detectors.run_view import Run
    from trackside_daemon.model.finding import Finding
    from trackside_daemon.model.records import Alert

STEPS, LEAST_STEPS = 100, 5
SECONDS, LEAST_SECONDS = 60.0, 10.0
"""A window is of so many steps and the least of seconds, or of so many seconds and the least of steps."""

SHARE, CALM = 0.3, 0.2
"""Shares of the time."""

WINDOWS = 2
"""So many windows in a row, to begin and to end."""

SLOW = (
    "More data loader workers, a faster disk or data that is prepared beforehand would help; see the CPU time and "
    "disk reads of its workers. Where its GPU is busy meanwhile, the wait costs nothing."
)
STARTS = (
    "Most of that is for the first batch of each epoch, while the data loader starts its workers: "
    "persistent_workers=True keeps them, and longer epochs have fewer such starts."
)


class DataLoader:
    """`DataLoaderBottleneck` of one run, by the mean over its ranks: from *share* of its time on."""

    alert = "DataLoaderBottleneck"

    def __init__(self, run: Run, share: float = SHARE) -> None:
        self._run = run
        self._share = share
        self._began: float | None = None
        self._steps = self._waited = self._first = 0.0
        self._in_a_row = 0
        self._said = False
        self._adopted: Alert | None = None

    def restore(self, kept: Alert) -> None:
        """It waited before this daemon, and does until two windows say otherwise."""
        self._adopted, self._said = kept, True

    def evaluate(self, clock: Clock) -> Iterator[Finding]:
        """Once a window."""
        run = self._run
        if self._adopted is not None:
            yield run.again(self._adopted, clock.now)
            self._adopted = None
        if not run.waiting:
            return
        if self._began is None:
            self._begin(clock)
            return
        seconds, steps = clock.at - self._began, run.steps - self._steps
        if not _is_window(seconds, steps):
            if seconds > 10 * SECONDS:
                self._begin(clock)
            return
        waited, first = run.waited - self._waited, run.waited_first - self._first
        share = min(1.0, waited / (seconds * len(run.waiting)))
        self._begin(clock)
        yield from self._judge(share, seconds / steps, clock, starts=first > waited / 2)

    def end(self, clock: Clock) -> Iterator[Finding]:
        """It waits little, or has ended."""
        if self._said:
            text = f"run {self._run.name} does not wait for its data any more"
            yield self._run.alarm("DataLoaderBottleneck", "warning", clock.now, text, over=True)
        self._said, self._in_a_row = False, 0

    def _begin(self, clock: Clock) -> None:
        run = self._run
        self._began, self._steps, self._waited, self._first = clock.at, run.steps, run.waited, run.waited_first

    def _judge(self, share: float, step: float, clock: Clock, *, starts: bool) -> Iterator[Finding]:
        changes = share < CALM / SHARE * self._share if self._said else share > self._share
        self._in_a_row = self._in_a_row + 1 if changes else 0
        if self._in_a_row < WINDOWS:
            return
        if self._said:
            yield from self.end(clock)
            return
        self._said, self._in_a_row = True, 0
        run = self._run
        summary = (
            f"run {run.name} spends {share:.0%} of its time waiting for data: {span(share * step)} of the {span(step)} "
            "of a step"
        )
        yield run.alarm("DataLoaderBottleneck", "warning", clock.now, summary, STARTS if starts else SLOW)


def _is_window(seconds: float, steps: float) -> bool:
    return (steps >= STEPS and seconds >= LEAST_SECONDS) or (steps >= LEAST_STEPS and seconds >= SECONDS)
