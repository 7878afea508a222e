"""Parts of steps: each moment counts once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside_daemon.captures.summary.parts import KINDS, PARTS, divide, without


def one(spans: dict[str, list[tuple[float, float]]], *, gpu: bool) -> dict[str, float]:
    """Return the parts of a step of 100 microseconds that are not 0, in microseconds."""
    [step] = divide(spans, [0.0, 100.0], gpu=gpu)
    return {name: round(seconds * 1e6, 6) for name, seconds in step.items() if seconds and name != "seconds"}


def test_a_cpu_waits_for_data_in_its_loader_even_while_that_computes() -> None:
    assert one({"loader": [(0, 40)], "work": [(10, 20), (50, 70)]}, gpu=False) == {
        "data": 40,
        "compute": 20,
        "idle": 40,
    }


def test_a_gpu_waits_for_data_only_while_it_is_idle() -> None:
    assert one({"loader": [(0, 40)], "work": [(10, 20), (50, 70)]}, gpu=True) == {"data": 30, "compute": 30, "idle": 40}


@pytest.mark.parametrize("gpu", [False, True])
def test_communication_is_exposed_where_nothing_computes(gpu: bool) -> None:
    spans: Any = {"communication": [(10, 60)], "work": [(0, 30)]}
    assert one(spans, gpu=gpu) == {"compute": 10, "overlapped": 20, "exposed": 30, "idle": 40}


def test_copies_are_part_of_an_operator_of_a_cpu_and_hidden_by_kernels_of_a_gpu() -> None:
    spans: Any = {"work": [(0, 50)], "copy": [(20, 60)]}
    assert one(spans, gpu=False) == {"compute": 20, "copies": 40, "idle": 40}
    assert one(spans, gpu=True) == {"compute": 50, "copies": 10, "idle": 40}


def test_idleness_after_a_synchronisation_is_counted() -> None:
    spans: Any = {"work": [(0, 20), (40, 60)], "sync": [(10, 21)]}
    assert one(spans, gpu=True) == {"compute": 40, "idle": 60, "after_sync": 20}


def test_the_profilers_own_work_is_other() -> None:
    assert one({"profiler": [(0, 10)]}, gpu=False) == {"other": 10, "idle": 90}


def test_a_span_over_several_steps_is_divided() -> None:
    steps = divide({"work": [(-50, 250)]}, [0.0, 100.0, 200.0], gpu=False)
    assert [step["compute"] for step in steps] == pytest.approx([1e-4, 1e-4])


times = st.floats(-50, 400, allow_nan=False)
spans_by_kind = st.dictionaries(
    st.sampled_from(KINDS), st.lists(st.tuples(times, times).map(sorted).map(tuple), max_size=8)
)


@given(spans_by_kind, st.lists(st.floats(0, 300), min_size=2, max_size=6, unique=True).map(sorted), st.booleans())
def test_the_parts_sum_to_the_step(spans: Any, edges: list[float], gpu: bool) -> None:
    steps = divide(spans, edges, gpu=gpu)
    assert [step["seconds"] for step in steps] == pytest.approx([(end - begin) / 1e6 for begin, end in pairwise(edges)])
    for step in steps:
        assert sum(step[part] for part in PARTS) == pytest.approx(step["seconds"])
        assert 0 <= step["after_sync"] <= step["idle"] * (1 + 1e-9)


def test_spans_without_others() -> None:
    assert without([(0, 10), (5, 20), (30, 40)], [(8, 12), (35, 50)]) == [(0, 5), (5, 8), (12, 20), (30, 35)]
    assert without([(0, 10)], []) == [(0, 10)]
    assert without([(0, 10)], [(0, 10)]) == without([], [(0, 10)]) == []
