"""Encoding of columns: every value is restored with all bits, and damaged bytes are recognized."""

from __future__ import annotations

import math
import random
import tracemalloc
import zlib
from array import array
from contextlib import suppress
from fractions import Fraction
from functools import cache
from struct import pack, unpack
from typing import TYPE_CHECKING

import pytest
from history.builders import bits, brute_extremes, same
from hypothesis import example, given
from hypothesis import strategies as st

from trackside_daemon.history import codec
from trackside_daemon.history.codec import decode_axis, encode_axis

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INT64 = st.integers(-(2**63), 2**63 - 1)
PAYLOADS = st.integers(1, 2**52 - 1).map(lambda rest: unpack("<d", pack("<Q", 0x7FF << 52 | rest))[0])
DECIMALS = st.builds(lambda number, digits: number / 10**digits, st.integers(-(10**9), 10**9), st.integers(0, 12))
ODD = st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e308, -1e308, 2.0**31, -(2.0**31), 1e-7])
NUMBERS = st.floats() | PAYLOADS | DECIMALS | ODD | st.floats(width=32) | st.integers(-(2**53), 2**53).map(float)
COLUMNS = (
    st.lists(NUMBERS, max_size=300)
    | st.lists(DECIMALS, max_size=300)
    | st.lists(st.floats(width=32), max_size=300)
    | st.builds(lambda value, count: [value] * count, NUMBERS, st.integers(0, 300))
)


def runs(first: int, stride: int, count: int, noise: list[int]) -> list[int]:
    """Return integers that rise almost evenly."""
    found = [first + stride * number + noise[number % len(noise)] for number in range(count)]
    return [max(-(2**63), min(2**63 - 1, one)) for one in found]


INTEGERS = st.lists(INT64, max_size=200) | st.builds(
    runs,
    INT64,
    st.integers(-(2**40), 2**40),
    st.integers(0, 300),
    st.lists(st.integers(-99, 99), min_size=1, max_size=9),
)


@given(COLUMNS)
@example([])
@example([-0.0] * 5)
@example([0.0, -0.0])
@example([0.1, -0.0])
@example([0.1, 0.2, 0.3, 1e308])
def test_values_come_back_to_the_bit(column: list[float]) -> None:
    found = codec.decode_values(codec.encode_values(array("d", column)))
    assert bits(found) == bits(column)


@given(INTEGERS)
@example([])
@example([-(2**63), 2**63 - 1])
@example([0, 2**62 - 1, 0])
@example([-(2**62), 2**62 - 2, -(2**62) + 1])
def test_integers_come_back(column: list[int]) -> None:
    assert list(codec.decode_integers(codec.encode_integers(array("q", column)))) == column


@given(INTEGERS)
def test_an_axis_comes_back(column: list[int]) -> None:
    steps, times = array("q", column), array("q", reversed(column))
    assert decode_axis(encode_axis(steps, times)) == (steps, times)


@given(COLUMNS.filter(len), st.integers(1, 70))
@example([math.inf, -math.inf, 1.0], 64)
@example([math.nan] * 3, 2)
@example([math.nan, 1.0, -1.0], 64)
@example([1e308, 1e308, math.nan], 64)
def test_cells_are_as_brute_force_has_them(column: list[float], size: int) -> None:
    parts = [column[start : start + size] for start in range(0, len(column), size)]
    found = codec.cells(array("d", column), size)
    assert same(found.mins, [brute_extremes(part)[0] for part in parts])
    assert same(found.maxs, [brute_extremes(part)[1] for part in parts])
    assert bits(found.lasts) == bits(part[-1] for part in parts)
    again = codec.decode_cells(codec.encode_cells(found))
    assert [bits(one) for one in again] == [bits(one) for one in found]


@given(COLUMNS)
@example([])
@example([math.inf, -math.inf])
@example([1e308, 1e308])
def test_a_summary_is_as_brute_force_has_it(column: list[float]) -> None:
    found = codec.summarize(array("d", column))
    low, high = brute_extremes(column)
    assert same([math.nan if found.low is None else found.low], [low])
    assert same([math.nan if found.high is None else found.high], [high])
    finite = [value for value in column if math.isfinite(value)]
    assert found.finite == len(finite)
    assert same([found.sum], [sum(finite)])
    assert found.squares is not None
    assert close(found.squares, finite)


