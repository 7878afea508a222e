"""One rank of one attempt of a run: turns the messages of its sessions into samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from trackside.rl_keys import PHASES, Meaning, meaning
from trackside.wire import CheckpointTotals, Clock, Device, Heartbeat, Hello, Histogram, Totals
from trackside_daemon.model.columns import Columns
from trackside_daemon.model.families import training as f
from trackside_daemon.model.families.rl import PHASE_ROLES, STATES, TOTALS
from trackside_daemon.model.metric import Distribution, Metric, Sample
from trackside_daemon.model.records import ENDED
from trackside_daemon.model.stall import Stall
from trackside_daemon.training.layer_values import LayerExport
from trackside_daemon.training.lost_time import RankLostTime
from trackside_daemon.training.totals import bounded, summed


class RlValues:
    """The key that counts for each quantity: of several, the one that `trackside.rl_keys.KEYS` has first.

    Args:
        labels: The rank's labels.
    """

    def __init__(self, labels: tuple[str, ...]) -> None:
        self._labels = labels
        self._keys: dict[str, tuple[str, Meaning]] = {}

    def register(self, key: str) -> None:
        """Register a key that the rank pushes."""
        found = meaning(key)
        if found is None or found.quantity not in STATES:
            return
        known = self._keys.get(found.quantity)
        if known is None or found.preference < known[1].preference:
            self._keys[found.quantity] = key, found

    def samples(self, newest: Mapping[str, float]) -> list[Sample]:
        """Return the quantities of the newest values; values that are not finite, such as RLlib's, are left out."""
        return [
            Sample(STATES[quantity], self._labels, found.factor * newest[key])
            for quantity, (key, found) in self._keys.items()
            if key in newest and isfinite(newest[key])
        ]


def rl_totals(totals: Totals, labels: tuple[str, ...]) -> list[Sample]:
    """Return the counters: times of a rank with phases of generation from its phases, everything else from its pushes."""
    amounts = {} if totals.device is None else dict(totals.device.amounts)
    if not PHASES["generate"].isdisjoint(totals.phases):
        for quantity, role in PHASE_ROLES.items():
            if spent := sum(totals.phases.get(phase, 0.0) for phase in PHASES[role]):
                amounts[quantity] = spent
    return [Sample(TOTALS[quantity], labels, amount) for quantity, amount in amounts.items() if quantity in TOTALS]


RECENT = 0.2  # weight of the newest batch in the recent step duration, from which the remaining time is estimated

# How many keys without a series are remembered, so that each is counted once. If a training invents keys without end,
# the later ones are counted each time they arrive.
REFUSED_KEYS = 10_000


class End(NamedTuple):
    """The end of a rank: its final state, a short cause (empty if there is none), and when in Unix seconds."""

    state: str
    cause: str
    at: float


class SessionReports:
    """The reports of one session of a rank.

    Attributes:
        totals: The last totals; None before the first.
        reported_at: The last push that a hello or a beat has reported, in nanoseconds of the client's monotonic clock.
        began: When it began, in Unix seconds, as its last hello has it; None before that.
    """

    def __init__(self) -> None:
        self.totals: Totals | None = None
        self.began: float | None = None
        self.reported_at: int | None = None


