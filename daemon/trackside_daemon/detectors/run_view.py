"""One live run as its exported samples show it: its ranks, how far each is, and how its pushes arrive."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from trackside_daemon.detectors.pace import Longest, PushPace
from trackside_daemon.model.families import training as f
from trackside_daemon.model.finding import Finding, Severity, severity_of
from trackside_daemon.model.metric import Distribution, Metric, Sample
from trackside_daemon.model.records import ENDED, Alert
from trackside_daemon.model.stall import Stall
from trackside_daemon.model.text import number
from trackside_daemon.model.time_ledger import SYNC_PHASES

# Phases that are part of every step.
STEP_PHASES = frozenset(("data", "prepare", "forward", "backward", "optimizer", "step", "other"))

# Least seconds between two evaluations of what time alone changes; the collectors of one tick differ by less.
APART = 0.9

# Seconds between two batches that count as watched, or `INTERVALS` times the last interval if that is more. During
# the rest the daemon was stopped or its machine asleep, so that the silence of a run means nothing.
UNSEEN = 15.0
INTERVALS = 3.0

_ORDINARY = STEP_PHASES | SYNC_PHASES


class RunClock:
    """The time of the detectors of runs: it comes with the batches and stops while the daemon does.

    Attributes:
        now: The newest time, in Unix seconds; 0 before the first.
        at: Watched seconds, in which silences are measured.
    """

    def __init__(self) -> None:
        self.now = self.at = self._evaluated_at = self._usual = 0.0

    def advance(self, time: float) -> bool:
        """Advance to the *time* at which a batch was sampled; return whether the next evaluation is due."""
        passed = time - self.now
        if passed <= 0:
            if passed < -UNSEEN:  # the machine's clock was set back
                self.now = self._evaluated_at = time
            return False
        if self.now:
            self.at += min(passed, max(UNSEEN, INTERVALS * self._usual))
        self.now = time
        if time - self._evaluated_at < APART:
            return False
        self._usual = time - self._evaluated_at if self._evaluated_at else 0.0
        self._evaluated_at = time
        return True


@dataclass(slots=True, eq=False)
class RankProgress:
    """One rank of one attempt.

    Attributes:
        step: The last step that it pushed; None before the first.
        at: When its last push was seen, in watched seconds.
        pushed_at: When it pushed last, in Unix seconds, by the client's clock; None before the first push.
        longest: Its longest recent gap between two pushes.
        pushes: How often a push was seen.
        ended: It has ended, in whatever state.
        steps: The number of its steps.
        phases: Seconds by phase.
        phase: The current phase; empty if unknown.
        wait: Seconds that it has waited for data; None while it does not report them.
        first_wait: Seconds that it has waited for the first batches of epochs, which *wait* does not contain.
    """

    run: RunProgress
    number: int
    at: float
    pushed_at: float | None = None
    step: int | None = None
    longest: Longest = field(default_factory=Longest)
    pushes: int = 0
    ended: bool = False
    steps: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    phase: str = ""
    wait: float | None = None
    first_wait: float | None = None

    @property
    def pauses(self) -> bool:
        """True in a phase that is no part of a step, such as an evaluation."""
        return bool(self.phase) and self.phase not in _ORDINARY


class RunProgress:
    """One attempt of a run.

    Attributes:
        id: The run's id; *name* is its exported name.
        at: When any rank was last seen to make progress, in watched seconds.
        high: The highest step of any rank since the last one that went back; None before the first.
        pace: The gaps between its steps.
        order: Its live ranks that have pushed, the one that has been silent for longest first.
        pausing: Ranks in a phase that is no part of a step.
        paused: Such phases that have ended before.
        died: When a rank of it died, in watched seconds; None if none did.
        waited: Seconds that its ranks have waited for data since the daemon watches it.
        waited_first: The part of these that was for first batches of epochs.
        waiting: Ranks that report their waits.
        started: When its first rank began, in Unix seconds; 0 if unknown.
        start_up: Watched seconds before its first step; 0 until then.
        state: How it has ended; empty while it is alive.
        stalled: It is reported as stalled, and has made no progress since.
        silent: Ranks that push nothing while others do.
        restored: An earlier daemon reported the stall: the first push that a rank reports may be from before.
    """

    def __init__(self, id: str, attempt: int, at: float, floor: float) -> None:  # noqa: A002  the field's word for it
        self.id = id
        self.attempt = attempt
        self.name = id
        self.at = at
        self.high: int | None = None
        self.pace = PushPace(floor)
        self.ranks: dict[int, RankProgress] = {}
        self.order: OrderedDict[int, RankProgress] = OrderedDict()
        self.paused: set[str] = set()
        self.pausing, self.waiting, self.silent = set[int](), set[int](), set[int]()
        self.died: float | None = None
        self.waited = self.waited_first = self.steps = self.started = self.start_up = 0.0
        self.stalled = self.restored = False
        self.state = ""
        self._advanced_at = at
        self._reporting = 0
        self._first: int | None = None
        """The rank that began first."""

    def accept(self, rank: RankProgress, samples: Sequence[Sample], at: float) -> None:
        """Apply samples of a rank."""
        entered, most = "", 0.0
        for metric, labels, value in samples:
            handle = self._HANDLERS.get(metric)
            if handle is not None:
                handle(self, rank, value.sum if isinstance(value, Distribution) else value, labels[-1], at)
            elif metric is f.PHASE_SECONDS and not isinstance(value, Distribution):
                grown = self._spend(rank, labels[2], value)
                if grown > most:
                    entered, most = labels[2], grown
        if not self.pace.known:
            self._seed(rank, samples)
        if entered:
            self._enter(rank, entered)

    @property
    def stall_version(self) -> tuple[object, ...]:
        """A value that differs when `stall` does, and costs nothing that grows with the ranks."""
        if not self.stalled and not self.silent:
            return ()
        return self.stalled, self.restored, frozenset(self.silent), self._reporting

    def stall(self) -> Stall:
        """Return which ranks are stalled now."""
        numbers = self.ranks if self.stalled else self.silent & self.ranks.keys()
        pushed = {number: self.ranks[number].pushed_at for number in numbers}
        return Stall(self.id, self.attempt, self.stalled, self.restored, frozenset(self.silent), pushed)

    def _progress(self, at: float) -> None:
        """Note that a rank pushes, ends or comes back."""
        self.at = at
        self.stalled = False

    def _spend(self, rank: RankProgress, phase: str, seconds: float) -> float:
        """Store a phase's seconds, and return by how much they have grown."""
        before = rank.phases.get(phase)
        rank.phases[phase] = seconds
        if before is None:
            return 0.0
        if phase == "data" and rank.wait is None and not rank.ended:  # a wrapped loader reports its waits more exactly
            self.waited += max(0.0, seconds - before)
            self.waiting.add(rank.number)
        return seconds - before

    def _seed(self, rank: RankProgress, samples: Sequence[Sample]) -> None:
        """Seed the pace from the rank's totals."""
        pushes = next((value for metric, _, value in samples if metric is f.PUSHES), None)
        if rank.pushed_at is None or not isinstance(pushes, (int, float)) or pushes < 1 or not self.started:
            return
        for metric, _, value in samples:
            if metric is f.STEP_DURATION and isinstance(value, Distribution):
                count = sum(value.counts)
                usual, longest = (_quantile(value, metric.buckets, share) for share in (0.99, 1.0))
                self.pace.seed(count, usual, longest, max(0.0, rank.pushed_at - self.started) / pushes)

    def _enter(self, rank: RankProgress, phase: str) -> None:
        """Note the phase in which the rank spends its time."""
        if rank.phase == phase:
            return
        if rank.pauses:
            self.paused.add(rank.phase)
        rank.phase = phase
        (self.pausing.add if rank.pauses and not rank.ended else self.pausing.discard)(rank.number)

    def _pushed(self, rank: RankProgress, pushed_at: float, _: str, at: float) -> None:
        """Apply the time of the last push, by the client's clock: only whether it differs counts."""
        if pushed_at == rank.pushed_at:
            return
        if rank.pushed_at is not None:
            rank.longest.add(at - rank.at, at)
            self.silent.discard(rank.number)
        if rank.pushed_at is not None or not self.restored:
            self._progress(at)
        self._reporting += rank.pushed_at is None
        rank.pushed_at = pushed_at
        rank.at = at
        rank.pushes += 1
        if not rank.ended:
            self.order[rank.number] = rank
            self.order.move_to_end(rank.number)

    def _step(self, rank: RankProgress, value: float, _: str, at: float) -> None:
        """Apply the last step: a new highest one ends a gap, and so does a step back."""
        step, before = int(value), rank.step
        rank.step = step
        back = before is not None and step < before
        if self.high is not None and step <= self.high and not back:
            return
        if self.high is None:
            self.start_up = at - self._advanced_at
        else:
            self.pace.add(at - self._advanced_at, 1 if back else step - self.high, at)
        self.high = step
        self._advanced_at = at

    def _rank_state(self, rank: RankProgress, value: float, state: str, at: float) -> None:
        if not value:
            return
        ended = state in ENDED
        if ended == rank.ended:
            return
        rank.ended = ended
        self._progress(at)
        self.silent.discard(rank.number)
        self.order.pop(rank.number, None)
        self.pausing.discard(rank.number)
        self.waiting.discard(rank.number)

    def _count_steps(self, rank: RankProgress, value: float, *_: object) -> None:
        rank.steps = value
        self.steps = max(self.steps, value)

    def _wait(self, rank: RankProgress, seconds: float, *_: object) -> None:
        self.waited += 0.0 if rank.wait is None else max(0.0, seconds - rank.wait)
        rank.wait = seconds
        if not rank.ended:
            self.waiting.add(rank.number)

    def _wait_first(self, rank: RankProgress, seconds: float, *_: object) -> None:
        grown = 0.0 if rank.first_wait is None else max(0.0, seconds - rank.first_wait)
        rank.first_wait = seconds
        self.waited += grown
        self.waited_first += grown

    def _start(self, rank: RankProgress, time: float, *_: object) -> None:
        # The time of the first rank moves where the clock is set.
        if self._first in {None, rank.number} or time < self.started:
            self.started, self._first = time, rank.number

    _HANDLERS: ClassVar[dict[Metric, Callable[[RunProgress, RankProgress, float, str, float], None]]] = {
        f.STEP: _step,
        f.LAST_STEP: _pushed,
        f.RANK_STATE: _rank_state,
        f.STEPS: _count_steps,
        f.DATA_WAIT: _wait,
        f.FIRST_WAIT: _wait_first,
        f.STARTED: _start,
    }


