"""The one spelling of numbers, in Python and on the page: both read the cases of spelling.json."""

from __future__ import annotations

import json
import time
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trackside_daemon.model.text import (
    byte_size,
    counted,
    csv_line,
    csv_name,
    duration,
    factor,
    measured,
    number,
    percent,
    ranges,
    seconds,
    some,
    times,
    with_unit,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SPELLING: dict[str, list[list[Any]]] = json.loads(Path(__file__).with_name("spelling.json").read_text(encoding="utf-8"))
SPELT: dict[str, Callable[[Any], str]] = {
    "number": number,
    "percent": percent,
    "bytes": byte_size,
    "duration": duration,
    "hertz": partial(with_unit, unit="Hz"),
    "joules": partial(with_unit, unit="J"),
    "counted": partial(counted, noun="checkpoint"),
}


@pytest.mark.parametrize("kind", SPELLING)
def test_it_is_spelt_as_on_the_page(kind: str) -> None:
    assert [SPELT[kind](value) for value, _ in SPELLING[kind]] == [text for _, text in SPELLING[kind]]


@pytest.mark.parametrize("value", [None, nan, inf])
def test_an_unknown_value_is_a_dash(value: float | None) -> None:
    assert [percent(value), byte_size(value), duration(value), with_unit(value, "W")] == ["-"] * 4


def test_a_change_has_its_sign() -> None:
    assert [percent(0.015, "+"), percent(-0.1, "+"), percent(-0.0, "+")] == ["+1.5 %", "-10.0 %", "+0.0 %"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5, "ratio", "50.0 %"),
        (1024, "bytes", "1 KiB"),
        (2**21, "bytes per second", "2 MiB/s"),
        (1.5, "seconds", "1.5 s"),
        (3, "steps per second", "3 steps per second"),
        (2.5, "", "2.5"),
    ],
)
def test_a_measured_value_has_the_spelling_of_its_unit(value: float, unit: str, text: str) -> None:
    assert measured(value, unit) == text


def test_a_line_of_csv_has_no_formula_and_may_have_signed_numbers() -> None:
    names = ["=1", "'@x", "-2+3", "-1.2 %", "+1.5e-05", "-"]
    assert csv_line(names) == "'=1,''@x,'-2+3,'-1.2 %,'+1.5e-05,'-\n"
    assert csv_line(names, signed=True) == "'=1,''@x,'-2+3,-1.2 %,+1.5e-05,-\n"
    assert [csv_name(cell) for cell in csv_line(names).strip().split(",")] == names


@pytest.mark.parametrize(
    ("ratio", "reported"),
    [(2.4123, "2.41 times"), (96.4, "96.4 times"), (999.2, "999 times"), (2e9, "more than 1,000 times"), (inf, None)],
)
def test_how_many_times(ratio: float, reported: str | None) -> None:
    assert factor(ratio) == (reported or "more than 1,000 times")


def test_multiples_of_a_number_near_zero_are_written_as_a_distance() -> None:
    assert times(0.5, 2e-9) == "more than 1,000 times the 2e-09"
    assert times(0.5, -0.1) == "by 0.6 above the -0.1"


def test_a_line_of_csv_has_any_name_and_quotes_what_separates_or_is_no_letter() -> None:
    assert csv_line(["step", "a b", "a,b", 'a"b', "a;b", "a\rb", "a\0b"]) == (
        'step,a b,"a,b","a""b","a;b","a\rb","a\0b"\n'
    )


def test_a_text_of_digits_is_refused_as_a_duration_at_once() -> None:
    begun = time.thread_time()
    with pytest.raises(ValueError, match="is not a duration"):
        seconds("1" * 20_000 + "x")
    assert time.thread_time() - begun < 0.5
    assert [seconds(text) for text in ("1h30m", "500ms", "1.5s", "7")] == [5400.0, 0.5, 1.5, "7"]


def test_names_and_numbers_are_listed_up_to_a_limit() -> None:
    assert [some([*"abcd"][:count], 2) for count in (1, 2, 4)] == ["a", "a, b", "a, b and 2 more"]
    found = [ranges(numbers) for numbers in ([0], [1, 0], [0, 1, 2, 5, 7, 6], range(0, 99, 3))]
    assert found == ["0", "0 and 1", "0 to 2 and 5 to 7", "0, 3, 6, 9, 12, 15, 18, 21 and more"]
