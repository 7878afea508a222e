"""Numbers as a person would write them in a sentence."""

from __future__ import annotations

from math import inf

import pytest

from trackside_daemon.model.text import factor, times


@pytest.mark.parametrize(
    ("ratio", "told"),
    [(2.4123, "2.41 times"), (96.4, "96.4 times"), (999.2, "999 times"), (2e9, "more than 1,000 times"), (inf, None)],
)
def test_how_many_times(ratio: float, told: str | None) -> None:
    assert factor(ratio) == (told or "more than 1,000 times")


def test_times_something_that_is_near_zero_are_said_as_a_distance() -> None:
    assert times(0.5, 2e-9) == "more than 1,000 times the 2e-09"
    assert times(0.5, -0.1) == "by 0.6 above the -0.1"
