"""Measure variants in rounds, each in random order, until time is up."""

import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from math import inf
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

from trackside.benchmark.messages import LATENCY, Failure, Load, ProcessAnswer, Round, Samples

LONG_ENOUGH = 20e-6  # seconds of a sample, compared with which the clock costs nothing
ROUND_SECONDS = 2e-3  # of a variant in a round, if its calls are short
MOST_SAMPLES = 20  # of a variant in a round
MOST_ROUNDS = 2048  # of a load: more would make intervals narrower than what differs between processes
LEAST_WARM_UP, WARM_UP = 3, 0.2  # first rounds, and their share, in which compilers, caches and allocators work


class TargetError(Exception):
    """Nothing to measure was found; the message is one line with the remedy."""


class Sampling(NamedTuple):
    """Samples in a round, and calls in a sample, whose mean duration it is."""

    samples: int = 1
    calls: int = 1


Sampled = Callable[[Sampling], Samples]  # returns the samples of one round
Prepared = Callable[[Load], Sampled]  # prepares a load


class Function:
    """A function to measure.

    Args:
        function: The function.
        inputs: Its arguments, see `arguments`; or a function of a batch size, and a length, that makes them.

    Attributes:
        inputs: The same.
    """

    def __init__(self, function: Callable[..., object], inputs: Any = None) -> None:
        self._function = function
        self.inputs = inputs

    def prepare(self, load: Load) -> Callable[[], object]:
        """Return the call for a load.

        Raises:
            TargetError: The load needs inputs that are made for it.
        """
        args, kwargs = arguments(self.made(load))
        function = self._function
        return (lambda: function(*args, **kwargs)) if args or kwargs else function

    def made(self, load: Load) -> Any:
        """Return the inputs for a load.

        Raises:
            TargetError: It needs inputs that are made for it.
        """
        if callable(self.inputs):
            return self.inputs(*(max(1, load.batch), load.length)[: len(signature(self.inputs).parameters)])
        if load.batch or load.length:
            raise TargetError("batch sizes and lengths need a function inputs(batch, length) that makes the inputs")
        return self.inputs

    def facts(self) -> dict[str, float]:
        """Return its sizes: none."""
        return {}


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs as arguments: a mapping by name, a tuple or list by place, None for none, all else as a single one."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (() if inputs is None else (inputs,)), {}


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


def measure(
    subjects: Mapping[str, Prepared], loads: Sequence[Load], seconds: float, seed: int = 0
) -> Iterator[ProcessAnswer]:
    """Measure variants for *seconds* under each load; yield their rounds and failures. One that fails is left out of a load."""
    order = random.Random(seed)  # noqa: S311  no secret
    for load in loads:
        yield from _measured(subjects, load, seconds, order)


def _measured(
    subjects: Mapping[str, Prepared], load: Load, seconds: float, order: random.Random
) -> Iterator[ProcessAnswer]:
    sampled: dict[str, Sampled] = {}
    for name, prepared in subjects.items():
        try:
            sampled[name] = prepared(load)
        except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code may raise anything
            yield ProcessAnswer(failed=Failure(name, load, reason(error)))
    sampling, until = Sampling(), inf
    for number in range(1, MOST_ROUNDS + 1):
        values: Round = {}
        for name in order.sample(list(sampled), len(sampled)):
            try:
                values[name] = sampled[name](sampling)
            except (Exception, SystemExit) as error:  # noqa: BLE001  the same
                del sampled[name]
                yield ProcessAnswer(failed=Failure(name, load, reason(error)))
        if values:
            yield ProcessAnswer(load, [values])
        if number == LEAST_WARM_UP:
            sampling, until = _sampling(values), perf_counter() + seconds
        if not sampled or perf_counter() >= until:
            return


def _sampling(values: Round) -> Sampling:
    """Return the sampling in which the slowest variant takes about `ROUND_SECONDS` a round."""
    slowest = max((min(samples[LATENCY], default=1.0) for samples in values.values()), default=1.0)
    calls = max(1, round(LONG_ENOUGH / slowest))
    return Sampling(min(MOST_SAMPLES, max(1, round(ROUND_SECONDS / slowest / calls))), calls)


def settled(rounds: Sequence[Round], names: Sequence[str]) -> list[Round]:
    """Return the rounds after the warm-up in which all these variants have samples."""
    whole = [values for values in rounds if all(values.get(name, {}).get(LATENCY) for name in names)]
    return whole[max(LEAST_WARM_UP, int(WARM_UP * len(whole))) :]


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
    memory = "out of memory: " if exhausted or isinstance(error, MemoryError) else ""
    return f"{memory}{place}{type(error).__name__}" + (f": {text}" if text else "")
