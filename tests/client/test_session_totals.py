"""Totals of the pushes: steps, durations, amounts, and values that are not numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside.totals.session_totals import KEY_LENGTH, KEYS, Deferred, SessionTotals
from trackside.wire import DURATION_BUCKETS, Totals

if TYPE_CHECKING:
    from collections.abc import Sequence

SECOND = 1_000_000_000
NAN, INF = float("nan"), float("inf")
LARGEST = 2**63 - 1


def push(tally: SessionTotals, *steps: int | None, **values: float) -> SessionTotals:
    """Push a value per step, a second apart, of the key loss by default."""
    for step in steps:
        tally.accept((tally.pushed_at or 0) + SECOND, step, values or {"loss": 0.5})
    return tally


def durations(tally: SessionTotals) -> tuple[dict[float, int], float]:
    """Return the counts by upper bound, and the sum in seconds."""
    histogram = tally.totals.step_duration
    assert histogram is not None
    bounds = (*DURATION_BUCKETS, INF)
    return {bound: count for bound, count in zip(bounds, histogram.counts, strict=True) if count}, histogram.sum


def encodable(totals: Totals) -> Totals:
    """Encode and decode the totals, as on their way to the daemon."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(totals), type=Totals)


@pytest.mark.parametrize(
    ("steps", "total"),
    [
        ([0], 1),
        ([1], 1),
        ([1000], 1),
        ([-5], 1),
        ([0, 1, 2], 3),
        ([0, 10, 20], 21),
        ([1000, 1001], 2),
        ([5, 5, 5], 1),
        ([5, 3, 4, 5], 1),
        ([5, 3, 4, 5, 6], 2),
        ([5, 3, 9], 5),
        ([-5, 0], 6),
        ([2, 4, 6], 6),
        ([10, 20], 20),
        ([50, 49, 99], 50),
        ([49, 99, 149], 149),
    ],
)
def test_steps_grow_by_the_increase_over_the_highest_and_the_first_push_by_those_before_it(
    steps: list[int], total: int
) -> None:
    assert push(SessionTotals(), *steps).totals.steps == total


@given(st.lists(st.integers(-1000, 1000), min_size=1))
def test_steps_are_one_and_how_far_the_highest_lies_above_the_first(steps: list[int]) -> None:
    tally = push(SessionTotals(), *steps)
    second = next((step for step in steps if step > steps[0]), steps[0])
    before = max(0, steps[0] - 1) if steps[0] <= second - steps[0] else 0
    assert tally.totals.steps == 1 + before + max(steps) - steps[0]
    assert tally.step == steps[-1]
    assert tally.totals.pushes == len(steps)


@pytest.mark.parametrize(
    ("pushes", "step", "total"),
    [
        ([["loss"]], 0, 1),
        ([["loss"], ["lr"]], 0, 1),
        ([["loss"], ["loss"]], 1, 2),
        ([["loss"], ["lr"], ["loss"]], 1, 2),
        ([["loss"], ["lr", "loss"]], 1, 2),
        ([["loss"], ["loss"], ["lr"], ["lr"]], 2, 3),
        ([["loss"], []], 0, 1),
    ],
)
def test_without_a_step_a_push_joins_the_current_one_or_begins_the_next_for_a_key_that_is_in_it(
    pushes: Sequence[list[str]], step: int, total: int
) -> None:
    tally = SessionTotals()
    for time, keys in enumerate(pushes):
        tally.accept(time, None, dict.fromkeys(keys, 1.0))
    assert (tally.step, tally.totals.steps) == (step, total)


def test_without_a_step_a_push_joins_a_step_that_was_given() -> None:
    tally = push(SessionTotals(), 7)
    assert tally.accept(0, None, {"lr": 0.1}) == (7, {"lr": 0.1})
    assert tally.accept(0, None, {"lr": 0.1}) == (8, {"lr": 0.1})
    assert tally.accept(0, 8, {"lr": 0.1}) == (8, {"lr": 0.1})
    assert tally.totals.steps == 2


def test_a_step_takes_the_time_from_its_first_push_to_the_first_push_of_the_next() -> None:
    tally = SessionTotals()
    for time, step in ((0.0, 0), (0.3, 0), (0.9, 0), (1.0, 1), (1.04, 2)):
        tally.accept(round(time * SECOND), step, {"loss": 0.5})
    counts, total = durations(tally)
    assert counts == {1.0: 1, 0.05: 1}
    assert math.isclose(total, 1.04)


def test_a_difference_of_several_steps_is_as_many_steps_of_equal_length() -> None:
    tally = SessionTotals()
    tally.accept(0, 100, {"loss": 0.5})
    tally.accept(10 * SECOND, 120, {"loss": 0.5})
    assert durations(tally) == ({0.5: 20}, 10.0)


def test_the_first_step_and_a_step_backward_have_no_duration_and_the_next_is_measured_from_that() -> None:
    assert push(SessionTotals(), 1000, 1000).totals.step_duration is None
    tally = push(SessionTotals(), 10, 4)
    assert tally.totals.step_duration is None
    assert durations(push(tally, 5)) == ({1.0: 1}, 1.0)


