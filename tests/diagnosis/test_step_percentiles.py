"""The percentiles of the step time are those of the newest steps, as precise as native histograms."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from trackside.buckets import duration_index
from trackside_daemon.diagnosis.step_percentiles import SHARES, StepPercentiles, quantile
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Distribution, Sample
from trackside_daemon.model.state import State


def counted(durations: list[float]) -> Counter[int]:
    return Counter(index for one in durations if (index := duration_index(one)) is not None)


def push(state: State, fine: Counter[int], run: str = "run", rank: str = "0") -> None:
    value = Distribution((), 0.0, dict(fine))
    state.update(Batch(f"training:{run}.{rank}", [Sample(f.STEP_DURATION, (run, rank), value)]))


def served(percentiles: StepPercentiles, now: float) -> dict[tuple[str, ...], float]:
    return {sample.labels: float(sample.value) for sample in percentiles.batch(now).samples}  # type: ignore[arg-type]


def test_a_quantile_is_as_near_as_the_buckets_are_wide() -> None:
    chance = Random(1)
    durations = sorted(chance.lognormvariate(-2, 0.5) for _ in range(10_000))
    for share in SHARES.values():
        assert quantile(counted(durations), share) == pytest.approx(durations[int(share * 10_000)], rel=0.046)
    for milliseconds in range(100, 400, 7):
        for share in SHARES.values():
            assert quantile(counted([milliseconds / 1000] * 100), share) == pytest.approx(
                milliseconds / 1000, rel=0.046
            )


def test_steps_of_all_ranks_within_five_minutes_count_and_none_from_before() -> None:
    state = State()
    percentiles = StepPercentiles(state)
    first, second = counted([9.0] * 1000), counted([9.0] * 1000)
    push(state, first)
    push(state, second, rank="1")
    assert served(percentiles, 0.0) == {}  # from before this daemon, for all that it knows
    push(state, first := first + counted([0.1] * 30))
    push(state, second := second + counted([0.1] * 30), rank="1")
    assert served(percentiles, 14.0) == {}  # not due yet
    found = served(percentiles, 15.0)
    assert [run for run, _ in found] == ["run"] * 3
    assert max(found.values()) < 0.12
    push(state, second + counted([1.0] * 90), rank="1")
    found = served(percentiles, 30.0)
    assert found["run", "p50"] == pytest.approx(1.0, rel=0.2)
    assert served(percentiles, 315.0)["run", "p50"] > 0.9  # those of the second 30 are left
    assert served(percentiles, 330.0) == {}


def test_a_run_that_has_left_the_page_has_no_percentiles() -> None:
    state = State()
    percentiles = StepPercentiles(state)
    for now, steps in ((0.0, 1), (15.0, 50)):
        push(state, counted([0.5] * steps))
        found = served(percentiles, now)
    assert found["run", "p99"] == pytest.approx(0.5, rel=0.1)
    state.update(Batch("training:run.0", complete=True))
    assert served(percentiles, 30.0) == {}
