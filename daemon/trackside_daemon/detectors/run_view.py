"""What is known of a live run by what it exports: its ranks, how far each is, and how its pushes come.

Families are known by their names: who defines them stands on the same stair.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from trackside_daemon.detectors.pace import Pace
from trackside_daemon.detectors.run_rank import SYNC_PHASES
from trackside_daemon.model.finding import SEVERITIES, Finding
from trackside_daemon.model.metric import Distribution
from trackside_daemon.model.records import ENDED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trackside_daemon.detectors.run_rank import Rank
    from trackside_daemon.model.finding import Severity
    from trackside_daemon.model.metric import Sample
    from trackside_daemon.model.records import Alert

_PHASE_SECONDS = "trackside_training_phase_seconds_total"
_PUSHES = "trackside_training_client_pushes_total"
_STEP_DURATION = "trackside_training_step_duration_seconds"


class Run:
    """One attempt of a run.

    Attributes:
        id: On all machines; *name* as it is exported.
        at: When any rank was seen to go on last, in watched seconds.
        high: The highest step of any rank since it went back last; None before the first.
        pace: How its steps come.
        order: Its ranks that have pushed and live, the one that is silent for longest first.
        pausing: Ranks that are in a phase that is no part of a step.
        paused: Such phases that were left again.
        died: When a rank of it died, in watched seconds; None for never.
        waited: Seconds that its ranks waited for data, since it is watched; *waiting* of them say so, and *waited_first* of
            the seconds were for the first batches of epochs.
        syncs: It tells the time in which it waits for other ranks.
        started: When its first rank began, in Unix seconds; 0 for unknown.
        state: How it has ended; empty while it lives.
        stalled: It is said to be, and has not gone on.
        silent: Ranks that others leave behind, since their last push.
        adopted: A daemon before this one has said so: what ranks tell of themselves at first is from before.
    """

    def __init__(self, id: str, attempt: int, at: float, floor: float) -> None:  # noqa: A002  the field's word for it
        self.id, self.attempt = id, attempt
        self.name = id
        self.at = self._advanced_at = at
        self.high: int | None = None
        self.pace = Pace(floor)
        self.ranks: dict[int, Rank] = {}
        self.order: OrderedDict[int, Rank] = OrderedDict()
        self.pausing: set[int] = set()
        self.paused: set[str] = set()
        self.died: float | None = None
        self.waited = self.waited_first = self.steps = self.started = 0.0
        self.waiting: set[int] = set()
        self.silent: set[int] = set()
        self.syncs = self.stalled = self.adopted = False
        self.state = ""

    def take(self, rank: Rank, samples: Sequence[Sample], at: float) -> None:
        """What a rank says."""
        entered, most = "", 0.0
        for metric, labels, value in samples:
            handle = _HANDLERS.get(metric.name)
            if handle is not None:
                handle(self, rank, value.sum if isinstance(value, Distribution) else value, labels[-1], at)
            elif metric.name == _PHASE_SECONDS and not isinstance(value, Distribution):
                grown = self._spend(rank, labels[2], value)
                if grown > most:
                    entered, most = labels[2], grown
        if not self.pace.known:
            self._seed(rank, samples)
        if entered:
            self._enter(rank, entered)

    def alarm(
        self,
        alert: str,
        severity: Severity,
        time: float,
        summary: str = "",
        description: str = "",
        *,
        rank: int | None = None,
        over: bool = False,
        evidence: Mapping[str, object] | None = None,
    ) -> Finding:
        """Something about it, or about one rank of it."""
        labels = (("run", self.name),) if rank is None else (("rank", str(rank)), ("run", self.name))
        return Finding(
            alert, severity, labels, time, summary, description, over=over, run=self.id, evidence=evidence or {}
        )

    def again(self, kept: Alert, time: float) -> Finding:
        """An alert that fired before this daemon fires on, with the same words."""
        severity: Severity = next((one for one in SEVERITIES if one == kept.severity), "warning")
        labels = tuple(sorted(kept.labels.items()))
        return Finding(kept.alert, severity, labels, time, kept.summary, kept.description, run=self.id)

    def stands(self, number: int, pushed: float | None) -> bool:
        """Whether a rank stands still that has pushed last at this time; asked by any thread."""
        rank = self.ranks.get(number)
        stamp = None if rank is None else rank.stamp
        if stamp is None and self.stalled and self.adopted:
            return True  # it has not said yet when it pushed last
        return (self.stalled and stamp == pushed) or (number in self.silent and stamp in {None, pushed})

    def _go_on(self, at: float) -> None:
        """A rank pushes, ends or comes back; before its stamp is another, so that no thread takes that for a stall."""
        self.at, self.stalled = at, False

    def _spend(self, rank: Rank, phase: str, seconds: float) -> float:
        """Keep a phase's seconds; by how much they have grown."""
        before = rank.phases.get(phase)
        rank.phases[phase] = seconds
        if before is None:
            self.syncs = self.syncs or phase in SYNC_PHASES
            return 0.0
        if phase == "data" and rank.wait is None and not rank.ended:  # not wrapped in data(), which tells more
            self.waited += max(0.0, seconds - before)
            self.waiting.add(rank.number)
        return seconds - before

    def _seed(self, rank: Rank, samples: Sequence[Sample]) -> None:
        """What the rank's totals say of its pace."""
        pushes = next((value for metric, _, value in samples if metric.name == _PUSHES), None)
        if rank.stamp is None or not isinstance(pushes, (int, float)) or pushes < 1 or not self.started:
            return
        for metric, _, value in samples:
            if metric.name == _STEP_DURATION and isinstance(value, Distribution):
                count = sum(value.counts)
                usual, longest = (_quantile(value, metric.buckets, share) for share in (0.99, 1.0))
                self.pace.seed(count, usual, longest, max(0.0, rank.stamp - self.started) / pushes)

    def _enter(self, rank: Rank, phase: str) -> None:
        """The rank spends its time in this phase."""
        if rank.phase == phase:
            return
        if rank.pauses:
            self.paused.add(rank.phase)
        rank.phase = phase
        (self.pausing.add if rank.pauses and not rank.ended else self.pausing.discard)(rank.number)

    def _pushed(self, rank: Rank, stamp: float, _: str, at: float) -> None:
        """The moment of the last push, by the client's clock: only that it is another one counts."""
        if stamp == rank.stamp:
            return
        if rank.stamp is not None:
            rank.longest.add(at - rank.at, at)
            self.silent.discard(rank.number)
        if rank.stamp is not None or not self.adopted:
            self._go_on(at)
        rank.stamp, rank.at = stamp, at
        rank.pushes += 1
        if not rank.ended:
            self.order[rank.number] = rank
            self.order.move_to_end(rank.number)

    def _step(self, rank: Rank, value: float, _: str, at: float) -> None:
        """A step that is higher than any makes a gap, and so does one by which a rank has gone back."""
        step, before = int(value), rank.step
        rank.step = step
        back = before is not None and step < before
        if self.high is not None and step <= self.high and not back:
            return
        if self.high is not None:
            self.pace.add(at - self._advanced_at, 1 if back else step - self.high, at)
        self.high, self._advanced_at = step, at

    def _rank_state(self, rank: Rank, value: float, state: str, at: float) -> None:
        if not value:
            return
        ended = state in ENDED
        if ended == rank.ended:
            return
        rank.ended = ended
        self._go_on(at)
        self.silent.discard(rank.number)
        self.order.pop(rank.number, None)
        self.pausing.discard(rank.number)
        self.waiting.discard(rank.number)

    def _count_steps(self, rank: Rank, value: float, *_: object) -> None:
        rank.steps = value
        self.steps = max(self.steps, value)

    def _wait(self, rank: Rank, seconds: float, *_: object) -> None:
        self.waited += 0.0 if rank.wait is None else max(0.0, seconds - rank.wait)
        rank.wait = seconds
        if not rank.ended:
            self.waiting.add(rank.number)

    def _wait_first(self, rank: Rank, seconds: float, *_: object) -> None:
        grown = 0.0 if rank.first_wait is None else max(0.0, seconds - rank.first_wait)
        rank.first_wait = seconds
        self.waited += grown
        self.waited_first += grown

    def _start(self, _: Rank, time: float, *__: object) -> None:
        self.started = min(self.started or time, time)


def _quantile(times: Distribution, bounds: tuple[float, ...], share: float) -> float:
    """The bound below which this share of the times lies; their sum where there is none."""
    left = share * sum(times.counts)
    for bound, count in zip(bounds, times.counts, strict=False):
        left -= count
        if left <= 1e-9:
            return bound
    return times.sum


_HANDLERS: dict[str, Callable[[Run, Rank, float, str, float], None]] = {
    "trackside_training_step": Run._step,  # noqa: SLF001  its own
    "trackside_training_last_step_timestamp_seconds": Run._pushed,  # noqa: SLF001
    "trackside_training_rank_state": Run._rank_state,  # noqa: SLF001
    "trackside_training_steps_total": Run._count_steps,  # noqa: SLF001
    "trackside_training_data_wait_seconds": Run._wait,  # noqa: SLF001
    "trackside_training_first_batch_wait_seconds": Run._wait_first,  # noqa: SLF001
    "trackside_training_start_timestamp_seconds": Run._start,  # noqa: SLF001
}
