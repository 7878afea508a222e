"""The newest sample of every series, and the time when it is dropped."""

from __future__ import annotations

import threading
from math import inf, nan
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import DEADLINE

from trackside_daemon.model.metric import Batch, Distribution, Metric, Sample
from trackside_daemon.model.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

GAUGE = Metric("trackside_a", "gauge", "A.", ("name",))
OTHER = Metric("trackside_b", "gauge", "B.", ("name",))
HISTOGRAM = Metric("trackside_c", "histogram", "C.", ("name",), buckets=(1.0,))

Page = dict[tuple[str, str], object]


@pytest.fixture
def state() -> State:
    return State()


def page(state: State, now: float = 0.0, wanted: Callable[[str], bool] | None = None) -> Page:
    return {
        (rows.metric.name[-1], series.labels[0]): value
        for rows in state.snapshot(now, wanted)
        for series, value in zip(rows.series, rows.values, strict=True)
    }


def batch(source: str, *, complete: bool = False, until: float | None = None, **values: float) -> Batch:
    """Return a batch with values of `GAUGE` by name."""
    samples = [Sample(GAUGE, (name,), value) for name, value in values.items()]
    return Batch(source, samples, complete=complete, until=until)


def test_the_newest_value_is_shown(state: State) -> None:
    state.update(batch("s", x=1.0, y=2.0))
    state.update(batch("s", x=3.0))
    assert page(state) == {("a", "x"): 3.0, ("a", "y"): 2.0}


def test_families_are_in_order_of_name_and_series_in_order_of_arrival(state: State) -> None:
    state.update(Batch("s", [Sample(OTHER, ("z",), 1.0), Sample(OTHER, ("y",), 1.0), Sample(GAUGE, ("x",), 1.0)]))
    state.update(Batch("t", [Sample(OTHER, ("a",), 1.0)]))
    assert list(page(state)) == [("a", "x"), ("b", "z"), ("b", "y"), ("b", "a")]


def test_a_whole_number_is_stored_as_a_float(state: State) -> None:
    state.update(Batch("s", [Sample(GAUGE, ("x",), 2**60)]))
    (value,) = page(state).values()
    assert (type(value), value) == (float, 2.0**60)


def test_a_distribution_is_stored_as_it_is(state: State) -> None:
    state.update(Batch("s", [Sample(HISTOGRAM, ("x",), Distribution((1, 2), 3.0))]))
    assert page(state) == {("c", "x"): Distribution((1, 2), 3.0)}


def test_a_complete_batch_removes_what_it_does_not_have(state: State) -> None:
    state.update(batch("s", complete=True, x=1.0, y=1.0))
    state.update(batch("t", z=1.0))
    state.update(batch("s", complete=True, y=2.0))
    assert page(state) == {("a", "y"): 2.0, ("a", "z"): 1.0}


def test_an_incomplete_batch_removes_nothing(state: State) -> None:
    state.update(batch("s", complete=True, x=1.0))
    state.update(batch("s", y=1.0))
    assert page(state) == {("a", "x"): 1.0, ("a", "y"): 1.0}


def test_an_empty_complete_batch_removes_a_source_without_a_trace(state: State) -> None:
    state.update(batch("s", complete=True, until=5.0, x=1.0))
    state.update(Batch("s", complete=True))
    assert page(state) == {}
    assert (state._sources, state._until) == ({}, {})


def test_a_source_is_forgotten_when_its_time_is_over(state: State) -> None:
    state.update(batch("s", until=10.0, x=1.0))
    state.update(batch("t", y=1.0))
    assert ("a", "x") in page(state, 10.0)
    assert page(state, 10.1) == {("a", "y"): 1.0}
    assert state._until == {}


def test_each_batch_sets_its_sources_time_anew(state: State) -> None:
    state.update(batch("s", until=10.0, x=1.0))
    state.update(batch("s", until=20.0))
    assert page(state, 15.0) == {("a", "x"): 1.0}
    state.update(batch("s"))
    assert page(state, inf) == {("a", "x"): 1.0}


def test_a_series_that_another_source_takes_over_is_the_others(state: State) -> None:
    state.update(batch("s", until=10.0, x=1.0))
    state.update(batch("t", x=2.0))
    state.update(batch("s", complete=True, until=10.0))
    assert page(state, 11.0) == {("a", "x"): 2.0}
    state.update(Batch("t", complete=True))
    assert page(state) == {}


def test_a_complete_batch_as_the_last_gives_back_what_another_source_took_meanwhile(state: State) -> None:
    for value in (1.0, 2.0):
        state.update(batch("s", complete=True, x=value, y=value))
    state.update(batch("t", complete=True, y=5.0))
    assert page(state) == {("a", "x"): 2.0, ("a", "y"): 5.0}
    state.update(batch("s", complete=True, x=3.0, y=3.0))
    assert page(state, wanted=lambda source: source == "s") == {("a", "x"): 3.0, ("a", "y"): 3.0}


