"""One rank of one attempt of a run: turns what its sessions push into samples."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from trackside_daemon.model.metric import Distribution, Sample
from trackside_daemon.model.records import ENDED, bounded
from trackside_daemon.training import families as f
from trackside_daemon.training.lost_time import Losses
from trackside_daemon.training.totals import summed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trackside.wire import Block, CheckpointTotals, Clock, Device, Heartbeat, Hello, Histogram, Totals
    from trackside_daemon.model.finding import Stands
    from trackside_daemon.model.metric import Metric

RECENT = 0.2
"""Weight of the newest batch in the step duration that the time left is reckoned with."""

REFUSED_KEYS = 10_000
"""How many keys without a series are remembered, so that each is counted once; of a training that invents keys without
end, the later ones are counted each time they come."""

Columns = tuple[list[str], "Sequence[int]", "Sequence[int]", "Sequence[float]"]
"""A `Block`, read: its keys, steps, times and values."""


class End(NamedTuple):
    """How a rank ended, and when in Unix time; *cause* in a word, empty when there is nothing to say."""

    state: str
    cause: str
    at: float


class Rank:
    """What is known of one rank.

    Args:
        run: The run's name as it is exported.
        number: The global rank.
        admit: Asked once a key that has no family of its own: may it have a series?
        stalls: Tells who of the run stands still.
        losses: Where the time goes that trains nothing.

    Attributes:
        state: One of `families.STATES`, as on the page.
        end: As the history is told, which is earlier than the page; None while it lives.
        keys: How many keys have a series in `families.VALUE`.
        highest: The highest step; None before the first.
        peak_flops: FLOP/s that its GPUs can do at most, if it has said so.
    """

    def __init__(
        self,
        run: str,
        number: int,
        admit: Callable[[Rank, str], bool],
        stalls: Callable[[], Stands | None] = lambda: None,
        losses: Losses | None = None,
    ) -> None:
        self.labels = (run, str(number))
        self._number = number
        self.state = "starting"
        self.end: End | None = None
        self.keys = 0
        self.losses = losses or Losses()
        self.highest: int | None = None
        self.peak_flops: float | None = None
        self._started: float | None = None
        self._admit, self._stalls = admit, stalls
        self._series: dict[str, tuple[Metric, tuple[str, ...]] | None] = {}
        self._refused: set[int] = set()
        self._totals: dict[bytes, Totals] = {}
        self._told: dict[bytes, int] = {}
        self._total_steps = 0
        self._zero_based = False
        self._pushed: tuple[int, float] | None = None
        """When it was last, by its own clock and in Unix time."""
        self._recent: float | None = None

    def greet(self, session: bytes, hello: Hello) -> list[Sample]:
        """What a hello tells: also all that was pushed before, for a daemon that was not there then."""
        started = hello.started / 1e9
        self._started = started if self._started is None else min(self._started, started)
        self._total_steps = hello.total_steps if hello.total_steps is not None else self._total_steps
        return self.tell(session, hello.totals, hello)

    def tell(self, session: bytes, totals: Totals, newest: Hello | Heartbeat) -> list[Sample]:
        """The newest values, which the batches that bring them have not told yet."""
        if newest.step is None or newest.progress_age is None:
            return self.standing() + self.count(session, totals)
        self._told[session] = newest.clock.monotonic - newest.progress_age
        samples = self._values(newest.last) + self._progress(newest.step, newest.clock, self._told[session])
        return samples + self.count(session, totals)

    def push(self, session: bytes, clock: Clock, totals: Totals, blocks: Sequence[Columns]) -> list[Sample]:
        """The newest value of each key in *blocks*, and the totals after them.

        What a hello has told already is on the page, and newer there: a client that greets again then sends again what
        was not acknowledged, and of this only the count is taken.
        """
        self._reckon(session, totals)
        newest: dict[str, float] = {}
        for keys, steps, _, values in blocks:
            newest.update(zip(keys, values[-len(keys) :], strict=True))
            self._zero_based = self._zero_based or 0 in (steps[0], steps[-1])
        samples: list[Sample] = []
        if blocks:
            _, steps, times, _ = max(reversed(blocks), key=lambda block: block[2][-1])  # values of a GPU come late
            if times[-1] >= self._told.get(session, times[-1]):
                samples = self._values(newest) + self._progress(steps[-1], clock, times[-1])
        return samples + self.count(session, totals)

    def learn(self, blocks: Iterable[Block]) -> list[Sample]:
        """What is known of it by what other ranks have told: the newest of each key."""
        return self._values({block.keys[0]: block.columns()[2][-1] for block in blocks})

    def count(self, session: bytes, totals: Totals) -> list[Sample]:
        """The totals of all the rank's sessions, summed, with one of them renewed."""
        totals.nonfinite = {
            key: count for key, count in totals.nonfinite.items() if self._of(key) is not None or key in f.KNOWN
        }
        self._totals[session] = max(_cut(totals), self._totals.get(session, totals), key=_age)
        every = _cut(summed(self._totals.values()))
        self.peak_flops = None if every.device is None else every.device.peak_flops
        self.losses.take(every.phases, None if every.device is None else every.device.flops)
        samples = [
            *self.lost(),
            Sample(f.PUSHES, self.labels, every.pushes),
            Sample(f.DROPPED, self.labels, every.dropped),
            Sample(f.RESENT, self.labels, every.resent),
            Sample(f.SPOOLED, self.labels, every.spooled),
            Sample(f.OVERHEAD, self.labels, every.overhead),
            Sample(f.STEPS, self.labels, every.steps),
        ]
        samples += [Sample(f.NONFINITE, (*self.labels, key), n) for key, n in self._nonfinite(every).items()]
        samples += [Sample(f.PHASE_SECONDS, (*self.labels, phase), spent) for phase, spent in every.phases.items()]
        samples += self._known((f.SAMPLES, every.samples), (f.TOKENS, every.tokens))
        samples += self._histograms((f.STEP_DURATION, every.step_duration), (f.DATA_WAIT, every.data_wait))
        if every.data_wait is not None:
            samples += self._histograms((f.FIRST_WAIT, every.data_wait.first))
        return samples + self._device(every.device) + self._saves(every.saves)

    def lost(self) -> list[Sample]:
        """The time that trains nothing."""
        return [Sample(f.LOST, (*self.labels, cause), spent) for cause, spent in self.losses.shown.items()]

    def _device(self, device: Device | None) -> list[Sample]:
        if device is None:
            return []
        spent = device.phases.items()
        return [
            *(Sample(f.DEVICE_PHASE_SECONDS, (*self.labels, phase), seconds) for phase, seconds in spent),
            *(
                Sample(metric, (*self.labels, uuid), getattr(memory, name))
                for uuid, memory in device.memory.items()
                for name, metric in f.MEMORY.items()
            ),
            *self._known((f.MODEL_FLOPS, device.flops)),
        ]

    def _saves(self, saves: CheckpointTotals | None) -> list[Sample]:
        if saves is None:
            return []
        told = self._known((f.CHECKPOINTS, saves.count), (f.CHECKPOINT_BYTES, saves.bytes), (f.CHECKPOINT_AT, saves.at))
        return told + self._histograms((f.CHECKPOINT_DURATION, saves.duration))

    def _known(self, *told: tuple[Metric, float | None]) -> list[Sample]:
        return [Sample(metric, self.labels, amount) for metric, amount in told if amount is not None]

    def _histograms(self, *told: tuple[Metric, Histogram | None]) -> list[Sample]:
        return [
            Sample(metric, self.labels, Distribution(tuple(one.counts), one.sum))
            for metric, one in told
            if one is not None
        ]

    def rejoin(self) -> None:
        """A new session takes the rank up again after its end, while the run goes on; so do its counters."""
        self.state, self.end, self._pushed = "starting", None, None
        self._totals, self._told = {b"": _cut(summed(self._totals.values()))}, {}

    def revive(self) -> None:
        """It was thought lost, and is not."""
        self.state, self.end = self._of_living(self._stalls()), None

    def look(self, stands: Stands | None) -> bool:
        """Whether its state has changed by what is found of its run: that it stands still, or not any more."""
        before = self.state
        if before not in ENDED:
            self.state = self._of_living(stands)
        return self.state != before

    def _of_living(self, stands: Stands | None) -> str:
        pushed = None if self._pushed is None else self._pushed[1]
        if stands is not None and stands(self._number, pushed):
            return "stalled"
        return "starting" if pushed is None else "running"

    def standing(self) -> list[Sample]:
        """When it began, and a sample for each state, 1 for the one that it is in."""
        states = [Sample(f.RANK_STATE, (*self.labels, state), float(state == self.state)) for state in f.STATES]
        return states if self._started is None else [Sample(f.STARTED, self.labels, self._started), *states]

    def _progress(self, step: int, clock: Clock, pushed_at: int) -> list[Sample]:
        if self._pushed is None or self._pushed[0] != pushed_at:
            # a push that is told again keeps its time: the clocks of messages drift
            self._pushed = pushed_at, clock.wall_seconds(pushed_at)
        self.highest = step if self.highest is None else max(self.highest, step)
        self.look(self._stalls())
        samples = self.standing()
        samples.append(Sample(f.STEP, self.labels, step))
        samples.append(Sample(f.LAST_STEP, self.labels, self._pushed[1]))
        if self._total_steps > 0:
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
        if count > 0 and isfinite(seconds):
            mean = seconds / count
            self._recent = mean if self._recent is None else self._recent + RECENT * (mean - self._recent)

    def _nonfinite(self, every: Totals) -> dict[str, int]:
        """Counts by key: losses and the known ones begin at 0, since a counter that begins at 1 hides its first."""
        counted = (key for key, series in self._series.items() if series is not None)
        return {key: 0 for key in counted if key in f.KNOWN or f.is_loss(key)} | every.nonfinite

    def _values(self, newest: dict[str, float]) -> list[Sample]:
        return [Sample(*series, value) for key, value in newest.items() if (series := self._of(key)) is not None]

    def _of(self, key: str) -> tuple[Metric, tuple[str, ...]] | None:
        """The series that a key is exported as; None for amounts and what is over a limit."""
        if key not in self._series and hash(key) not in self._refused:
            self._meet(key)
        return self._series.get(key)

    def _meet(self, key: str) -> None:
        """Decide what a key is exported as, which holds until its long form comes."""
        if key in f.AMOUNTS:
            self._series[key] = None
        elif key in f.KNOWN:
            self._series[key] = None if f.NAMES.get(key) in self._series else (f.KNOWN[key], self.labels)
            self._series.update(
                {short: None for short, full in f.NAMES.items() if full == key and short in self._series}
            )
        elif self._admit(self, key):
            self.keys += 1
            self._series[key] = f.VALUE, (*self.labels, key)
        elif len(self._refused) < REFUSED_KEYS:
            self._refused.add(hash(key))


def _cut(totals: Totals) -> Totals:
    """The same, with no more phases and devices than one session can tell: also of many sessions together."""
    totals.phases = bounded(totals.phases)
    if totals.device is not None:
        totals.device.phases, totals.device.memory = bounded(totals.device.phases), bounded(totals.device.memory)
    return totals


def _age(totals: Totals) -> tuple[float, ...]:
    """Orders the totals of one session by time: they only grow, and one that comes late must not make them fall."""
    return totals.pushes, totals.dropped, totals.resent, totals.spooled, totals.overhead, sum(totals.phases.values())
