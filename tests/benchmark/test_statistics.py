"""The statistics: intervals contain the truth as often as they promise, and equal variants seldom differ."""

from __future__ import annotations

import hashlib
import math
import random
import subprocess
import sys
from itertools import chain
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import pytest

from trackside.benchmark.messages import LATENCY, Load, ProcessAnswer
from trackside.benchmark.results import Measurements, flat, needed, paired, percentile, pooled, results, sentence
from trackside.benchmark.rounds import LEAST_WARM_UP, measure, settled, timed
from trackside.distributions import proportion_interval, t_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.benchmark.messages import Samples
    from trackside.benchmark.rounds import Prepared, Sampling

BYTES = 20_000
SLOWER = BYTES * 103 // 100
NOISE = 0.3  # standard deviation of the logarithm of simulated durations


@pytest.fixture
def loaded(request: pytest.FixtureRequest) -> Iterator[None]:
    """A machine with more work than processors, under --soak; in the usual run other tests are the load."""
    soak = request.config.getoption("--soak")
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 if soak else 0)]
    yield
    for process in spinning:
        process.kill()
        process.wait()


def hashing(size: int) -> Callable[[Load], Callable[[], object]]:
    data = bytes(size)
    return lambda _: lambda: hashlib.sha256(data).digest()


def compared(one: Prepared, other: Prepared, seconds: float, seed: int) -> dict[str, Any]:
    measured = Measurements(["a", "b"])
    measured.begin()
    for finding in measure({"a": one, "b": other}, [Load()], seconds, seed):
        measured.add(finding)
    [comparison] = results(measured)["comparisons"]
    return dict(comparison)


def durations(chance: random.Random, count: int) -> list[float]:
    return [math.exp(chance.gauss(0, NOISE)) for _ in range(count)]


def simulated(chance: random.Random, machine: list[float]) -> Prepared:
    """A variant whose durations are those of a machine with drift and bursts that all variants share."""

    def sampled(_: Sampling) -> Samples:
        machine[0] = 0.98 * machine[0] + chance.gauss(0, 0.05)
        burst = 1.0 if chance.random() < 0.05 else 0.0
        return {LATENCY: [1e-3 * math.exp(machine[0] + burst + chance.gauss(0, 0.05))]}

    return lambda _: sampled


def test_equal_calls_seldom_differ_on_a_loaded_machine_and_three_percent_are_found(
    loaded: None, count: Callable[[int, int], int]
) -> None:
    comparisons, seconds = count(10, 200), count(1, 2) / 2
    found = {BYTES: 0, SLOWER: 0}
    for number in range(comparisons):
        for size in found:
            comparison = compared(timed(hashing(BYTES)), timed(hashing(size)), seconds, number)
            found[size] += comparison["verdict"] in {"slower", "faster"}
    assert found[BYTES] <= max(1, 0.05 * comparisons)
    assert found[SLOWER] >= 0.9 * comparisons


def test_equal_variants_on_a_machine_with_drift_and_bursts_differ_in_five_percent(
    count: Callable[[int, int], int],
) -> None:
    comparisons = count(20, 200)
    verdicts = []
    for seed in range(comparisons):
        one = other = simulated(random.Random(seed), [0.0])
        verdicts.append(compared(one, other, 60.0, seed)["verdict"])
    assert verdicts.count("no difference shown") >= 0.95 * comparisons


@pytest.mark.parametrize("size", [400, 2000])
def test_the_interval_of_p99_contains_it_in_95_percent(size: int, count: Callable[[int, int], int]) -> None:
    truth = math.exp(NormalDist().inv_cdf(0.99) * NOISE)
    simulations, chance = count(100, 1000), random.Random(size)
    found = [percentile([durations(chance, size)], 0.99) for _ in range(simulations)]
    ends = [(one.low, one.high) for one in found if one.low is not None and one.high is not None]
    hits = sum(low <= truth <= high for low, high in ends)
    slack = 0 if simulations == 1000 else 0.03
    assert 0.93 - slack <= hits / len(ends) <= 0.97 + slack
    assert len(ends) > 0.9 * simulations


def test_there_is_no_percentile_of_too_few_samples() -> None:
    chance = random.Random(1)
    found = percentile([durations(chance, 71)], 0.99)
    assert found == (None, None, None, "71 of 368 samples")
    assert (needed(0.5), needed(0.9), needed(0.99)) == (6, 36, 368)


def test_a_difference_between_processes_widens_the_interval() -> None:
    chance = random.Random(4)
    series = [[speed * value for value in durations(chance, 400)] for speed in (1.0, 1.1, 0.9)]
    one, several = percentile([[*chain(*series)]], 0.5), percentile(series, 0.5)
    assert (several.high or 0) - (several.low or 0) > 2 * ((one.high or 0) - (one.low or 0))
    effect = pooled([paired(durations(chance, 64), durations(chance, 64)) for _ in range(3)])
    _, low, high, _ = effect.ratio()
    assert (low or 1) < 1 < (high or 1)


def test_too_few_rounds_make_no_effect() -> None:
    effect = paired([2.0] * 5, [1.0] * 5)
    assert effect.ratio().value == pytest.approx(2)
    assert effect.ratio()[1:] == (None, None, "5 of 6 rounds of a process")


@pytest.mark.parametrize("rounds", [8, 100])
def test_the_first_rounds_are_warm_up_and_do_not_count(rounds: int) -> None:
    warm_up = max(LEAST_WARM_UP, rounds // 5)
    series = [{"a": {LATENCY: [9.0 if number < warm_up else 1.0]}} for number in range(rounds)]
    assert settled(series, ["a"]) == series[warm_up:]


def test_quantiles_are_those_of_tables() -> None:
    assert t_quantile(0.975, 4) == pytest.approx(2.776, abs=1e-3)
    assert t_quantile(0.975, 1e6) == pytest.approx(1.960, abs=1e-3)
    assert proportion_interval(59, 59)[0] == pytest.approx(0.025 ** (1 / 59), abs=1e-6)
    assert proportion_interval(2, 10) == pytest.approx((0.0252, 0.5561), abs=1e-4)


def test_results_are_sentences_and_numbers_by_key() -> None:
    measured = Measurements(["fp32", "int8-dynamic"])
    measured.begin()
    chance, load = random.Random(7), Load(batch=8)
    for _ in range(400):
        ratios = {"fp32": 3e-3, "int8-dynamic": 2e-3}
        values = {name: {LATENCY: [value * durations(chance, 1)[0]]} for name, value in ratios.items()}
        measured.add(ProcessAnswer(load, [values]))
    contents = results(measured)
    assert sentence(contents["comparisons"][0]).startswith("int8-dynamic is 1.")
    assert sentence(contents["comparisons"][0]).endswith(" times faster than fp32 (batch=8)")
    numbers = flat(contents)
    assert numbers["model/int8_dynamic/batch8/latency_p50_seconds"] == pytest.approx(2e-3, rel=0.1)
    assert numbers["model/fp32/batch8/throughput"] == pytest.approx(8 / 3e-3, rel=0.15)