class RankStatus:
    """One rank.

    Args:
        run: The run's exported name.
        number: The global rank.
        admit: Decides once for each key without its own family whether it may have a series.
        lost_time: The time in which the rank trains nothing.
        stall: The stalled ranks of its run.
        layers: Names of the layers that are exported, with ``*`` and ``?``.

    Attributes:
        state: One of `families.training.STATES`, as on the page.
        end: The end as the history has it, which is earlier than on the page; None while the rank is alive.
        keys: How many series it has in `families.training.VALUE` and of layers.
        layers: The values of its layers.
        highest: The highest step; None before the first.
        peak_flops: Peak FLOP/s of its GPUs, if the user has set it.
    """

    def __init__(
        self,
        run: str,
        number: int,
        admit: Callable[[RankStatus, str], bool],
        lost_time: RankLostTime | None = None,
        stall: Stall | None = None,
        *,
        layers: Sequence[str] = (),
    ) -> None:
        self.labels = (run, str(number))
        self.state = "starting"
        self.end: End | None = None
        self.keys = 0
        self.lost_time = lost_time or RankLostTime()
        self.highest: int | None = None
        self.peak_flops: float | None = None
        self._number = number
        self._sessions: list[SessionReports] = []
        self._began: float | None = None
        """When it began before the last `rejoin`."""
        self._admit = admit
        self._stall = stall
        self._series: dict[str, tuple[Metric, tuple[str, ...]] | None] = {}
        self._refused: set[int] = set()
        self._rl = RlValues(self.labels)
        self.layers = LayerExport(self.labels, layers, self._admits)
        self._earlier: Totals | None = None
        self._total_steps = 0
        self._zero_based = False
        self._pushed: tuple[int, float] | None = None
        """The last push, by the client's monotonic clock in nanoseconds and in Unix seconds."""
        self._recent: float | None = None

    def add(self, session: SessionReports) -> None:
        """Add a session to the rank."""
        self._sessions.append(session)

    def open(self, session: SessionReports, hello: Hello) -> list[Sample]:
        """Apply a hello, which also reports what was pushed before this daemon listened."""
        session.began = hello.started / 1e9
        self._total_steps = hello.total_steps if hello.total_steps is not None else self._total_steps
        return self.report(session, hello.totals, hello)

    def report(self, session: SessionReports, totals: Totals, newest: Hello | Heartbeat) -> list[Sample]:
        """Apply the newest values of a hello or a beat, which may be ahead of the batches that carry them."""
        if newest.step is None or newest.progress_age is None:
            return self.state_samples() + self.count(session, totals)
        session.reported_at = newest.clock.monotonic - newest.progress_age
        samples = self._values(newest.last) + self._progress(newest.step, newest.clock, session.reported_at)
        return samples + self.count(session, totals)

    def push(self, session: SessionReports, clock: Clock, totals: Totals, pushed: Sequence[Columns]) -> list[Sample]:
        """Apply pushed rows: the newest value of each key, and the totals after them."""
        self._update_recent(session, totals)
        newest: dict[str, float] = {}
        for keys, steps, _, values, aside in pushed:
            newest.update(zip(keys, values[-len(keys) :], strict=True))
            self._zero_based = self._zero_based or (not aside and 0 in (steps[0], steps[-1]))
        samples: list[Sample] = []
        if pushed:
            # Values of a GPU arrive late, so the last block is not always the newest; at a tie, the later one.
            last = max(reversed(pushed), key=lambda columns: (not columns.aside, columns.times[-1]))
            # A client that greets again resends what was not acknowledged. The page has newer values from the hello.
            if session.reported_at is None or last.times[-1] >= session.reported_at:
                samples = self._values(newest)
                if not last.aside:
                    samples += self._progress(last.steps[-1], clock, last.times[-1])
        return samples + self.count(session, totals)

    def derive(self, derived: Iterable[Columns]) -> list[Sample]:
        """Apply values that the daemon has derived from several ranks: the newest of each key."""
        return self._values({columns.keys[0]: columns.values[-1] for columns in derived})

    def count(self, session: SessionReports, totals: Totals) -> list[Sample]:
        """Apply a session's totals, and return the sums over all sessions."""
        totals.nonfinite = {
            key: count for key, count in totals.nonfinite.items() if self._series_of(key) is not None or key in f.KNOWN
        }
        session.totals = max(bounded(totals), totals if session.totals is None else session.totals, key=_age)
        every = bounded(summed(self._all_totals()))
        self.peak_flops = None if every.device is None else every.device.peak_flops
        self.lost_time.update(every)
        samples = [
            *self.lost_samples(),
            Sample(f.PUSHES, self.labels, every.pushes),
            Sample(f.DROPPED, self.labels, every.dropped),
            Sample(f.RESENT, self.labels, every.resent),
            Sample(f.SPOOLED, self.labels, every.spooled),
            Sample(f.OVERHEAD, self.labels, every.overhead),
            Sample(f.STEPS, self.labels, every.steps),
        ]
        samples += [Sample(f.NONFINITE, (*self.labels, key), n) for key, n in self._nonfinite(every).items()]
        samples += [Sample(f.PHASE_SECONDS, (*self.labels, phase), spent) for phase, spent in every.phases.items()]
        samples += self._amounts((f.SAMPLES, every.samples), (f.TOKENS, every.tokens))
        samples += self._histograms((f.STEP_DURATION, every.step_duration), (f.DATA_WAIT, every.data_wait))
        if every.data_wait is not None:
            samples += self._histograms((f.FIRST_WAIT, every.data_wait.first))
        samples += rl_totals(every, self.labels)
        return samples + self._device(every.device) + self._saves(every.saves)

    def lost_samples(self) -> list[Sample]:
        """Return the lost time by cause."""
        return [Sample(f.LOST, (*self.labels, cause), spent) for cause, spent in self.lost_time.exported.items()]

    def rejoin(self) -> None:
        """Begin anew with the next session, after the rank's end and while the run continues; the counters continue."""
        self.state = "starting"
        self.end = None
        self._pushed = None
        self._earlier = bounded(summed(self._all_totals()))
        self._began = self._started()
        self._sessions = []

    def move_clock(self, seconds: float) -> None:
        """Move what it has of its past, since this machine's clock was set forward by so many seconds."""
        self.lost_time.move_clock(seconds)
        if self._began is not None:
            self._began += seconds
        if self.end is not None:
            self.end = self.end._replace(at=self.end.at + seconds)

    def revive(self) -> None:
        """Return to life after a silence for which the rank counted as lost."""
        self.state = self._living_state()
        self.end = None

    def apply_stall(self, stall: Stall | None) -> bool:
        """Apply which ranks of the run are stalled; return whether the state of this one changes."""
        self._stall = stall
        return self._update_state()

    def state_samples(self) -> list[Sample]:
        """Return the start time, and a sample for each state: 1 for the current one."""
        states = [Sample(f.RANK_STATE, (*self.labels, state), float(state == self.state)) for state in f.STATES]
        started = self._started()
        return states if started is None else [Sample(f.STARTED, self.labels, started), *states]

    def _started(self) -> float | None:
        """Return when its first session began; None before that."""
        begins = (self._began, *(session.began for session in self._sessions))
        return min((began for began in begins if began is not None), default=None)

    def _update_state(self) -> bool:
        before = self.state
        if before not in ENDED:
            self.state = self._living_state()
        return self.state != before

    def _living_state(self) -> str:
        pushed = None if self._pushed is None else self._pushed[1]
        if self._stall is not None and self._stall.has(self._number, pushed):
            return "stalled"
        return "starting" if pushed is None else "running"

    def _all_totals(self) -> list[Totals]:
        """Totals of the sessions before the last `rejoin`, then of each session since."""
        earlier = [] if self._earlier is None else [self._earlier]
        return [*earlier, *(session.totals for session in self._sessions if session.totals is not None)]

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
            *self._amounts((f.MODEL_FLOPS, device.flops)),
        ]

    def _saves(self, saves: CheckpointTotals | None) -> list[Sample]:
        if saves is None:
            return []
        samples = self._amounts(
            (f.CHECKPOINTS, saves.count), (f.CHECKPOINT_BYTES, saves.bytes), (f.CHECKPOINT_AT, saves.at)
        )
        return samples + self._histograms((f.CHECKPOINT_DURATION, saves.duration))

    def _amounts(self, *amounts: tuple[Metric, float | None]) -> list[Sample]:
        return [Sample(metric, self.labels, amount) for metric, amount in amounts if amount is not None]

    def _histograms(self, *histograms: tuple[Metric, Histogram | None]) -> list[Sample]:
        return [
            Sample(metric, self.labels, Distribution(tuple(histogram.counts), histogram.sum, histogram.fine))
            for metric, histogram in histograms
            if histogram is not None
        ]

    def _progress(self, step: int, clock: Clock, pushed_at: int) -> list[Sample]:
        if self._pushed is None or self._pushed[0] != pushed_at:
            # A push that is reported again keeps its time, since the clock pairs of messages drift.
            self._pushed = pushed_at, clock.wall_seconds(pushed_at)
        self.highest = step if self.highest is None else max(self.highest, step)
        self._update_state()
        samples = self.state_samples()
        samples.append(Sample(f.STEP, self.labels, step))
        samples.append(Sample(f.LAST_STEP, self.labels, self._pushed[1]))
        if self._total_steps > 0:
            done = min(self._total_steps, max(0, step + self._zero_based))  # a loop from 0 ends one step earlier
            samples.append(Sample(f.PROGRESS, self.labels, done / self._total_steps))
            if self._recent is not None:
                samples.append(Sample(f.REMAINING, self.labels, (self._total_steps - done) * self._recent))
        return samples

    def _update_recent(self, session: SessionReports, totals: Totals) -> None:
        """Update the recent step duration by the steps of this batch."""
        before = session.totals
        if totals.step_duration is None:
            return
        count = sum(totals.step_duration.counts)
        seconds = totals.step_duration.sum
        if before is not None and before.step_duration is not None:
            count -= sum(before.step_duration.counts)
            seconds -= before.step_duration.sum
        if count > 0 and isfinite(seconds):
            mean = seconds / count
            self._recent = mean if self._recent is None else self._recent + RECENT * (mean - self._recent)

    def _nonfinite(self, every: Totals) -> dict[str, int]:
        """Return counts by key, from 0 for losses and known keys: `increase` does not see the first count of a new counter."""
        counted = (key for key, series in self._series.items() if series is not None)
        return {key: 0 for key in counted if key in f.KNOWN or f.is_loss(key)} | every.nonfinite

    def _values(self, newest: dict[str, float]) -> list[Sample]:
        known = ((self._series_of(key), value) for key, value in newest.items())
        samples = [Sample(*series, value) for series, value in known if series is not None]
        return samples + self._rl.samples(newest)

    def _series_of(self, key: str) -> tuple[Metric, tuple[str, ...]] | None:
        """Return the series that a key is exported as; None for amounts and for keys over a limit."""
        if key not in self._series and hash(key) not in self._refused:
            self._assign(key)
        return self._series.get(key)

    def _assign(self, key: str) -> None:
        """Decide which series a key is exported as, until its long form arrives."""
        self._rl.register(key)
        if key in f.AMOUNTS:
            self._series[key] = None
        elif key in f.KNOWN:
            self._series[key] = None if f.NAMES.get(key) in self._series else (f.KNOWN[key], self.labels)
            self._series.update(
                {short: None for short, full in f.NAMES.items() if full == key and short in self._series}
            )
        elif self._admits(key):
            self._series[key] = f.model_series(key, self.labels) or (f.VALUE, (*self.labels, key))
        elif len(self._refused) < REFUSED_KEYS:
            self._refused.add(hash(key))  # a hash, since a key may have 64 KiB

    def _admits(self, key: str) -> bool:
        """Return whether one more series may be exported, and count it."""
        admitted = self._admit(self, key)
        self.keys += admitted
        return admitted


def _age(totals: Totals) -> tuple[float, ...]:
    """Return a sort key by time: totals only grow, and a late message must not make a counter fall."""
    return totals.pushes, totals.dropped, totals.resent, totals.spooled, totals.overhead, sum(totals.phases.values())