@given(COLUMNS, COLUMNS)
@example([1e9 + place % 2 for place in range(100)], [1e9])
def test_the_summary_of_two_columns_is_that_of_both(first: list[float], second: list[float]) -> None:
    both = codec.summarize(array("d", first)).plus(codec.summarize(array("d", second)))
    whole = codec.summarize(array("d", first + second))
    assert (both.low, both.high, both.finite) == (whole.low, whole.high, whole.finite)
    assert close(both.squares or 0.0, [value for value in first + second if math.isfinite(value)])


def spread(finite: list[float]) -> float:
    """Return the exact sum of squared deviations, rounded; infinite if it is too large for a float."""
    exact = [Fraction(value) for value in finite]
    mean = sum(exact, Fraction()) / max(1, len(exact))
    try:
        return float(sum(((value - mean) ** 2 for value in exact), Fraction()))
    except OverflowError:
        return math.inf


def close(found: float, finite: list[float]) -> bool:
    """Return whether a sum of squares is right within rounding; where numbers are too large for it, it is unknown."""
    rounding = 1e-10 * max(map(abs, finite), default=0.0)
    least = rounding * rounding * len(finite) + 1e-300
    return not math.isfinite(found) or math.isclose(found, spread(finite), rel_tol=1e-6, abs_tol=least)


@cache
def written() -> dict[str, tuple[Callable[[bytes], object], list[bytes]]]:
    """Return, for each kind of encoded bytes, its decoder and examples."""
    return {
        "values": (
            codec.decode_values,
            [
                codec.encode_values(array("d", column))
                for column in ([0.1 * number for number in range(64)], [0.5] * 300, [math.pi] * 9, [1 / 3, 2.5e77], [])
            ],
        ),
        "integers": (
            codec.decode_integers,
            [
                codec.encode_integers(array("q", column))
                for column in (range(4096), [5] * 4000, [0, 2**63 - 1, -(2**63)], [1, 2, 4, 5, 7, 99], [3], [])
            ],
        ),
        "cells": (codec.decode_cells, [codec.encode_cells(codec.cells([0.1, 2.0, math.nan] * 99))]),
        "axis": (decode_axis, [encode_axis(array("q", range(99)), array("q", [x * x for x in range(99)]))]),
    }


@pytest.mark.parametrize("kind", ["values", "integers", "cells", "axis"])
def test_damaged_bytes_are_numbers_still_or_a_value_error(kind: str, count: Callable[[int, int], int]) -> None:
    decode, examples = written()[kind]
    dice = random.Random(kind)
    for _ in range(count(3000, 100_000)):
        data = bytearray(dice.choice(examples))
        for _ in range(dice.choice((0, 1, 1, 2, 8))):
            if data:
                data[dice.randrange(min(len(data), dice.choice((4, 32, 10**9))))] = dice.randrange(256)
        if dice.random() < 0.3:
            del data[dice.randrange(len(data) + 1) :]
        with suppress(ValueError):
            decode(bytes(data))


@given(st.binary(max_size=80))
def test_any_bytes_are_numbers_or_a_value_error(data: bytes) -> None:
    for decode, _ in written().values():
        for kind in (b"", b"i3", b"f", b"d"):
            with suppress(ValueError):
                decode(kind + data)


@pytest.mark.parametrize(
    "data",
    [
        pack("<IqqqB", 2**32 - 1, 0, 0, 0, 0),
        pack("<IqqqB", 2**32 - 1, 0, 1, 0, 0),
        pack("<IqqqB", 2**32 - 1, 0, 0, 1, ord("B")) + zlib.compress(bytes(64 * 1024 * 1024)),
        b"f" + zlib.compress(bytes(256 * 1024 * 1024)),
    ],
)
def test_a_damaged_header_that_announces_billions_costs_no_memory(data: bytes) -> None:
    decode = codec.decode_values if data[:1] == b"f" else codec.decode_integers
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"integers|damaged"):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("column", "most"),
    [
        ([0.5 * number for number in range(4096)], 3 * 4096),
        ([round(random.Random(number).gauss(2, 1), 4) for number in range(4096)], 4 * 4096),
        ([2.5] * 4096, 200),
    ],
)
def test_what_was_float32_or_printed_takes_few_bytes(column: Sequence[float], most: int) -> None:
    assert len(codec.encode_values(array("d", column))) < most


def test_evenly_spaced_integers_take_a_header_alone() -> None:
    assert len(codec.encode_integers(array("q", range(-5, 5 + 3 * 4000, 3)))) == 29