def test_a_push_that_another_thread_s_overtook_has_no_negative_time() -> None:
    tally = SessionTotals()
    tally.accept(SECOND, 1, {"loss": 0.5})
    tally.accept(SECOND - 1000, 2, {"loss": 0.5})
    assert durations(tally) == ({0.001: 1}, 0.0)
    assert encodable(tally.totals) == tally.totals


@pytest.mark.parametrize("key", ["samples", "tokens"])
def test_amounts_are_summed(key: str) -> None:
    tally = SessionTotals()
    assert getattr(tally.totals, key) is None
    assert tally.accept(0, 0, {key: 0}) == (0, {key: 0.0})
    assert getattr(tally.totals, key) == 0.0
    tally.accept(0, 1, {key: 64, "loss": 0.5})
    tally.accept(0, 2, {key: 0.5})
    assert getattr(tally.totals, key) == 64.5
    assert tally.totals.dropped == 0


@pytest.mark.parametrize("key", ["samples", "tokens"])
@pytest.mark.parametrize("amount", [-1, -0.001, NAN, INF, -INF, 10**400, -(10**400)])
def test_a_negative_or_infinite_amount_is_refused_and_counted_and_its_neighbours_retained(
    key: str, amount: float
) -> None:
    tally = SessionTotals()
    assert tally.accept(0, 3, {"loss": 0.5, key: amount, "lr": 0.1}) == (3, {"loss": 0.5, "lr": 0.1})
    assert tally.totals == Totals(pushes=1, dropped=1, steps=1)
    assert tally.last == {"loss": 0.5, "lr": 0.1}


def test_a_value_that_is_not_finite_is_retained_and_counted_by_key() -> None:
    tally = SessionTotals()
    for values in ({"loss": NAN, "lr": 0.1}, {"loss": INF, "grad_norm": -INF}, {"loss": 1.0}, {"a": INF, "b": -INF}):
        kept = tally.accept(0, None, values)
        assert kept is not None
        assert repr(kept[1]) == repr(values)
    assert tally.totals.nonfinite == {"loss": 2, "grad_norm": 1, "a": 1, "b": 1}
    assert tally.totals.dropped == 0


def test_finite_values_with_an_infinite_sum_are_finite() -> None:
    tally = SessionTotals()
    assert tally.accept(0, 0, {"a": 1.7e308, "b": 1.7e308}) == (0, {"a": 1.7e308, "b": 1.7e308})
    assert tally.totals.nonfinite == {}


@pytest.mark.parametrize("others", [{}, {"lr": 0.1}, {"bad": NAN}, {"less": -(10**400)}, {"more": INF}])
def test_an_int_that_no_float_can_hold_is_dropped_and_its_neighbours_are_retained(others: dict[str, float]) -> None:
    tally = SessionTotals()
    accepted = tally.accept(0, 0, {"huge": 10**400, **others})
    kept = {key: value for key, value in others.items() if key != "less"}
    assert accepted is not None
    assert repr(accepted[1]) == repr(kept)
    assert tally.totals.dropped == 1 + len(others) - len(kept)
    assert tally.totals.steps == 1


@pytest.mark.parametrize("step", [2**63, -(2**63) - 1, 10**30])
def test_a_step_beyond_int64_costs_its_own_push_and_nothing_else(step: int) -> None:
    tally = push(SessionTotals(), 4)
    assert tally.accept(9, step, {"loss": 0.1, "lr": 0.2}) is None
    assert (tally.totals.pushes, tally.totals.dropped, tally.totals.steps) == (2, 2, 1)
    assert (tally.step, tally.last) == (4, {"loss": 0.5})


def test_totals_of_absurd_steps_can_still_be_sent_and_no_step_follows_the_last_that_int64_has() -> None:
    tally = push(SessionTotals(), *[-(2**63), LARGEST] * 3)
    assert tally.totals.steps == LARGEST
    assert encodable(tally.totals) == tally.totals
    assert tally.accept(0, None, {"loss": 0.5}) is None
    assert (tally.step, tally.totals.dropped) == (LARGEST, 1)


def test_a_push_without_a_value_is_a_step() -> None:
    tally = SessionTotals()
    assert tally.accept(0, 5, {}) == (5, {})
    assert tally.accept(SECOND, 6, {}) == (6, {})
    assert tally.totals.steps == 2
    assert durations(tally) == ({1.0: 1}, 1.0)


def test_what_is_remembered_key_by_key_is_bounded_and_no_value_is_lost_for_it() -> None:
    tally = SessionTotals()
    for number in range(2 * KEYS):
        assert tally.accept(0, None, {f"key/{number}": NAN}) is not None
    long = "k" * (KEY_LENGTH + 1)
    assert tally.accept(0, None, {long: 1.0, "key/0": 2.0}) == (1, {long: 1.0, "key/0": 2.0})
    assert len(tally.last) == len(tally.totals.nonfinite) == KEYS
    assert tally.last["key/0"] == 2.0
    assert tally.totals.dropped == 0


