"""Rates and loss curves, recorded at every tick so that the first response already has them."""

import threading
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, cast

from trackside_daemon.history.read.series import LOSSES
from trackside_daemon.model.families import host
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Distribution, json_number
from trackside_daemon.model.state import State

RATE_SECONDS = 10.0  # seconds over which a rate is measured; longer when the counters grow less often

Values = tuple["float | None", ...]
MIN_INTERVAL = 0.9  # seconds between records; faster ticks are skipped
FEW_STEPS = 100  # a run first seen with more steps began before this daemon, so the history has its earlier loss
LOOPBACK = ("lo",)  # labels of the interface whose traffic stays on the host

IDLE = frozenset(("idle", "iowait"))

_AMOUNTS = (f.TOKENS, f.SAMPLES)
_LOSS = (f.KNOWN["loss"], f.STEP)

Labels = tuple[str, ...]
SeriesValues = dict[Labels, "float | Distribution"]
Attempt = tuple[str, int]
"""A run's id, and the number of an attempt."""

MAX_POINTS = 60  # points of a sparkline; up to twice as many are kept in memory

Points = list[tuple[int, float]]
"""Ascending steps, and the loss at each."""


class LossCurve:
    """A loss curve built from one value a second; the history supplies what came before and between.

    Args:
        late: True when the run made steps before this daemon saw it.
    """

    def __init__(self, *, late: bool) -> None:
        self._late = late
        self._history_added = False
        self._points: Points = []
        self._newest: tuple[int, float] | None = None
        self._stride = 1

    def add(self, step: int, loss: float) -> None:
        """Add the newest loss; an older or repeated step is ignored."""
        if self._newest is not None and step <= self._newest[0]:
            return
        self._newest = step, loss
        if not self._points or step >= self._points[-1][0] + self._stride:
            self._points.append(self._newest)
            self._thin()

    @property
    def needs_history(self) -> bool:
        """Return True when the history has points that this curve lacks: for young runs and those of an earlier daemon."""
        return not self._history_added and (self._late or len(self._points) < MAX_POINTS // 2)

    def add_history(self, stored: Points) -> None:
        """Merge the points that the history has."""
        self._points = sorted({**dict(stored), **dict(self._points)}.items())
        if self._points and (self._newest is None or self._newest[0] < self._points[-1][0]):
            self._newest = self._points[-1]
        # The history commits rows once a second: a curve of a single point is read again.
        self._history_added = len(self._points) > 1
        self._thin()

    def sparkline(self) -> list[float | str]:
        """Return at most `MAX_POINTS` losses, oldest first, always including the newest."""
        every = -(-len(self._points) // (MAX_POINTS - 1)) or 1
        points = self._points[::every]
        if self._newest is not None and points[-1:] != [self._newest]:
            points.append(self._newest)
        return [json_number(loss) for _, loss in points]

    def _thin(self) -> None:
        """Double the distance between points when there are too many; drop those closest to their predecessor."""
        while len(self._points) > 2 * MAX_POINTS:
            span = self._points[-1][0] - self._points[0][0]
            # At least one more, so that the loop ends even if the span is small.
            self._stride = max(self._stride + 1, span // MAX_POINTS)
            kept = self._points[:1]
            for point in self._points[1:]:
                if point[0] >= kept[-1][0] + self._stride:
                    kept.append(point)
            self._points = kept


class _Point(NamedTuple):
    """Values of the counters at one time in seconds; None for an absent counter."""

    time: float
    values: Values


class CounterGroup:
    """Counters that grow together; when one falls, all are assumed to have restarted."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque()

    def add(self, time: float, values: Values) -> None:
        """Add the values at a time in seconds; a repeated time is ignored."""
        if self._points and _fell(self._points[-1], time, values):
            self._points.clear()
        if self._points and self._points[-1].time == time:
            return
        self._points.append(_Point(time, values))
        # The newest point that is at least `RATE_SECONDS` old stays, so that the growth covers the whole span.
        while len(self._points) > 2 and self._points[1].time <= time - RATE_SECONDS:
            self._points.popleft()

    def growth(self) -> tuple[float, Values]:
        """Return the seconds and each counter's growth over them; ``(0.0, ())`` with fewer than two points."""
        if len(self._points) < 2:
            return 0.0, ()
        first, last = self._points[0], self._points[-1]
        growth = (
            None if new is None or old is None else new - old
            for old, new in zip(first.values, last.values, strict=True)
        )
        return last.time - first.time, tuple(growth)

    def is_idle(self, now: float) -> bool:
        """Return True when the counters have not grown for `RATE_SECONDS` and for three times their usual interval."""
        if not self._points:
            return False
        interval = (self._points[-1].time - self._points[0].time) / max(1, len(self._points) - 1)
        return now - self._points[-1].time > max(RATE_SECONDS, 3 * interval)


def _fell(last: _Point, time: float, values: Values) -> bool:
    pairs = zip(last.values, values, strict=True)
    return time < last.time or any(new is not None and old is not None and new < old for old, new in pairs)


class HostRates(NamedTuple):
    """The host's CPU utilization (0 to 1) and network bytes per second; None while unknown."""

    cpu_ratio: float | None = None
    receive: float | None = None
    transmit: float | None = None


class RunRates(NamedTuple):
    """A run's tokens and samples per second over all ranks, and the seconds per step of its lowest rank.

    Each is None while unknown.
    """

    tokens: float | None = None
    samples: float | None = None
    step_seconds: float | None = None


class _Run:
    def __init__(self, *, late: bool) -> None:
        self.counters = CounterGroup()
        self.began = 0.0  # Unix seconds; it moves where the clock is set, so that times since then have no jump
        self.curve = LossCurve(late=late)


class RateTracker:
    """Records counters and losses of the state once a second; any thread may read the rates.

    Args:
        state: The newest value of every series.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._recorded = 0.0
        self._cpu, self._traffic = CounterGroup(), CounterGroup()
        self._runs: dict[Attempt, _Run] = {}

    def record(self, now: float) -> None:
        """Record a tick, at *now* of the monotonic clock; runs in the sampler's thread."""
        if now - self._recorded < MIN_INTERVAL:
            return
        self._recorded = now
        cpu, *network = self._state.values(now, host.CPU_SECONDS, host.NETWORK_RECEIVED, host.NETWORK_SENT)
        with self._lock:
            if cpu:
                busy = sum(cast("float", value) for (mode,), value in cpu.items() if mode not in IDLE)
                self._cpu.add(now, (busy, _sum(cpu)))
            if all(network):
                self._traffic.add(now, tuple(map(_sum_without_loopback, network)))
            self._record_runs(now)

    def register(self, attempts: Iterable[Attempt], now: float) -> None:
        """Record new runs at once, since a client may show a run before the next tick."""
        with self._lock:
            if any(attempt not in self._runs for attempt in attempts):
                self._record_runs(now)

    def host_rates(self) -> HostRates:
        """Return the host's rates."""
        with self._lock:
            _, cpu = self._cpu.growth()
            seconds, traffic = self._traffic.growth()
        ratio = cpu[0] / cpu[1] if cpu and cpu[0] is not None and cpu[1] else None
        rates = [None if growth is None else growth / seconds for growth in traffic] or [None, None]
        return HostRates(ratio, *rates)

    def run_rates(self, attempt: Attempt, now: float) -> RunRates:
        """Return a run's rates at *now* in Unix seconds; a run without new steps has 0 tokens and samples a second."""
        with self._lock:
            run = self._runs.get(attempt)
            seconds, growth = run.counters.growth() if run is not None else (0.0, ())
            idle = run is not None and run.counters.is_idle(now - run.began)
        if not growth:
            return RunRates()
        *amounts, step_seconds, steps = growth
        tokens, samples = (None if amount is None else 0.0 if idle else amount / seconds for amount in amounts)
        return RunRates(tokens, samples, step_seconds / steps if step_seconds is not None and steps else None)

    def sparkline(self, attempt: Attempt) -> list[float | str]:
        """Return a run's loss curve; see `LossCurve.sparkline`."""
        with self._lock:
            run = self._runs.get(attempt)
            return [] if run is None else run.curve.sparkline()

    def needs_history(self, attempt: Attempt) -> bool:
        """Return True when a run's loss curve lacks points that the history has."""
        with self._lock:
            run = self._runs.get(attempt)
            return run is not None and run.curve.needs_history

    def add_history(self, attempt: Attempt, stored: Points) -> None:
        """Add the points that the history has to a run's loss curve."""
        with self._lock:
            if (run := self._runs.get(attempt)) is not None:
                run.curve.add_history(stored)

    def _record_runs(self, now: float) -> None:
        wanted = (f.LAST_STEP, *_AMOUNTS, f.STEP_DURATION, f.STEPS, *_LOSS, f.STARTED)
        infos, *values = self._state.values(now, f.RUN_INFO, *wanted)
        last_steps, steps = values[0], values[4]
        ranks: dict[str, list[Labels]] = {}
        for labels in last_steps:
            ranks.setdefault(labels[0], []).append(labels)
        runs: dict[Attempt, _Run] = {}
        for labels in infos:
            attempt, of_run = attempt_from_info(labels), ranks.get(labels[0], [])
            run = runs[attempt] = self._runs.get(attempt) or _Run(
                late=any(cast("float", steps.get(rank, 0.0)) > FEW_STEPS for rank in of_run)
            )
            if of_run:
                self._record_run(now, run, sorted(of_run, key=_rank), values)
        self._runs = runs

    def _record_run(self, now: float, run: _Run, ranks: list[Labels], values: list[SeriesValues]) -> None:
        last_steps, tokens, samples, durations, _, losses, steps, begins = values
        run.began = min((cast("float", begins[rank]) for rank in ranks if rank in begins), default=0.0)
        amounts = [_sum({rank: series[rank] for rank in ranks if rank in series}) for series in (tokens, samples)]
        duration = durations.get(ranks[0])
        spent = (duration.sum, float(sum(duration.counts))) if isinstance(duration, Distribution) else (None, None)
        run.counters.add(max(cast("float", last_steps[rank]) for rank in ranks) - run.began, (*amounts, *spent))
        loss_rank = next((rank for rank in ranks if rank in losses), ranks[0])
        loss = losses.get(loss_rank)
        if loss is None:
            loss = alternative_loss(self._state, now, loss_rank)
        if loss is not None and loss_rank in steps:
            run.curve.add(int(cast("float", steps[loss_rank])), cast("float", loss))


def attempt_from_info(labels: Labels) -> Attempt:
    """Return the attempt that the labels of a run's info series identify."""
    return labels[1], int(labels[2])


def alternative_loss(state: State, now: float, rank: Labels) -> float | None:
    """Return a rank's loss under a key other than ``loss``; None without one."""
    values = state.some(now, [(f.VALUE, (*rank, key)) for key in LOSSES[1:]])
    return next((cast("float", value) for value in values if value is not None), None)


def _sum(series: SeriesValues) -> float | None:
    """Return the sum of all values; None without any."""
    return sum(cast("float", value) for value in series.values()) if series else None


def _sum_without_loopback(series: SeriesValues) -> float | None:
    return _sum({labels: value for labels, value in series.items() if labels != LOOPBACK})


def _rank(labels: Labels) -> int:
    return int(labels[1])
