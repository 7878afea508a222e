"""Charts against brute force: exact extremes, the whole window, the number of buckets."""

from __future__ import annotations

import math
import random
from itertools import repeat
from math import inf, isfinite, isnan, nan
from typing import TYPE_CHECKING

import pytest
from history.builders import WALL, Bench, Range, bits, block, brute_extremes, same, session_id

from trackside_daemon.history import codec
from trackside_daemon.history.read import charts, series
from trackside_daemon.history.read.charts import Chart
from trackside_daemon.history.read.series import StoredSeries, Window
from trackside_daemon.history.record.trimming import Bounds, Trimming

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from history.builders import Sample

ONE = session_id(1)


def fill(bench: Bench, steps: Sequence[int], values: Sequence[float], *, packed: int, key: str = "a") -> None:
    """Write the samples: the first *packed* of them packed, the others fresh."""
    if not bench.numbers:
        bench.open(ONE)
    stamps = [number * 10**8 for number in range(len(steps))]
    for first, end in ((0, packed), (packed, len(steps))):
        for at in range(first, end, 500):
            until = min(at + 500, end)
            bench.send(ONE, block([key], steps[at:until], values[at:until], stamps[at:until]))
        if first == 0 and packed:
            bench.pack(1)


def units_of(rows: list[Sample], packed: int, unit: int, window: Range) -> list[list[Sample]]:
    """Return the units of *unit* samples that have a sample in the window; cut fresh samples to the window first."""
    block_size = codec.BLOCK
    found = []
    for begin in range(0, packed, block_size):
        whole = rows[begin : min(begin + block_size, packed)]
        found += [whole[at : at + unit] for at in range(0, len(whole), unit)]
    fresh = [row for row in rows[packed:] if window.holds(row)]
    kept = [part for part in found if any(map(window.holds, part))]
    if unit == 1:
        return [*kept, *([row] for row in fresh)]
    return kept + [fresh[at : at + unit] for at in range(0, len(fresh), unit)]


def check(chart: Chart, rows: list[Sample], packed: int, window: Range, points: int) -> None:
    """Check that the buckets are unions of consecutive units, cover them all, and have the right values."""
    units = units_of(rows, packed, chart.unit, window)
    if chart.unit == codec.BLOCK:  # a block with a gap may be in it
        units = overlapping(rows, packed, window)
    assert len(chart.points) <= points
    at = 0
    assert len(chart.nonfinite) in {0, len(chart.points)}
    for (step, time, low, high, last), odd in zip(chart.points, chart.nonfinite or repeat(0), strict=False):
        begin = at
        while at < len(units):
            at += 1
            end = units[at - 1][-1]
            if (end[0], end[1] / 1e6) == (step, time) and (at == len(units) or at - begin >= 1):
                bucket = [row for unit in units[begin:at] for row in unit]
                if has_extremes(bucket, low, high, last) and odd == sum(not isfinite(row[2]) for row in bucket):
                    break
        else:
            pytest.fail(f"bucket {step} {time} {low} {high} {last} is none of {units[begin:][:3]}… in {window}")
    assert at == len(units), (at, len(units), chart.unit)


def overlapping(rows: list[Sample], packed: int, window: Range) -> list[list[Sample]]:
    """Return the blocks whose extent overlaps a window, and blocks of the fresh samples in it."""
    found = [rows[at : min(at + codec.BLOCK, packed)] for at in range(0, packed, codec.BLOCK)]
    column, scale = (0, 1.0) if window.by == "step" else (1, 1e6)
    kept = [
        part
        for part in found
        if max(row[column] for row in part) >= window.low * scale
        and min(row[column] for row in part) <= window.high * scale
    ]
    fresh = [row for row in rows[packed:] if window.holds(row)]
    return kept + [fresh[at : at + codec.BLOCK] for at in range(0, len(fresh), codec.BLOCK)]


def has_extremes(bucket: Sequence[Sample], low: float, high: float, last: float) -> bool:
    """Return whether these are a bucket's extremes and last value."""
    return same([low, high, last], [*brute_extremes(row[2] for row in bucket), bucket[-1][2]])