def test_a_late_row_has_the_step_of_its_push_and_moves_neither_step_nor_duration_nor_progress() -> None:
    tally = SessionTotals()
    deferred = Deferred(3, ("lr", "loss"))
    assert tally.accept(SECOND, deferred, {"lr": 0.1}) == (3, {"lr": 0.1})
    tally.accept(2 * SECOND, 4, {"lr": 0.1})
    before = msgspec.structs.asdict(encodable(tally.totals))
    assert tally.accept(SECOND, deferred, {"loss": 0.5}) == (3, {"loss": 0.5})
    assert tally.accept(SECOND, deferred, {"norm": 0.25}) == (3, {"norm": 0.25})
    assert msgspec.structs.asdict(tally.totals) == before
    assert (tally.step, tally.pushed_at) == (4, 2 * SECOND)
    assert tally.last == {"lr": 0.1, "loss": 0.5, "norm": 0.25}
    assert tally.accept(3 * SECOND, 5, {"lr": 0.1}) == (5, {"lr": 0.1})
    assert durations(tally) == ({1.0: 2}, 2.0)


def test_keys_that_come_late_are_present_in_their_step_from_the_first_row_on() -> None:
    tally = SessionTotals()
    pushes = [Deferred(None, ("loss",)) for _ in range(3)]
    assert [tally.accept(0, one, {}) for one in pushes] == [(0, {}), (1, {}), (2, {})]
    assert tally.accept(0, None, {"lr": 0.1}) == (2, {"lr": 0.1})
    assert tally.accept(0, late := Deferred(None, ("norm",)), {}) == (2, {})
    assert tally.accept(0, None, {"loss": 0.5}) == (3, {"loss": 0.5})
    assert [tally.accept(0, one, {"loss": 0.5}) for one in (*pushes, late)] == [
        (n, {"loss": 0.5}) for n in (0, 1, 2, 2)
    ]
    assert (tally.step, tally.totals.steps, tally.totals.pushes) == (3, 4, 6)


def test_whichever_row_of_a_push_comes_first_is_the_push() -> None:
    tally = push(SessionTotals(), 0)
    deferred = Deferred(None, ("loss", "lr"))
    assert tally.accept(9, deferred, {"loss": 0.5}) == (1, {"loss": 0.5})
    assert tally.accept(9, deferred, {"lr": 0.1}) == (1, {"lr": 0.1})
    assert (tally.step, tally.totals.pushes, tally.totals.steps) == (1, 2, 2)


@pytest.mark.parametrize(("step", "pushed", "expected"), [(7, [], 7), (None, [], 0), (None, [5], 5), (7, [9], 7)])
def test_late_values_of_a_push_with_a_dropped_first_row_have_its_step_or_the_current_one(
    step: int | None, pushed: list[int], expected: int
) -> None:
    tally = push(SessionTotals(), *pushed)
    deferred = Deferred(step, ("loss",))
    deferred.resolved = True
    assert tally.accept(0, deferred, {"loss": 0.5}) == (expected, {"loss": 0.5})
    assert (tally.step, tally.totals.pushes) == (pushed[0] if pushed else None, len(pushed))


def test_amounts_and_non_finite_values_that_come_late_are_counted() -> None:
    tally = SessionTotals()
    deferred = Deferred(0, ("loss", "tokens"))
    tally.accept(0, deferred, {})
    assert repr(tally.accept(0, deferred, {"loss": NAN, "tokens": 64.0, "samples": -1.0})) == (
        "(0, {'loss': nan, 'tokens': 64.0})"
    )
    assert (tally.totals.tokens, tally.totals.nonfinite, tally.totals.dropped) == (64.0, {"loss": 1}, 1)


def test_a_push_with_late_values_and_a_step_beyond_int64_costs_all_its_rows() -> None:
    tally = push(SessionTotals(), 4)
    deferred = Deferred(2**63, ("lr", "loss"))
    assert tally.accept(9, deferred, {"lr": 0.1}) is None
    assert tally.accept(9, deferred, {"loss": 0.1}) is None
    assert (tally.step, tally.totals.dropped, tally.totals.pushes) == (4, 2, 2)


def test_a_value_that_cannot_be_stored_is_logged_once_by_key() -> None:
    tally = SessionTotals()
    for _ in range(2):
        tally.accept(1, 1, {"tokens": -5, "big": 10**400, "loss": 0.5})
        tally.accept(2, 2**63, {"loss": 0.5, "lr": 0.1})
    assert tally.warnings == {
        "tokens": "tokens: -5.0 is not a finite, non-negative amount; it is dropped, and so are further ones",
        "big": "big: is beyond a float's range; it is dropped, and so are further ones",
        "step": "step: is beyond 64 bits; it is dropped, and so are further ones",
    }
    assert tally.totals.dropped == 2 * (2 + 2)
