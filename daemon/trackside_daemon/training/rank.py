"""One rank of one attempt of a run: turns what its sessions push into samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trackside_daemon.metric import Distribution, Sample
from trackside_daemon.training import families as f

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.wire import Block, Clock, Hello, Totals
    from trackside_daemon.metric import Metric

RECENT = 0.2
"""Weight of the newest batch in the step duration that the time left is reckoned with."""


class Rank:
    """What is known of one rank.

    Args:
        run: The run's name as it is exported.
        number: The global rank.
        admit: Asked once a key that has no family of its own: may it have a series?

    Attributes:
        state: One of `families.STATES`.
        keys: How many keys have a series in `families.VALUE`.
        ended_at: Unix time of its end; None while it lives.
    """

    def __init__(self, run: str, number: int, admit: Callable[[Rank, str], bool]) -> None:
        self.labels = (run, str(number))
        self.state = "starting"
        self.keys = 0
        self.ended_at: float | None = None
        self._started: float | None = None
        self._admit = admit
        self._series: dict[str, tuple[Metric, tuple[str, ...]] | None] = {}
        self._totals: dict[bytes, Totals] = {}
        self._total_steps: int | None = None
        self._zero_based = False
        self._recent: float | None = None

    def greet(self, session: bytes, hello: Hello) -> list[Sample]:
        """What a hello tells: also all that was pushed before, for a daemon that was not there then."""
        started = hello.started / 1e9
        self._started = started if self._started is None else min(self._started, started)
        self._total_steps = hello.total_steps if hello.total_steps is not None else self._total_steps
        samples = [Sample(f.STARTED, self.labels, self._started), *self.count(session, hello.totals)]
        if hello.step is None or hello.progress_age is None:
            return samples + self.states()
        samples += [
            Sample(*series, value) for key, value in hello.last.items() if (series := self._of(key)) is not None
        ]
        return samples + self._progressed(hello.step, hello.clock, hello.clock.monotonic - hello.progress_age)

    def push(self, session: bytes, clock: Clock, totals: Totals, blocks: list[Block]) -> list[Sample]:
        """The newest value of each key in *blocks*, and the totals after them.

        Raises:
            WireError: A block's columns do not fit each other.
        """
        newest: dict[str, float] = {}
        step, time = 0, clock.monotonic
        for block in blocks:
            steps, times, values = block.columns()
            newest.update(zip(block.keys, values[-len(block.keys) :], strict=True))
            step, time = steps[-1], times[-1]
            self._zero_based = self._zero_based or 0 in (steps[0], steps[-1])
        self._reckon(session, totals)
        samples = [Sample(*series, value) for key, value in newest.items() if (series := self._of(key)) is not None]
        samples += self.count(session, totals)
        return samples + self._progressed(step, clock, time) if blocks else samples

    def count(self, session: bytes, totals: Totals) -> list[Sample]:
        """The totals of all the rank's sessions, summed, with one of them renewed."""
        self._totals[session] = totals
        every = tuple(self._totals.values())
        samples = [
            Sample(f.PUSHES, self.labels, sum(one.pushes for one in every)),
            Sample(f.DROPPED, self.labels, sum(one.dropped for one in every)),
            Sample(f.RESENT, self.labels, sum(one.resent for one in every)),
            Sample(f.OVERHEAD, self.labels, sum(one.overhead for one in every)),
            Sample(f.STEPS, self.labels, sum(one.steps for one in every)),
        ]
        for metric, amounts in (
            (f.SAMPLES, [one.samples for one in every if one.samples is not None]),
            (f.TOKENS, [one.tokens for one in every if one.tokens is not None]),
        ):
            samples += [Sample(metric, self.labels, sum(amounts))] if amounts else []
        samples += [Sample(f.NONFINITE, (*self.labels, key), count) for key, count in self._nonfinite(every).items()]
        durations = [one.step_duration for one in every if one.step_duration is not None]
        if durations:
            counts = tuple(map(sum, zip(*(one.counts for one in durations), strict=True)))
            samples.append(
                Sample(f.STEP_DURATION, self.labels, Distribution(counts, sum(one.sum for one in durations)))
            )
        return samples

    def states(self) -> list[Sample]:
        """A sample for each state, 1 for the one that the rank is in."""
        return [Sample(f.RANK_STATE, (*self.labels, state), float(state == self.state)) for state in f.STATES]

    def _progressed(self, step: int, clock: Clock, pushed_at: int) -> list[Sample]:
        self.state = "running" if self.state == "starting" else self.state
        samples = self.states()
        samples.append(Sample(f.STEP, self.labels, step))
        samples.append(Sample(f.LAST_STEP, self.labels, clock.wall_seconds(pushed_at)))
        if self._total_steps:
            done = min(self._total_steps, max(0, step + self._zero_based))
            samples.append(Sample(f.PROGRESS, self.labels, done / self._total_steps))
            if self._recent is not None:
                samples.append(Sample(f.REMAINING, self.labels, (self._total_steps - done) * self._recent))
        return samples

    def _reckon(self, session: bytes, totals: Totals) -> None:
        """Follow the step duration of late: of each batch its own steps only."""
        before = self._totals.get(session)
        if totals.step_duration is None:
            return
        count, seconds = sum(totals.step_duration.counts), totals.step_duration.sum
        if before is not None and before.step_duration is not None:
            count, seconds = count - sum(before.step_duration.counts), seconds - before.step_duration.sum
        if count > 0:
            mean = seconds / count
            self._recent = mean if self._recent is None else self._recent + RECENT * (mean - self._recent)

    def _nonfinite(self, every: tuple[Totals, ...]) -> dict[str, int]:
        """Counts by key: 0 for the known ones that were pushed, since a counter that begins at 1 hides its first."""
        counts = {key: 0 for key in self._series if key in f.KNOWN}
        for totals in every:
            for key, count in totals.nonfinite.items():
                if self._of(key) is not None or key in f.KNOWN:
                    counts[key] = counts.get(key, 0) + count
        return counts

    def _of(self, key: str) -> tuple[Metric, tuple[str, ...]] | None:
        """The series that a key is exported as; None for amounts and what is over a limit."""
        if key not in self._series:
            self._series[key] = self._new_series(key)
            for short, full in f.NAMES.items():
                if full == key:
                    self._series[short] = None
        return self._series[key]

    def _new_series(self, key: str) -> tuple[Metric, tuple[str, ...]] | None:
        if key in f.AMOUNTS or f.NAMES.get(key) in self._series:
            return None
        if key in f.KNOWN:
            return f.KNOWN[key], self.labels
        if not self._admit(self, key):
            return None
        self.keys += 1
        return f.VALUE, (*self.labels, key)
