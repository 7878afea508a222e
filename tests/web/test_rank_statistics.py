"""The metrics page of runs with many ranks."""

from __future__ import annotations

from math import nan

from trackside.wire import DURATION_BUCKETS
from trackside_daemon.model.families import derived
from trackside_daemon.model.families import training as f
from trackside_daemon.model.metric import Batch, Distribution, Metric, Sample
from trackside_daemon.model.state import State
from trackside_daemon.web.exposition import render
from trackside_daemon.web.rank_statistics import RankStatistics, summed

LOSS = f.KNOWN["loss"]
BUCKETS = len(DURATION_BUCKETS) + 1


def page(*samples: Sample, most_ranks: int = 2) -> dict[str, str]:
    state = State(most_ranks)
    state.update(Batch("training:run.0", list(samples)))
    statistics = RankStatistics()
    statistics.apply(state.snapshot(0.0))
    text = render(statistics.apply(state.snapshot(0.0)), openmetrics=False).decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {
        name.removeprefix("trackside_training_"): value for name, _, value in (one.rpartition(" ") for one in lines)
    }


def of_ranks(
    metric: Metric, *values: float | Distribution, run: str = "big", more: tuple[str, ...] = ()
) -> list[Sample]:
    return [Sample(metric, (run, str(rank), *more), value) for rank, value in enumerate(values)]


def statistic(family: str, key: str, name: str, value: str) -> str:
    return f'{name}{{family="trackside_training_{family}",key="{key}",run="big",statistic="{value}"}}'


def test_a_run_with_many_ranks_has_statistics_the_extreme_ranks_and_the_lowest_rank() -> None:
    found = page(*of_ranks(LOSS, 2.0, 1.0, 4.0, 3.0))
    assert found == {
        'loss{rank="0",run="big"}': "2.0",
        **{
            statistic("loss", "", "rank_statistic", name): value
            for name, value in {"min": "1.0", "median": "3.0", "max": "4.0", "sum": "10.0"}.items()
        },
        statistic("loss", "", "extreme_rank", "min"): "1.0",
        statistic("loss", "", "extreme_rank", "max"): "2.0",
    }


def test_the_lowest_rank_is_so_by_its_number() -> None:
    found = page(*(Sample(LOSS, ("big", str(rank)), 1.0) for rank in (10, 9, 11)))
    assert {name for name in found if name.startswith("loss")} == {'loss{rank="9",run="big"}'}


def test_a_run_with_few_ranks_beside_it_stays_as_it_is() -> None:
    found = page(*of_ranks(LOSS, 1.0, 1.0, 1.0), *of_ranks(LOSS, 5.0, 6.0, run="small"))
    assert {name: value for name, value in found.items() if 'run="small"' in name} == {
        'loss{rank="0",run="small"}': "5.0",
        'loss{rank="1",run="small"}': "6.0",
    }
    assert not any(name.startswith("extreme_rank") for name in found)  # all are equal


def test_keys_have_their_own_statistics() -> None:
    samples = [one for key in ("a", "b") for one in of_ranks(f.VALUE, 1.0, 2.0, 3.0, more=(key,))]
    assert {statistic("value", key, "rank_statistic", "max") for key in ("a", "b")} <= page(*samples).keys()


def test_a_key_of_few_of_the_ranks_stays_as_it_is_and_one_of_more_has_statistics() -> None:
    few, more = of_ranks(f.VALUE, *[1.0] * 7, more=("few",)), of_ranks(f.VALUE, *[1.0] * 8, more=("more",))
    found = page(*of_ranks(f.VALUE, *[1.0] * 20, more=("all",)), *few, *more, most_ranks=10)
    assert sum('key="few"' in name for name in found) == 7
    assert statistic("value", "more", "rank_statistic", "max") in found
    assert sum('key="more"' in name for name in found) == 5


def test_families_with_more_than_three_labels_stay_as_they_are() -> None:
    metric = Metric("trackside_model_check", "gauge", "A check.", ("run", "rank", "variant", "measure"))
    assert len(page(*of_ranks(metric, 1.0, 2.0, 3.0, more=("int8", "top")))) == 3


def test_nan_is_no_extreme() -> None:
    found = page(*of_ranks(LOSS, nan, 1.0, 2.0))
    assert found[statistic("loss", "", "rank_statistic", "max")] == "2.0"
    assert found['loss{rank="0",run="big"}'] == "NaN"
    assert page(*of_ranks(LOSS, nan, nan, nan))[statistic("loss", "", "rank_statistic", "max")] == "NaN"


def test_histograms_are_summed_over_the_ranks() -> None:
    one = Distribution((1,) * BUCKETS, 2.0, {5: 1})
    assert summed([one, one]).fine == {5: 2}
    found = page(*of_ranks(f.STEP_DURATION, one, one, one))
    assert found['step_duration_seconds_count{rank="",run="big"}'] == f"{3.0 * BUCKETS}"
    assert found['step_duration_seconds_sum{rank="",run="big"}'] == "6.0"
    assert not any('rank="0"' in name for name in found)


def test_ranks_in_a_state_that_few_have_are_named() -> None:
    running = of_ranks(f.RANK_STATE, *[1.0] * 29, 0.0, more=("running",))
    stalled = of_ranks(f.RANK_STATE, *[0.0] * 29, 1.0, more=("stalled",))
    found = page(*running, *stalled)
    assert found[statistic("rank_state", "running", "rank_statistic", "sum")] == "29.0"
    assert {name for name in found if name.startswith("rank_state")} == {
        'rank_state{rank="0",run="big",state="running"}',
        'rank_state{rank="0",run="big",state="stalled"}',
        'rank_state{rank="29",run="big",state="stalled"}',
    }


def most(state: State) -> object:
    rows = next(rows for rows in RankStatistics().apply(state.snapshot(0.0)) if rows.metric is derived.RANK_STATISTIC)
    return next(value for one, value in zip(rows.series, rows.values, strict=True) if one.labels[-1] == "max")


def test_a_rank_that_goes_leaves_the_statistics() -> None:
    state = State(2)
    state.update(Batch("training:run.0", of_ranks(LOSS, 1.0, 2.0, 3.0)))
    state.update(Batch("training:run.0:3", [Sample(LOSS, ("big", "3"), 9.0)]))
    assert most(state) == 9.0
    state.update(Batch("training:run.0:3", complete=True))
    assert most(state) == 3.0
