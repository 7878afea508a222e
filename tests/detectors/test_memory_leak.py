"""A floor of memory that keeps rising is a leak; caches that fill and batches that come and go are none."""

from __future__ import annotations

import csv
import gzip
import math
import random
from functools import partial
from pathlib import Path

import pytest
from detector_feed import alarms, feed, same_in_parts_and_beforehand
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside_daemon.detectors.memory_leak import MemoryLeak

MEGA = 1e6


def leaking(count: int, *, start: float = 500, each: float = 0.5, noise: float = 2.0, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [(start + each * index + rng.gauss(0, noise)) * MEGA for index in range(count)]


@pytest.mark.parametrize(("each", "at"), [(0.3, 299), (1.0, 99), (3.0, 99), (10.0, 99)])
def test_a_leak_is_reported_after_so_many_samples(each: float, at: int) -> None:
    fed = feed(MemoryLeak(), leaking(600, each=each))
    assert alarms(fed) == [at]
    assert (fed[0].alert, fed[0].severity) == ("HostMemoryLeak", "warning")


def test_a_leak_that_begins_late_is_reported() -> None:
    values = [*leaking(500, each=0), *leaking(300, each=1.0)]
    reported = alarms(feed(MemoryLeak(), values))
    assert len(reported) == 1
    assert 500 < reported[0] <= 600


def test_a_leak_reports_its_rate_and_the_time_until_the_limit() -> None:
    times = [1e9 + 2.0 * index for index in range(200)]
    values = [(500 + 2 * index) * MEGA for index in range(200)]
    text = feed(MemoryLeak(limit=3.5e9), values, times=times)[0].text
    assert "since step 0, from 477 MiB to 648 MiB" in text
    assert "3.35 GiB an hour" in text
    assert "47 min until no memory is left" in text


def fresh(slope: float, *, begins: int, count: int, start: float = 300) -> list[float]:
    """Return the memory of a young process that leaks *slope* MiB a sample, from a sample on, with noise of a quarter of a MiB."""
    rng = random.Random(5)
    return [(start + slope * max(0, at - begins) + rng.random() / 4) * 2**20 for at in range(count)]


@pytest.mark.parametrize(
    ("slope", "begins", "count"), [(0.25, 80, 300), (0.65, 75, 168), (0.3, 120, 400), (4.4, 0, 100)]
)
def test_a_leak_of_a_fresh_process_is_reported_with_the_step_at_which_it_began(
    slope: float, begins: int, count: int
) -> None:
    (told,) = feed(MemoryLeak(), fresh(slope, begins=begins, count=count, start=300 if begins else 3000))
    since = int(told.text.split("since step ")[1].split(",")[0])
    assert begins - 20 <= since <= begins + 10


@pytest.mark.parametrize(
    ("limit", "at"), [(None, 99), (2**30, 99), (2**36, 269), (math.inf, 269)], ids=["unknown", "near", "far", "none"]
)
def test_a_leak_that_leaves_more_than_an_hour_is_reported_after_minutes(limit: float | None, at: int) -> None:
    times = [1e9 + second for second in range(400)]
    assert alarms(feed(MemoryLeak(limit=limit), fresh(2.0, begins=0, count=400), times=times)) == [at]


def test_a_buffer_that_fills_within_minutes_is_no_leak_where_there_is_room() -> None:
    times = [1e9 + second for second in range(3000)]
    filled = [(500 + min(1000, 5 * max(0, second - 300))) * MEGA for second in range(3000)]
    assert not feed(MemoryLeak(limit=2**36), filled, times=times)


def test_without_times_a_leak_reports_its_rate_by_samples() -> None:
    values = [(500 + 2 * index) * MEGA for index in range(200)]
    assert "1.86 GiB in 1,000 samples" in feed(MemoryLeak(limit=4e9), values)[0].text


def test_a_leak_by_evaluations_is_reported() -> None:
    rng = random.Random(4)
    values = [(500 + 40 * (index // 20) + rng.gauss(0, 1)) * MEGA for index in range(400)]
    assert alarms(feed(MemoryLeak(), values))[0] < 250


def test_a_slow_leak_is_reported_by_longer_bins() -> None:
    reported = alarms(feed(MemoryLeak(), leaking(6000, each=0.03, noise=8.0)))
    assert len(reported) == 1
    assert reported[0] < 5500


def recorded() -> dict[str, list[float]]:
    """Return the private memory of real processes after each step, in bytes, by what each does: cache, reuse, map, leak."""
    text = gzip.decompress((Path(__file__).parent / "data" / "bounded_memory.csv.gz").read_bytes()).decode()
    names, *rows = csv.reader(text.splitlines())
    return {name: [float(row[at]) for row in rows] for at, name in enumerate(names)}


@pytest.mark.parametrize(("name", "values"), recorded().items())
def test_caches_and_buffers_of_real_processes_are_no_leak(name: str, values: list[float]) -> None:
    assert bool(alarms(feed(MemoryLeak(), values))) == name.startswith("leak")


@pytest.mark.parametrize("seed", range(4))
def test_level_memory_is_not_reported(seed: int) -> None:
    assert not feed(MemoryLeak(), leaking(20000, each=0, noise=20.0, seed=seed))


def test_a_cache_that_fills_is_not_reported() -> None:
    values = [(500 + min(200, 3 * index)) * MEGA for index in range(2000)]
    assert not feed(MemoryLeak(), values)


def test_growth_that_slows_down_is_not_reported() -> None:
    assert not feed(MemoryLeak(), [(1000 - 500 * 0.95**index) * MEGA for index in range(2000)])


@pytest.mark.parametrize("period", [7, 45, 90])
def test_a_sawtooth_with_a_constant_floor_is_not_reported(period: int) -> None:
    assert not feed(MemoryLeak(), [(500 + 5 * (index % period)) * MEGA for index in range(3000)])


def test_a_slow_sawtooth_of_known_height_is_not_reported() -> None:
    values = [(500 + index % 600) * MEGA for index in range(4000)]
    assert not [at for at in alarms(feed(MemoryLeak(), values)) if at > 600]


def test_memory_that_wanders_is_not_reported_once_its_range_is_known() -> None:
    rng = random.Random(11)
    values, off = [], 0.0
    for _ in range(20000):
        off = 0.98 * off + rng.gauss(0, 2)
        values.append((500 + off) * MEGA)
    assert not [at for at in alarms(feed(MemoryLeak(), values)) if at > 200]


@pytest.mark.parametrize("period", [13, 25, 70])
def test_a_sawtooth_with_a_rising_floor_is_reported(period: int) -> None:
    values = [(500 + index + 60 * (index % period) / period) * MEGA for index in range(800)]
    assert len(alarms(feed(MemoryLeak(), values))) == 1


def test_growth_while_the_step_stands_still_is_the_loading_of_data() -> None:
    values = leaking(400, each=10.0)
    assert not feed(MemoryLeak(), values, steps=[0] * 400)


def test_it_is_over_when_the_memory_grows_no_more() -> None:
    fed = feed(MemoryLeak(), [*leaking(300, each=1.0), *leaking(300, start=800, each=0)])
    assert [finding.over for finding in fed] == [False, True]
    assert 300 < fed[1].at < 500
    assert "no longer grows" in fed[1].text


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 120), st.sampled_from([0.0, 1.0, -1.0, 5.0])), max_size=8),
    st.integers(1, 60),
)
def test_the_findings_are_the_same_however_samples_are_fed(parts: list[tuple[int, float]], size: int) -> None:
    values, held = [], 1000.0
    for count, each in parts:
        for _ in range(count):
            held += each
            values.append(held)
    same_in_parts_and_beforehand(partial(MemoryLeak, limit=1e4), values, size)


def test_a_cache_that_fills_ever_slower_is_over_and_not_reported_again() -> None:
    values = [4000 * (2 - 0.9998**index) * MEGA for index in range(30000)]
    assert len(alarms(feed(MemoryLeak(), values))) <= 2
    filled = [(4000 + 0.4 * min(index, 10000)) * MEGA for index in range(30000)]
    fed = feed(MemoryLeak(), filled)
    assert [finding.over for finding in fed] == [False, True]
    assert "less than a third as fast" in fed[1].text or "no more" in fed[1].text


def test_a_steady_leak_is_not_over_once_much_has_leaked() -> None:
    assert [finding.over for finding in feed(MemoryLeak(), leaking(20000, each=1.0))] == [False]


def test_a_leak_that_goes_on_after_a_rest_is_reported_again() -> None:
    values = [*leaking(300, each=2.0), *leaking(500, start=1100, each=0), *leaking(400, start=1100, each=2.0)]
    reported = alarms(feed(MemoryLeak(), values))
    assert len(reported) == 2
    assert 800 < reported[1] < 950