class RunAlert:
    """An alert of one run, or of a rank of it, from the finding that begins it, or that of an earlier daemon, until it is over.

    Attributes:
        alert: Its name.
        ends: The text of its end; ``{run}``, ``{rank}`` and ``{at}`` stand for the run's name, the rank and the step.
    """

    alert: str
    ends: str

    def __init__(self, run: RunProgress) -> None:
        self._run = run
        self._severity: Severity | None = None
        """The severity that was reported last; None while it does not fire."""
        self._rank: int | None = None
        self._restored: Alert | None = None

    def restore(self, kept: Alert) -> None:
        """Continue an alert of the previous daemon until it is over."""
        self._restored, self._severity = kept, severity_of(kept.severity)
        rank = kept.labels.get("rank", "")
        self._rank = int(rank) if rank.isdecimal() else None

    def evaluate(self, clock: RunClock) -> Iterator[Finding]:
        """Yield the finding of a restored alert, once, and what has changed since the last call."""
        if self._restored is not None:
            yield self._restored.as_finding(clock.now)
            self._restored = None
        yield from self._changes(clock)

    def _changes(self, clock: RunClock) -> Iterator[Finding]:
        raise NotImplementedError

    def report(
        self, severity: Severity, clock: RunClock, summary: str, text: str, evidence: Mapping[str, object] | None = None
    ) -> Finding:
        """Return the finding that begins or changes the alert."""
        self._severity = severity
        return self._finding_at(clock.now, summary, text, evidence or {})

    def end(self, clock: RunClock, since: float | None = None) -> Iterator[Finding]:
        """End the alert, because its trouble is over, *since* a Unix time, or the run has ended."""
        run, time = self._run, clock.now if since is None else since
        if self._severity is not None:
            at = "" if run.high is None else f": step {number(run.high)}"
            text = self.ends.format(run=run.name, rank=self._rank, at=at)
            recovered = {} if run.state else {"recovered": time}  # else it ends with the run
            yield self._finding_at(time, text, "", recovered)._replace(over=True)
        self._severity = self._rank = None

    def _finding_at(self, time: float, summary: str, text: str, evidence: Mapping[str, object]) -> Finding:
        run, severity = self._run, self._severity or "info"
        labels = labels_of(run.name, self._rank)
        return Finding(
            self.alert, severity, labels, time, summary, text, run=run.id, evidence=evidence, attempt=run.attempt
        )


def labels_of(run: str, rank: int | None) -> tuple[tuple[str, str], ...]:
    """Return the labels of a finding about a run, by its name, or about one rank of it."""
    return (("run", run),) if rank is None else (("rank", str(rank)), ("run", run))


def _quantile(times: Distribution, bounds: tuple[float, ...], share: float) -> float:
    """Return the bucket bound below which this share of the times is; their sum if no bound is so high."""
    left = share * sum(times.counts)
    for bound, count in zip(bounds, times.counts, strict=False):
        left -= count
        if left <= 1e-9:  # not 0, since the share is rounded
            return bound
    return times.sum
