"""What is followed from tick to tick, whether somebody looks or not: the first answer has rates and sparklines already."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, cast

from trackside_daemon.collectors.host.cpu import SECONDS
from trackside_daemon.collectors.host.network import FIELDS
from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.model.metric import Distribution
from trackside_daemon.training import families as f
from trackside_daemon.web.api.overview.counter_rates import Counters
from trackside_daemon.web.api.overview.loss_curve import Curve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside_daemon.model.state import State
    from trackside_daemon.web.api.overview.loss_curve import Points

APART_SECONDS = 0.9
"""Ticks that come faster are not all noted."""

FEW_STEPS = 100
"""A run that has made more when it is seen first was there before this daemon: the history has its loss until then."""

LOOPBACK = ("lo",)
"""Bytes that pass it leave no machine."""

IDLE = frozenset(("idle", "iowait"))
_NETWORK = [metric for column, metric in FIELDS if column in {0, 8}]

_AMOUNTS = (f.TOKENS, f.SAMPLES)
_LOSS = (f.KNOWN["loss"], f.STEP)

Labels = tuple[str, ...]
Found = dict[Labels, "float | Distribution"]
Attempt = tuple[str, int]
"""A run's id, and the number of an attempt."""


class Host(NamedTuple):
    """Rates of the machine; None where they cannot be told."""

    cpu_ratio: float | None = None
    receive: float | None = None
    transmit: float | None = None


class Pace(NamedTuple):
    """A run's amounts a second, all ranks together, and the seconds of a step of its lowest; None where they cannot be told."""

    tokens: float | None = None
    samples: float | None = None
    step_seconds: float | None = None


class _Run:
    def __init__(self, *, late: bool) -> None:
        self.counters = Counters()
        self.curve = Curve(late=late)


class Followed:
    """Notes the state once a second, in the sampler's thread; is asked by any.

    Args:
        state: The newest of every series.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._noted = 0.0
        self._cpu, self._traffic = Counters(), Counters()
        self._runs: dict[Attempt, _Run] = {}

    def note(self, now: float) -> None:
        """A tick, at *now* of the monotonic clock."""
        if now - self._noted < APART_SECONDS:
            return
        self._noted = now
        cpu, *network = self._state.values(now, SECONDS, *_NETWORK)
        with self._lock:
            if cpu:
                busy = sum(cast("float", value) for (mode,), value in cpu.items() if mode not in IDLE)
                self._cpu.add(now, (busy, _sum(cpu)))
            if all(network):
                self._traffic.add(now, tuple(_sum({one: of[one] for one in of if one != LOOPBACK}) for of in network))
            self._note_runs(now)

    def meet(self, attempts: Iterable[Attempt], now: float) -> None:
        """Who shows runs may be faster than the next tick: those that are new are noted at once."""
        with self._lock:
            if any(one not in self._runs for one in attempts):
                self._note_runs(now)

    def host(self) -> Host:
        """The machine of late."""
        with self._lock:
            _, cpu = self._cpu.growth()
            seconds, traffic = self._traffic.growth()
        ratio = cpu[0] / cpu[1] if cpu and cpu[0] is not None and cpu[1] else None
        rates = [None if one is None else one / seconds for one in traffic] or [None, None]
        return Host(ratio, *rates)

    def pace(self, attempt: Attempt, now: float) -> Pace:
        """A run of late; *now* in Unix seconds. One that makes no steps any more has no tokens a second."""
        with self._lock:
            run = self._runs.get(attempt)
            seconds, grown = run.counters.growth() if run is not None else (0.0, ())
            rests = run is not None and run.counters.rest(now)
        if not grown:
            return Pace()
        *amounts, spent, steps = grown
        tokens, samples = (None if one is None else 0.0 if rests else one / seconds for one in amounts)
        return Pace(tokens, samples, spent / steps if spent is not None and steps else None)

    def curve(self, attempt: Attempt) -> list[float | str]:
        """The course of a run's loss."""
        with self._lock:
            run = self._runs.get(attempt)
            return [] if run is None else run.curve.shown()

    def missing(self, attempt: Attempt) -> bool:
        """Whether the history has what is not known of its curve."""
        with self._lock:
            run = self._runs.get(attempt)
            return run is not None and run.curve.missing

    def fill(self, attempt: Attempt, kept: Points) -> None:
        """What the history has of a curve."""
        with self._lock:
            if (run := self._runs.get(attempt)) is not None:
                run.curve.fill(kept)

    def _note_runs(self, now: float) -> None:
        infos, *found = self._state.values(now, f.RUN_INFO, f.LAST_STEP, *_AMOUNTS, f.STEP_DURATION, f.STEPS, *_LOSS)
        ranks: dict[str, list[Labels]] = {}
        for labels in found[0]:
            ranks.setdefault(labels[0], []).append(labels)
        known: dict[Attempt, _Run] = {}
        for labels in infos:
            attempt, own = attempt_of(labels), ranks.get(labels[0], [])
            run = known[attempt] = self._runs.get(attempt) or _Run(late=any(_above(found[4], one) for one in own))
            if own:
                self._note_run(now, run, sorted(own, key=_rank), found)
        self._runs = known

    def _note_run(self, now: float, run: _Run, ranks: list[Labels], found: list[Found]) -> None:
        last, tokens, samples, durations, _, losses, steps = found
        amounts = [_sum({one: of[one] for one in ranks if one in of}) for of in (tokens, samples)]
        duration = durations.get(ranks[0])
        spent = (duration.sum, float(sum(duration.counts))) if isinstance(duration, Distribution) else (None, None)
        run.counters.add(max(cast("float", last[one]) for one in ranks), (*amounts, *spent))
        of_loss = next((one for one in ranks if one in losses), ranks[0])
        loss = losses.get(of_loss)
        if loss is None:
            loss = other_loss(self._state, now, of_loss)
        if loss is not None and of_loss in steps:
            run.curve.add(int(cast("float", steps[of_loss])), cast("float", loss))


def attempt_of(labels: Labels) -> Attempt:
    """Of the labels of a run's info."""
    return labels[1], int(labels[2])


def other_loss(state: State, now: float, rank: Labels) -> float | None:
    """A rank's loss by another name than the family's; None without one."""
    found = state.some(now, [(f.VALUE, (*rank, key)) for key in LOSSES[1:]])
    return next((cast("float", one) for one in found if one is not None), None)


def _sum(found: Found) -> float | None:
    """All together; None when there is none."""
    return sum(cast("float", value) for value in found.values()) if found else None


def _rank(labels: Labels) -> int:
    return int(labels[1])


def _above(steps: Found, labels: Labels) -> bool:
    return cast("float", steps.get(labels, 0.0)) > FEW_STEPS