def test_a_complete_batch_as_the_last_removes_what_an_incomplete_one_added_between(state: State) -> None:
    state.update(batch("s", complete=True, x=1.0))
    state.update(batch("s", y=2.0))
    state.update(batch("s", complete=True, x=3.0))
    assert page(state) == {("a", "x"): 3.0}


def test_a_complete_batch_as_the_last_shows_a_source_that_was_forgotten(state: State) -> None:
    state.update(batch("s", complete=True, until=1.0, x=1.0))
    assert page(state, now=2.0) == {}
    state.update(batch("s", complete=True, until=4.0, x=2.0))
    assert page(state, now=3.0) == {("a", "x"): 2.0}


def test_two_sources_that_quarrel_over_a_series_never_double_it(state: State) -> None:
    for value in range(6):
        state.update(batch("st"[value % 2], complete=True, x=float(value)))
        (rows,) = state.snapshot(0.0)
        assert rows.values == [float(value)]


def test_a_scrape_may_choose_by_source(state: State) -> None:
    state.update(batch("s", x=1.0))
    state.update(Batch("t", [Sample(GAUGE, ("y",), 2.0), Sample(OTHER, ("z",), 3.0)]))
    assert page(state, wanted=lambda source: source == "s") == {("a", "x"): 1.0}
    assert page(state, wanted=lambda source: source == "t") == {("a", "y"): 2.0, ("b", "z"): 3.0}
    assert page(state, wanted=lambda _: False) == {}


def test_values_of_several_families_are_of_one_moment_and_forgotten_in_time_too(state: State) -> None:
    state.update(Batch("s", [Sample(GAUGE, ("x",), 1.0), Sample(OTHER, ("x",), nan)], until=10.0))
    first, second, third = state.values(10.0, GAUGE, OTHER, HISTOGRAM)
    assert (first, list(second), third) == ({("x",): 1.0}, [("x",)], {})
    assert state.values(10.1, GAUGE) == [{}]


def test_a_sample_with_a_wrong_number_of_labels_never_reaches_the_page(state: State) -> None:
    samples = [Sample(GAUGE, ("x",), 1.0), Sample(GAUGE, ("y", "z"), 2.0), Sample(GAUGE, ("w",), 3.0)]
    with pytest.raises(ValueError, match=r"trackside_a has the labels \('name',\), got \('y', 'z'\)"):
        state.update(Batch("s", samples, complete=True))
    assert page(state) == {("a", "x"): 1.0}
    state.update(Batch("s", complete=True))
    assert page(state) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from("stu"),
            st.dictionaries(st.sampled_from("wxyz"), st.integers(0, 9), max_size=4),
            st.booleans(),
            st.none() | st.integers(0, 20),
            st.integers(0, 3),
        ),
        max_size=20,
    )
)
def test_whatever_comes_the_page_is_what_a_plain_reading_of_the_rules_gives(
    reported: list[tuple[str, dict[str, int], bool, int | None, int]],
) -> None:
    state, now = State(), 0
    expected: dict[str, tuple[str, int]] = {}
    until: dict[str, int | None] = {}
    for source, values, complete, ends, passes in reported:
        if complete:
            expected = {name: one for name, one in expected.items() if one[0] != source or name in values}
        expected.update({name: (source, value) for name, value in values.items()})
        until[source] = ends
        state.update(batch(source, complete=complete, until=ends, **values))
        now += passes
        over = [one for one, end in until.items() if end is not None and end < now]
        expected = {name: one for name, one in expected.items() if one[0] not in over}
        until = {one: end for one, end in until.items() if one not in over}
        assert page(state, now) == {("a", name): value for name, (_, value) in expected.items()}


def test_a_snapshot_is_of_one_moment_while_another_thread_writes(
    state: State, count: Callable[[int, int], int]
) -> None:
    names = [f"series-{number}" for number in range(50)]
    written, stopped = threading.Semaphore(0), threading.Event()

    def write() -> None:
        value = 0.0
        while not stopped.is_set():
            value += 1.0
            shown = names if value % 2 else names[:25]
            state.update(batch("s", complete=True, **dict.fromkeys(shown, value)))
            written.release()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for index in range(count(500, 20_000)):
            assert index % 10 or written.acquire(timeout=DEADLINE), "now and then, something new has to be there"
            for rows in state.snapshot(0.0):
                assert len(set(rows.values)) == 1
                assert len(rows.series) == (50 if rows.values[0] % 2 else 25)  # type: ignore[operator]  # all are floats
    finally:
        stopped.set()
        writer.join()
