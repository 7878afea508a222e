"""Read what runs are compared by: the duration of their steps, their throughput, memory, energy and costs."""

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from math import inf, nan
from statistics import fmean
from typing import NamedTuple

from trackside_daemon.causes.facts import Facts
from trackside_daemon.diagnosis.estimates import BATCHES, LARGEST, LEAST_BATCHES, Estimate, batched, half_width
from trackside_daemon.history.read import reader
from trackside_daemon.history.read.attempts import Axis, read_axes
from trackside_daemon.history.read.charts import chart
from trackside_daemon.history.read.series import LogTails, Window
from trackside_daemon.history.read.summary import summary
from trackside_daemon.model.families import gpu as gpu_families
from trackside_daemon.model.families import process

BLOCKS = 8  # evenly spaced blocks of steps that are read of an attempt
WARM_UP = 0.05  # share of a run's first steps that compile, fill caches and start workers
BINS = 32  # parts of the compared end of a curve
END = 0.1  # share of the common steps, at their end, that a curve is compared in
POINTS = 2048  # most samples that are read of it


class Measures(NamedTuple):
    """Measures of a run to compare it by, besides its curves."""

    run: str  # its id
    steps: int  # its last step plus one, over all attempts
    # Mean of the key ``tokens`` in a step, of all ranks; None if it is not pushed. Likewise *samples*.
    tokens: float | None
    samples: float | None
    step_seconds: Estimate | None  # duration of a step, without pauses: the mean of the medians of batches
    # Duration that a quarter of the steps stays below. What else runs on the machine lengthens the others.
    quick_seconds: Estimate | None
    step_rate: Estimate | None  # steps per second from the first push to the last, pauses included
    noise: float  # share of its time by which two runs like it differ without a change (95 %); 0 if that is unknown
    gpu_memory: float | None = None  # the most bytes in use on one of its GPUs; None if that is not measured
    host_memory: float | None = None  # the sum of the most bytes of its processes
    joules: Estimate | None = None  # energy of a step; None without all counters
    cost: Estimate | None = None  # costs of a step; None without prices

    @property
    def throughput(self) -> tuple[str, Estimate] | None:
        """Tokens, samples or steps per second, with the name of what is counted; None without two pushes."""
        if self.step_rate is None:
            return None
        counted = (("tokens", self.tokens), ("samples", self.samples), ("steps", 1.0))
        name, each = next((name, each) for name, each in counted if each)
        return name, scaled(self.step_rate, each)


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Return an estimate in another unit."""
    return estimate._replace(value=estimate.value * factor, variance=estimate.variance * factor**2)


def read_measures(connection: sqlite3.Connection, uid: str, tails: LogTails) -> Measures:
    """Return the measures of a run, by its id.

    Args:
        connection: In a transaction.
        uid: The run's id.
        tails: Logs of streams.

    Raises:
        UnknownRunError: There is no run with this id.
        ValueError: A block is damaged.
    """
    streams = reader.lowest_streams(connection, uid).values()
    axes = [axis for stream in streams for axis in read_axes(connection, stream, tails[stream], BLOCKS)]
    durations = [seconds for axis in axes for _, seconds in step_durations(axis)]
    durations = durations[int(WARM_UP * len(durations)) :]
    parts = list(_seconds_each(axes))
    # The axes need not have the last step.
    (packed,) = connection.execute("SELECT max(step) FROM run WHERE uid = ?", (uid,)).fetchone()
    last = max((step for step in (packed, *(tails[one].highest() for one in streams)) if step is not None), default=-1)
    rate = batched(parts, fmean) if parts else None
    return Measures(
        uid,
        last + 1,
        _amount(connection, uid, "tokens", tails),
        _amount(connection, uid, "samples", tails),
        batched(durations) if durations else None,
        _quick(durations) if durations else None,
        None if rate is None else Estimate(1 / rate.value, rate.variance / rate.value**4, rate.freedom),
        _noise(parts),
    )


def with_usage(measures: Measures, facts: Facts, joules: float | None, cost: float | None) -> Measures:
    """Return measures with what the run used.

    Args:
        measures: The measures.
        facts: The run.
        joules: The energy of the run; None if it is unknown.
        cost: Its costs; None without prices.
    """
    own = facts.processes()
    gpu = [one.high for one in facts.gpus(gpu_families.MEMORY_USED) if one.high is not None]
    host = [one.high for one in facts.of(process.RESIDENT) if one.high is not None and one.labels.get("pid") in own]
    rate, steps = measures.step_rate, max(1, measures.steps)
    relative = inf if rate is None else rate.variance / rate.value**2

    def each(total: float | None) -> Estimate | None:
        """Return the share of a step; its noise is that of the steps' time."""
        if total is None or rate is None:
            return None
        return Estimate(total / steps, relative * (total / steps) ** 2, rate.freedom)

    return measures._replace(
        gpu_memory=max(gpu, default=None), host_memory=sum(host) if host else None, joules=each(joules), cost=each(cost)
    )