def steps_of(kind: str, count: int, dice: random.Random) -> list[int]:
    """Return steps of a kind."""
    if kind == "even":
        return [3 * number for number in range(count)]
    if kind == "repeated":
        return [number // 5 for number in range(count)]
    if kind == "falling":
        return [number if number < count // 2 else number - count // 3 for number in range(count)]
    if kind == "wild":
        return [dice.randrange(-count, count) for _ in range(count)]
    return [number + (10**6 if number > count // 2 else 0) for number in range(count)]


def values_of(kind: str, count: int, dice: random.Random) -> list[float]:
    """Return values of a kind, distinct where the kind allows it."""
    if kind == "nan":
        return [nan] * count
    if kind == "odd":
        return [dice.choice((nan, inf, -inf, dice.gauss(0, 1))) for _ in range(count)]
    return [dice.gauss(0, 1) for _ in range(count)]


STEPS = ("even", "repeated", "falling", "wild", "gap")
POINTS = (1, 2, 3, 4, 7, 10, 25, 60, 2000)


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("values", ["plain", "odd", "nan"])
def test_a_chart_is_as_brute_force_has_it(
    kind: str, values: str, bench: Bench, small: int, count: Callable[[int, int], int]
) -> None:
    dice = random.Random(f"{kind} {values}")
    bench.open(ONE)
    for number in range(count(6, 60)):
        many = dice.choice((1, 5, 31, 32, 33, 300, 1000))
        packed = dice.choice((0, many, many - many // 3, many - many // 3 - (many - many // 3) % 32))
        key = f"k{number}"
        fill(bench, steps_of(kind, many, dice), values_of(values, many, dice), packed=packed, key=key)
        rows = bench.pushed[1, key]
        for _ in range(40):
            window = window_in(rows, dice)
            points = dice.choice(POINTS)
            chart = bench.chart(1, key, Window(*window), points)
            check(chart, rows, packed, window, points)
            inside = sum(map(window.holds, rows))
            if kind == "even" and inside > 2 * 32:
                assert len(chart.points) >= min(points, inside) / 2 - 1
            if not inside and chart.unit == 1:
                assert chart.points == []


def window_in(rows: list[Sample], dice: random.Random) -> Range:
    """Return a random window: open at either end, both or neither, empty, or of a single sample."""
    by = dice.choice(("step", "time"))
    column = [row[0] if by == "step" else row[1] / 1e6 for row in rows]
    low, high = sorted((dice.choice(column), dice.choice(column)))
    return Range(
        "step" if by == "step" else "time",
        *dice.choice(
            (
                (low, high),
                (low, high),
                (low, high),
                (-inf, high),
                (low, inf),
                (-inf, inf),
                (high + 1e7, inf),
                (low, low),
            )
        ),
    )


@pytest.mark.parametrize(
    ("count_", "packed"),
    [
        pytest.param(60_000, 60_000, marks=pytest.mark.only_soak),
        pytest.param(200_000, 190_000, marks=pytest.mark.only_soak),
        (20_000, 0),
        (5000, 4096),
    ],
)
def test_with_blocks_of_4096_there_are_half_as_many_buckets_as_asked_for_or_more(
    count_: int, packed: int, bench: Bench
) -> None:
    values = values_of("plain", count_, random.Random(1))
    fill(bench, range(count_), values, packed=packed)
    rows = bench.pushed[1, "a"]
    for points in (1, 2, 3, 10, 100, 500, 2000):
        for window in (
            Range("step", -inf, inf),
            Range("step", count_ // 10, count_ - 100),
            Range("time", WALL + 7, inf),
        ):
            chart = bench.chart(1, "a", Window(*window), points)
            assert min(points, count_) / 2 <= len(chart.points) <= points, (points, window, chart.unit)
            inside = [row[2] for row in rows if window.holds(row)]
            assert min(point[2] for point in chart.points) <= min(inside)
            assert max(point[3] for point in chart.points) >= max(inside)
            if window.low == -inf:
                assert (min(point[2] for point in chart.points), max(point[3] for point in chart.points)) == (
                    min(values),
                    max(values),
                )
                assert chart.points[-1][4] == values[-1]
                assert chart.samples == count_


def test_a_bucket_of_nothing_but_nan_has_nan_at_any_resolution(bench: Bench, small: int) -> None:
    fill(bench, range(640), [nan] * 640, packed=640)
    for points in (2, 30, 150, 2000):
        chart = bench.chart(1, "a", Window(), points)
        assert all(isnan(number) for point in chart.points for number in point[2:]), chart.unit


def test_the_time_of_a_chart_is_in_the_window_that_begins_or_ends_there(bench: Bench) -> None:
    dice = random.Random(3)
    bench.open(ONE)
    times = sorted(dice.randrange(10**15) for _ in range(2000))
    bench.send(ONE, block(["a"], range(2000), [1.0] * 2000, times))
    points = bench.chart(1, "a", Window(), 4000).points
    for packed in (False, True):
        if packed:
            bench.pack(1)
        for number in dice.sample(range(2000), 300):
            at = points[number][1]
            assert [point[0] for point in bench.chart(1, "a", Window("time", at, at), 4000).points] == [number]


@pytest.mark.parametrize("kind", STEPS)
def test_cells_stand_for_trimmed_samples_and_are_marked(kind: str, bench: Bench, small: int) -> None:
    dice = random.Random(kind)
    fill(bench, steps_of(kind, 320, dice), values_of("odd", 320, dice), packed=320)
    rows = bench.pushed[1, "a"]
    before = {points: bench.chart(1, "a", Window(), points) for points in (1, 2, 3, 10, 50)}
    trimming = Trimming(bench.connection, bench.database.path, Bounds(10**9))
    with bench.database.transaction():
        trimming._drop_samples(1, 0, 6)
    for points, chart in before.items():
        again = bench.chart(1, "a", Window(), points)
        if chart.unit > 1:
            assert [bits(point) for point in again.points] == [bits(point) for point in chart.points]
            assert again.nonfinite == chart.nonfinite
            assert not again.trimmed
    whole = bench.chart(1, "a", Window(), 2000)
    assert whole.trimmed
    assert len(whole.points) == 6 * 8 + 4 * 32
    assert sum(whole.nonfinite) == sum(not isfinite(row[2]) for row in rows)
    for _ in range(60):
        window = window_in(rows, dice)
        chart = bench.chart(1, "a", Window(*window), 2000)
        ends = [(point[0], point[1]) for point in chart.points]
        cells = [rows[at : at + 4] for at in range(0, 192, 4)]
        wanted = [part for part in cells if any(map(window.holds, part))]
        if kind not in {"wild", "falling"}:
            assert chart.trimmed == bool([end for end in ends if end[1] * 1e6 <= rows[191][1] + 0.5])
        for part in wanted:
            assert (part[-1][0], part[-1][1] / 1e6) in ends
    with_samples = bench.chart(1, "a", Window("time", rows[192][1] / 1e6, inf), 2000)
    assert not with_samples.trimmed
    assert bits(row[2] for row in bench.read(1, "a")) == bits(row[2] for row in rows[192:])


def test_an_unknown_series_is_empty(bench: Bench) -> None:
    bench.open(ONE)
    with bench.database.reading() as connection:
        assert charts.chart(connection, StoredSeries(1, "x"), series.LogTail(connection, 1)) == Chart([], 1, 0)
    assert bench.read(1, "x") == []


@pytest.mark.parametrize("points", [5, 50, 2000])
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE block SET cells = substr(cells, 1, 100)",
        "UPDATE block SET cells = CAST(x'78' || substr(cells, 2) AS BLOB)",
        "UPDATE block SET cells = x''",
        "UPDATE axis SET cells = substr(cells, 1, 100)",
        "INSERT INTO nonfinite SELECT id, 1, x'01' FROM block",
        "UPDATE axis SET data = substr(data, 1, 30)",
        "UPDATE block SET data = substr(data, 1, 30)",
        "UPDATE log SET data = x'91'",
    ],
)
def test_a_damaged_blob_is_a_value_error_or_not_read(damage: str, points: int, bench: Bench, small: int) -> None:
    fill(bench, range(640), [0.1 * number for number in range(640)], packed=600)
    bench.connection.execute(damage)
    for window in (Window(), Window("step", 5, 595)):
        try:
            chart = bench.chart(1, "a", window, points)
        except ValueError:
            continue
        assert chart.points[0][2] <= 0.1 * 5
    if "data" in damage:
        with pytest.raises(ValueError, match=r".+"):
            bench.read(1, "a")


def test_a_tail_that_is_shared_is_read_on_and_not_anew(bench: Bench, read_rows: list[int]) -> None:
    bench.open(ONE)
    keys = [f"k{number}" for number in range(5)]
    tail = series.LogTail(None, 1)
    for round_ in range(6):
        for number in range(10):
            bench.send(ONE, block(keys, [10 * round_ + number], [float(round_)] * 5))
        read_rows.clear()
        for key in keys:
            found = series.samples(bench.database, StoredSeries(1, key), tail)
            assert [step for columns in found for step in columns[0]] == list(range(10 * round_ + 10))
        assert read_rows == list(range(10 * round_ + 1, 10 * round_ + 11))
        if round_ in {1, 3, 4}:
            bench.pack(1)


def test_what_is_packed_while_it_is_read_comes_once(bench: Bench) -> None:
    bench.open(ONE)
    for number in range(30):
        bench.send(ONE, block(["a", "b"], range(500 * number, 500 * number + 500), [float(number)] * 1000))
        if number == 9:
            bench.pack(1)
    stream = series.samples(bench.database, StoredSeries(1, "a"))
    rows = []
    for number, columns in enumerate(stream):
        rows += list(columns[0])
        if number == 0:
            bench.pack(1)
        if number == 2:
            bench.send(ONE, block(["a", "b"], range(15_000, 15_500), [1.0] * 1000))
        if number == 3:
            bench.pack(1)
    assert rows == list(range(15_500))
    assert math.isfinite(sum(rows))


def test_the_mean_of_a_bucket_of_blocks_leaves_out_infinities(bench: Bench, small: int) -> None:
    lasts = [inf, 1.0, 2.0, 3.0]
    fill(bench, range(4 * small), [one for last in lasts for one in (*[0.0] * (small - 1), last)], packed=4 * small)
    chart = bench.chart(1, "a", Window(), 1)
    assert (chart.unit, list(chart.means)) == (small, [2.0])
