"""Differences of two profiles: what was planted, and nothing between healthy ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from captures.summary.traces import Writer, capture, healthy

from trackside_daemon.captures.summary.difference import difference

if TYPE_CHECKING:
    from collections.abc import Callable


def texts(before: Writer, after: Writer) -> list[str]:
    return [change["text"] for change in difference(capture(before), capture(after))]


def test_an_operator_that_grew_is_named_with_its_times() -> None:
    [operator] = difference(capture(healthy(1, copy_=0.4)), capture(healthy(2, copy_=11)))
    assert operator["text"] == "aten::copy_ 398 µs → 10.7 ms a step"
    assert (operator["kind"], operator["rank"]) == ("operator", 0)
    assert 0.010 < operator["after"] < 0.012


def test_an_operator_that_went_is_named() -> None:
    assert any(text.startswith("aten::sort") and "→ 0 s" in text for text in texts(healthy(1, sort=5), healthy(2)))


def test_the_source_of_a_change_is_named() -> None:
    def training(milliseconds: float) -> Writer:
        writer = Writer(100.0)
        for _ in range(11):
            writer.call("loader.py(88): read", milliseconds * 1000, "python_function")
            writer.call("aten::mm", 3000.0)
            writer.optimizer()
        return writer

    assert "loader.py:88 in read 1 ms → 9 ms a step" in texts(training(1), training(9))


def test_healthy_pairs_are_silent(count: Callable[[int, int], int]) -> None:
    for seed in range(count(20, 1000)):
        noise = 0.02 + seed % 10 * 0.06
        assert texts(healthy(2 * seed, noise=noise), healthy(2 * seed + 1, noise=noise)) == []


def test_a_median_that_moves_within_the_range_of_the_steps_is_no_change() -> None:
    before, after = capture(healthy(1, sort=1)), capture(healthy(1, sort=1))
    for one, (low, median, high) in ((before, (0.0, 0.0, 0.010)), (after, (0.009, 0.011, 0.012))):
        (row,) = (row for row in one["ranks"]["0"]["operators"] if row["name"] == "aten::sort")
        row.update(low=low, median=median, high=high)
    assert difference(before, after) == []


def test_one_interrupted_step_is_no_change() -> None:
    # A faster machine puts the small operator, whose time stays, above the range of the reference.
    after = healthy(2, steps=21, scale=0.7, add_=0.015 / 0.7, interrupted=16)
    assert texts(healthy(1, steps=21, add_=0.014), after) == []


def test_a_machine_that_is_slower_as_a_whole_is_no_change_of_an_operator() -> None:
    changes = difference(capture(healthy(1)), capture(healthy(2, scale=1.8)))
    assert [change for change in changes if change["kind"] == "operator"] == []


def test_too_few_steps_show_no_difference() -> None:
    assert texts(healthy(1, steps=4), healthy(2, steps=4, copy_=11)) == []


def test_the_rank_with_the_largest_change_is_named() -> None:
    before = capture(healthy(1, sort=1), healthy(2, sort=1), healthy(3, sort=1))
    after = capture(healthy(4, sort=4), healthy(5, sort=9), healthy(6, sort=4))
    assert difference(before, after)[0]["rank"] == 1


def test_ranks_of_one_summary_alone_are_left_out() -> None:
    assert difference(capture(), capture(healthy(1))) == []