def _quick(durations: Sequence[float]) -> Estimate:
    """Return the lower quartile of all durations, with the noise of those of consecutive batches."""

    def quartile(values: Sequence[float]) -> float:
        return sorted(values)[len(values) // 4]

    return batched(durations, quartile)._replace(value=quartile(durations))


def step_durations(axis: Axis) -> Iterator[tuple[float, float]]:
    """Yield end and seconds of each step, from each push of a new step to the next one; a step that falls begins again."""
    step: int | None = None
    began = 0
    for pushed, time in zip(*axis, strict=True):
        if step is not None and pushed > step and time > began:
            yield time / 1e6, (time - began) / 1e6 / (pushed - step)
        if step is None or pushed != step:
            step, began = pushed, time


def _seconds_each(axes: Sequence[Axis]) -> Iterator[float]:
    """Yield the seconds per step of about equal parts of a run, pauses included."""
    ends = [(steps[0], times[0]) for steps, times in axes]
    if len(axes) < BLOCKS // 2:
        size = max(1, sum(len(steps) for steps, _ in axes) // BATCHES)
        ends = [(steps[at], times[at]) for steps, times in axes for at in range(0, len(steps), size)]
    ends += [(steps[-1], times[-1]) for steps, times in axes[-1:]]
    for (step, began), (next_step, ended) in pairwise(ends):
        if next_step > step and ended > began:
            yield (ended - began) / 1e6 / (next_step - step)


def _noise(parts: Sequence[float]) -> float:
    """Return the relative noise of the mean of a sum of parts, twice: by their successive differences (von Neumann 1941).

    These leave out what changed for good during the run.
    """
    if len(parts) < LEAST_BATCHES:
        return 0.0
    squares = fmean((after - before) ** 2 for before, after in pairwise(parts)) / 2
    return half_width(2 * squares / len(parts), len(parts) - 1) / fmean(parts)


def _amount(connection: sqlite3.Connection, uid: str, key: str, tails: LogTails) -> float | None:
    """Return the mean of an amount in a step, summed over the ranks of the last attempt that push it."""
    found = list(reader.series(connection, uid, [key], ranks=(), tails=tails))
    means = [
        mean
        for series in found
        if series.attempt == found[-1].attempt
        and isinstance(mean := summary(connection, series.series, series.tail)["mean"], int | float)
    ]
    return sum(means) if means else None


def read_bins(
    connection: sqlite3.Connection, uid: str, key: str, window: Window, tails: LogTails, *, strict: bool
) -> list[float]:
    """Return the means of a key of the lowest rank in equal parts of a window of steps; NaN without a value.

    Of several attempts that made the same steps, the last one counts. A part with a value that is not finite is infinite if
    *strict*; else such values are left out.
    """
    totals, counts = [0.0] * BINS, [0] * BINS
    for series in reversed(list(reader.series(connection, uid, [key], tails=tails))):
        found = chart(connection, series.series, series.tail, window, POINTS)
        mine = [0] * BINS
        for (step, _, _, _, value), odd in zip(found.points, found.nonfinite or repeat(0)):  # noqa: B905  one is endless
            place = min(BINS - 1, int((step - window.low) / max(window.high - window.low, 1) * BINS))
            is_finite = abs(value) <= LARGEST
            if (is_finite or strict) and (not counts[place] or mine[place]):
                mine[place] += 1
                totals[place] += value if is_finite and not (odd and strict) else inf
                counts[place] = mine[place]
    return [total / count if count else nan for total, count in zip(totals, counts, strict=True)]
