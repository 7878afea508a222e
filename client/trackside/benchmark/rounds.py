"""Measure variants in rounds, each in random order, until the intervals are narrow enough or time is up."""

from __future__ import annotations

import random
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from trackside.benchmark.effects import FIRST_LOOK, MOST_ROUNDS, paired
from trackside.benchmark.failures import is_out_of_memory, reason
from trackside.benchmark.quantiles import needed, percentile
from trackside.benchmark.warm_up import LEAST, warm_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LATENCY = "latency_seconds"
"""The measure that every subject has, and that decides when a measurement ends."""

LONG_ENOUGH = 20e-6  # seconds of a sample, compared with which the clock costs nothing
ROUND_SECONDS = 2e-3  # of a variant in a round, if its calls are short
MOST_SAMPLES = 20  # of a variant in a round
PERCENTILES = (0.5, 0.9, 0.99)

Samples = dict[str, list[float]]  # the samples of one variant in one round, by measure
Round = dict[str, Samples]  # those of each variant


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """Conditions of a measurement; 0 for those that do not apply.

    Attributes:
        batch: Inputs in a call.
        length: Length of each input.
        concurrency: Requests in flight.
        rate: Requests that arrive in a second, on average.
    """

    batch: int = 0
    length: int = 0
    concurrency: int = 0
    rate: float = 0.0

    def __str__(self) -> str:
        return " ".join(f"{name}={value:g}" for name, value in msgspec.structs.asdict(self).items() if value)

    @property
    def key(self) -> str:
        """The load as a part of a key, such as ``batch8_length128``."""
        return str(self).replace("=", "").replace(" ", "_")

    @property
    def items(self) -> int:
        """Inputs in a call, or with a length the tokens in them."""
        return max(1, self.batch) * max(1, self.length)


class Sampling(NamedTuple):
    """Samples in a round, and calls in a sample, whose mean duration it is."""

    samples: int = 1
    calls: int = 1


class Subject(Protocol):
    """A variant to measure."""

    name: str

    def begin(self, load: Load) -> None:
        """Prepare a load."""
        ...

    def measure(self, sampling: Sampling) -> Samples:
        """Return the samples of one round."""
        ...


class Plan(msgspec.Struct, frozen=True):
    """The end of the measurement of a load.

    Attributes:
        seconds: Time limit, after warm-up.
        precision: Relative half width of the intervals from which it ends earlier.
        samples: Samples of each variant that are wanted.
        seed: Seed of the random orders.
    """

    seconds: float = 10.0
    precision: float = 0.01
    samples: int = needed(max(PERCENTILES))
    seed: int = 0


class Report(Protocol):
    """Receiver of what is measured, while it is."""

    def round(self, load: Load, values: Round) -> None:
        """Receive a round."""
        ...

    def failed(self, name: str, load: Load, reason: str) -> None:
        """Receive why a variant cannot be measured."""
        ...


class Calls:
    """A function, timed.

    Args:
        name: Name of the variant.
        prepare: Returns the function to call for a load.
    """

    def __init__(self, name: str, prepare: Callable[[Load], Callable[[], object]]) -> None:
        self.name = name
        self._prepare = prepare
        self._call: Callable[[], object] = lambda: None

    def begin(self, load: Load) -> None:
        """See `Subject`."""
        self._call = self._prepare(load)

    def measure(self, sampling: Sampling) -> Samples:
        """See `Subject`."""
        call, calls = self._call, range(sampling.calls)
        seconds = []
        for _ in range(sampling.samples):
            begin = perf_counter_ns()
            for _ in calls:
                call()
            seconds.append((perf_counter_ns() - begin) / 1e9 / sampling.calls or 1e-10)
        return {LATENCY: seconds}


def measure(
    subjects: Sequence[Subject], loads: Sequence[Load], plan: Plan, report: Report, stopped: Callable[[], bool]
) -> None:
    """Measure subjects under each load; the first one is the reference.

    One that fails is left out of that load, and one that ran out of memory also of larger ones.
    """
    order = random.Random(plan.seed)  # noqa: S311  no secret
    exhausted: dict[str, int] = {}
    for load in loads:
        selected = [one for one in subjects if load.items < exhausted.get(one.name, load.items + 1)]
        for name in _Measurement(selected, load, plan, report, order).run(stopped):
            exhausted[name] = load.items
        if stopped():
            return


class _Measurement:
    """The measurement of one load."""

    def __init__(
        self, subjects: Sequence[Subject], load: Load, plan: Plan, report: Report, order: random.Random
    ) -> None:
        self._subjects = list(subjects)
        self._load = load
        self._plan = plan
        self._report = report
        self._order = order
        self._rounds: list[Round] = []
        self._exhausted: list[str] = []

    def run(self, stopped: Callable[[], bool]) -> list[str]:
        """Measure until the end, and return who ran out of memory."""
        for subject in list(self._subjects):
            self._attempt(subject, lambda one: one.begin(self._load))
        sampling, until = Sampling(), 0.0
        while self._subjects and not stopped():
            self._round(sampling)
            count = len(self._rounds) - LEAST
            if not count:
                sampling, until = self._sampling(), perf_counter() + self._plan.seconds
            if count >= MOST_ROUNDS or (count > 0 and perf_counter() >= until) or (_is_look(count) and self._is_done()):
                break
        return self._exhausted

    def _round(self, sampling: Sampling) -> None:
        values: Round = {}

        def measure(subject: Subject) -> None:
            values[subject.name] = subject.measure(sampling)

        for subject in self._order.sample(self._subjects, len(self._subjects)):
            self._attempt(subject, measure)
        self._rounds.append(values)
        if values:
            self._report.round(self._load, values)

    def _attempt(self, subject: Subject, action: Callable[[Subject], None]) -> None:
        try:
            action(subject)
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code may raise anything
            self._subjects.remove(subject)
            if is_out_of_memory(error):
                self._exhausted.append(subject.name)
            self._report.failed(subject.name, self._load, reason(error))

    def _sampling(self) -> Sampling:
        """Return the sampling in which the slowest variant takes about `ROUND_SECONDS` a round."""
        slowest = max((min(samples[LATENCY], default=1.0) for samples in self._rounds[-1].values()), default=1.0)
        calls = max(1, round(LONG_ENOUGH / slowest))
        return Sampling(min(MOST_SAMPLES, max(1, round(ROUND_SECONDS / slowest / calls))), calls)

    def _is_done(self) -> bool:
        names = [subject.name for subject in self._subjects]
        counted = settled(self._rounds, names)
        for name in names:
            samples = [value for values in counted for value in values[name][LATENCY]] if counted else []
            typical = percentile([samples], 0.5)
            if (
                len(samples) < self._plan.samples
                or typical.value is None
                or typical.low is None
                or typical.high is None
            ):
                return False
            if (typical.high - typical.low) / 2 > self._plan.precision * typical.value:
                return False
        centers = {name: [median(values[name][LATENCY]) for values in counted] for name in names}
        return all(paired(centers[name], centers[names[0]]).noise <= self._plan.precision for name in names[1:])


def settled(rounds: Sequence[Round], names: Sequence[str]) -> list[Round]:
    """Return the rounds in which all these variants have samples, after the warm-up of the slowest to settle."""
    whole = [values for values in rounds if all(values.get(name, {}).get(LATENCY) for name in names)]
    series = ([median(values[name][LATENCY]) for values in whole] for name in names)
    return whole[max(map(warm_up, series), default=0) :]


def _is_look(count: int) -> bool:
    return count >= FIRST_LOOK and count & (count - 1) == 0
