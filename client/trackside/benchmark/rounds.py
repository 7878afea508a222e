"""Measure variants in rounds, each in random order, until the intervals are narrow enough or time is up."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Mapping
from inspect import signature
from math import inf
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.benchmark.intervals import FIRST_LOOK, LEAST_WARM_UP, MOST_ROUNDS, paired, percentile, warm_up
from trackside.benchmark.messages import LATENCY, Failure, Finding, Load, Samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trackside.benchmark.messages import Plan, Round

LONG_ENOUGH = 20e-6  # seconds of a sample, compared with which the clock costs nothing
ROUND_SECONDS = 2e-3  # of a variant in a round, if its calls are short
MOST_SAMPLES = 20  # of a variant in a round
SEED = 0  # so that a factory returns the same weights for each variant, and inputs are the same
OUT_OF_MEMORY = "out of memory: "  # begins such a reason


class TargetError(Exception):
    """Nothing to measure was found; the message is one line with the remedy."""


class Sampling(NamedTuple):
    """Samples in a round, and calls in a sample, whose mean duration it is."""

    samples: int = 1
    calls: int = 1


Sampled = Callable[[Sampling], Samples]  # returns the samples of one round
Prepared = Callable[[Load], Sampled]  # prepares a load


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs as arguments: a mapping by name, a tuple or list by place, None for none, all else as a single one."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (() if inputs is None else (inputs,)), {}


def made_inputs(inputs: Callable[..., Any], load: Load) -> Any:
    """Return what a function of the user's makes for a load: ``inputs()``, ``inputs(batch)`` or ``inputs(batch, length)``."""
    return inputs(*(max(1, load.batch), load.length)[: len(signature(inputs).parameters)])


def timed(prepare: Callable[[Load], Callable[[], object]]) -> Prepared:
    """Return how to sample the times of the function that *prepare* returns for a load."""

    def prepared(load: Load) -> Sampled:
        call = prepare(load)

        def sampled(sampling: Sampling) -> Samples:
            seconds, calls = [], range(sampling.calls)
            for _ in range(sampling.samples):
                begin = perf_counter_ns()
                for _ in calls:
                    call()
                seconds.append((perf_counter_ns() - begin) / 1e9 / sampling.calls or 1e-10)
            return {LATENCY: seconds}

        return sampled

    return prepared


def measure(subjects: Mapping[str, Prepared], loads: Sequence[Load], plan: Plan) -> Iterator[Finding]:
    """Measure variants under each load, the first one being the reference; yield their rounds and failures.

    One that fails is left out of that load, and one that ran out of memory also of larger ones.
    """
    order = random.Random(plan.seed)  # noqa: S311  no secret
    exhausted: dict[str, int] = {}
    for load in loads:
        selected = {name: one for name, one in subjects.items() if load.items < exhausted.get(name, load.items + 1)}
        for finding in _measured(selected, load, plan, order):
            if finding.failed is not None and finding.failed.reason.startswith(OUT_OF_MEMORY):
                exhausted[finding.failed.variant] = load.items
            yield finding


def _measured(subjects: Mapping[str, Prepared], load: Load, plan: Plan, order: random.Random) -> Iterator[Finding]:
    sampled: dict[str, Sampled] = {}
    for name, prepared in subjects.items():
        try:
            sampled[name] = prepared(load)
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code may raise anything
            yield Finding(failed=Failure(name, load, reason(error)))
    sampling, until = Sampling(), inf
    rounds: list[Round] = []
    while sampled:
        values: Round = {}
        for name in order.sample(list(sampled), len(sampled)):
            try:
                values[name] = sampled[name](sampling)
            except (Exception, SystemExit) as error:  # noqa: BLE001  the same
                del sampled[name]
                yield Finding(failed=Failure(name, load, reason(error)))
        rounds.append(values)
        if values:
            yield Finding(load, [values])
        count = len(rounds) - LEAST_WARM_UP
        if not count:
            sampling, until = _sampling(values), perf_counter() + plan.seconds
        if count >= MOST_ROUNDS or (count > 0 and perf_counter() >= until):
            return
        is_look = count >= FIRST_LOOK and count & (count - 1) == 0
        if is_look and sampled and _is_done(rounds, list(sampled), plan):
            return


def _sampling(values: Round) -> Sampling:
    """Return the sampling in which the slowest variant takes about `ROUND_SECONDS` a round."""
    slowest = max((min(samples[LATENCY], default=1.0) for samples in values.values()), default=1.0)
    calls = max(1, round(LONG_ENOUGH / slowest))
    return Sampling(min(MOST_SAMPLES, max(1, round(ROUND_SECONDS / slowest / calls))), calls)


def _is_done(rounds: Sequence[Round], names: Sequence[str], plan: Plan) -> bool:
    """Return whether all have samples enough, and the intervals of their medians and ratios are narrow enough."""
    counted = settled(rounds, names)
    for name in names:
        samples = [value for values in counted for value in values[name][LATENCY]]
        value, low, high, _ = percentile([samples], 0.5)
        if len(samples) < plan.samples or value is None or low is None or high is None:
            return False
        if (high - low) / 2 > plan.precision * value:
            return False
    reference, *others = ([median(values[name][LATENCY]) for values in counted] for name in names)
    return all(paired(one, reference).noise <= plan.precision for one in others)


def settled(rounds: Sequence[Round], names: Sequence[str]) -> list[Round]:
    """Return the rounds in which all these variants have samples, after the warm-up of the slowest to settle."""
    whole = [values for values in rounds if all(values.get(name, {}).get(LATENCY) for name in names)]
    series = ([median(values[name][LATENCY]) for values in whole] for name in names)
    return whole[max(map(warm_up, series), default=0) :]


def reason(error: BaseException) -> str:
    """Return an error in one line, with the place in the user's code where it was raised."""
    if isinstance(error, TargetError):
        return str(error)
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "/trackside/benchmark/" not in frame.filename
    ]
    place = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    text = " ".join(str(error).split())[:200]
    exhausted = any(part in str(error).lower() for part in ("out of memory", "can't allocate memory"))
    memory = OUT_OF_MEMORY if exhausted or isinstance(error, MemoryError) else ""
    return f"{memory}{place}{type(error).__name__}" + (f": {text}" if text else "")
