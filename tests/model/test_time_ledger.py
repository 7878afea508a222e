"""The ledger: every second of the wall time is in one account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside_daemon.model.records import Account
from trackside_daemon.model.time_ledger import RankSpan, Slowed, excess, ledger, own_times, waits

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS = st.floats(0, 1000)


def whole(spans: list[RankSpan], lost: Sequence[Slowed] = ()) -> dict[str, float]:
    """Return the means over the ranks."""
    return ledger(spans, lost).whole


def span(attempt: int = 0, rank: int = 0, began: float = 0.0, **fields: Any) -> RankSpan:
    """Return a rank of an attempt of 100 seconds that pushed from its second 5 to its second 95."""
    usual = RankSpan(attempt, rank, began, began + 100, began + 5, began + 95, {}, Account())
    return usual._replace(**fields)


@st.composite
def attempts(draw: st.DrawFn) -> list[RankSpan]:
    spans, now = [], 0.0
    for attempt in range(draw(st.integers(1, 3))):
        now += draw(SECONDS)
        ended = now + draw(SECONDS)
        for rank in range(draw(st.integers(1, 3))):
            pushes = sorted(draw(st.lists(st.floats(now - 5, ended + 5), min_size=2, max_size=2)))
            first, last = draw(st.sampled_from([(None, None), tuple(pushes)]))
            phases = draw(st.dictionaries(st.sampled_from(["data", "eval", "save", "forward", "other"]), SECONDS))
            account = Account(draw(SECONDS), draw(SECONDS), draw(st.booleans()))
            spans.append(RankSpan(attempt, rank, now, ended, first, last, phases, account))
        now = ended
    return spans


@st.composite
def slowed(draw: st.DrawFn) -> Slowed:
    began = draw(SECONDS)
    return Slowed(draw(st.sampled_from(["throttled", "wasted"])), began, began + draw(SECONDS), draw(st.floats(0, 1)))


@given(attempts(), st.lists(slowed(), max_size=3))
def test_the_ledger_sums_to_the_wall_time_and_no_account_is_negative(spans: list[RankSpan], lost: list[Slowed]) -> None:
    entries = whole(spans, lost)
    wall = spans[-1].ended - spans[0].started
    assert abs(sum(entries.values()) - wall) <= 1e-6 * wall + 1e-9
    assert all(seconds > 0 for seconds in entries.values())


def test_start_and_end_are_the_time_before_the_first_and_after_the_last_push() -> None:
    assert whole([span()]) == {"compute": 90, "start": 5, "idle_after": 5}


def test_phases_are_subtracted_from_the_time_between_the_pushes() -> None:
    entries = whole([span(phases={"data": 20, "checkpoint": 8, "save": 2, "validation": 9, "forward": 30})])
    assert entries == {"compute": 51, "data": 20, "checkpoint": 10, "eval": 9, "start": 5, "idle_after": 5}


def test_phases_before_the_first_push_and_after_the_last_one_are_subtracted_there() -> None:
    outside = span(
        phases={"eval": 7, "data": 9, "save": 2}, before={"eval": 1, "data": 3}, after={"eval": 3, "save": 2}
    )
    assert whole([outside]) == {"compute": 81, "data": 9, "eval": 7, "checkpoint": 2, "start": 1}
    compiled = span(phases={"eval": 7, "compile": 9}, before={"compile": 2})
    assert whole([compiled]) == {"compute": 76, "eval": 7, "start": 5 + 7, "idle_after": 5}, "also in later steps"
    much = span(phases={"eval": 50}, before={"eval": 20}, after={"eval": 20}, account=Account(stall=3))
    assert whole([much]) == {"eval": 5 + 10 + 2, "stall": 3, "compute": 80}


def test_a_stall_at_the_end_begins_with_the_last_push_and_is_no_idle_end() -> None:
    entries = whole([span(last=40.0, account=Account(stall=55))])
    assert entries == {"stall": 60, "compute": 35, "start": 5}


def test_a_rank_that_lives_is_within_a_step_or_stands_still_and_never_idle_after_its_last_step() -> None:
    assert whole([span(lives=True, usual=2.0)]) == {"compute": 95, "start": 5}
    assert whole([span(last=40.0, lives=True, usual=2.0)]) == {"stall": 60, "compute": 35, "start": 5}
    pause = span(last=40.0, lives=True, usual=2.0, phases={"eval": 58}, after={"eval": 58})
    assert whole([pause]) == {"eval": 58, "compute": 37, "start": 5}, "an evaluation is no stall"


def test_a_restart_is_a_gap_a_start_and_repeated_steps() -> None:
    again = span(attempt=1, began=130.0, account=Account(restart=30 + 5 + 20, caught=True), phases={"data": 45})
    entries = whole([span(), again])
    assert entries["gap"] == 30
    assert entries["repeated"] == 20
    assert abs(entries["data"] - 45 * 70 / 90) < 1e-9, "the waits of the repeated steps are a part of them"
    assert sum(entries.values()) == 230


def test_ranks_wait_for_the_slowest_one() -> None:
    spans = [span(rank=rank, phases={"forward": seconds}) for rank, seconds in ((0, 20), (1, 20), (2, 50), (3, 20))]
    assert whole(spans)["communication"] == 3 * 30 / 4


def test_a_rank_that_reports_its_waits_is_not_slow_by_them() -> None:
    spans = [
        span(rank=0, phases={"forward": 20, "backward": 30, "all_reduce": 20}),
        span(rank=1, phases={"forward": 20, "backward": 50}),
    ]
    assert whole(spans)["communication"] == (70 - 50) / 2


def test_a_rank_without_pushes_is_starting() -> None:
    assert whole([span(first=None, last=None)]) == {"start": 100}


def test_slow_stretches_take_their_share_of_the_compute_time() -> None:
    entries = whole([span()], [Slowed("wasted", 50, 1000, 1.0), Slowed("throttled", 5, 50, 0.5)])
    assert entries == {"wasted": 45, "throttled": 22.5, "compute": 22.5, "start": 5, "idle_after": 5}


def test_a_rank_that_generates_has_an_account_for_each_role() -> None:
    phases = {"generate": 50.0, "reward": 10.0, "refit": 5.0, "backward": 10.0, "wait": 2.0}
    entries = whole([span(phases=phases)])
    roles = {"generate": 50, "reward": 10, "weight_sync": 5, "wait": 2}
    assert entries == {**roles, "compute": 23, "start": 5, "idle_after": 5}


def test_phases_of_these_names_in_a_supervised_training_are_compute() -> None:
    assert whole([span(phases={"reward": 10.0, "wait": 5.0})])["compute"] == 90


def of_four(phase: str, waiting: str) -> list[dict[str, float]]:
    """Return the seconds by phase of four ranks: rank 2 works 60 longer in a phase, and the others wait for it elsewhere."""
    work = {"data": 1.0, "forward": 10.0, "backward": 20.0, "optimizer": 1.0, "other": 2.0, "eval": 5.0}
    ranks = [work | {"forward": 10.0 + 0.1 * rank} for rank in range(4)]
    for rank, phases in enumerate(ranks):
        slower = phase if rank == 2 else waiting
        if waiting.startswith("own"):
            phases["sync"] = 0.1
        phases[slower] = phases.get(slower, 0.0) + 60.0
    return ranks


@pytest.mark.parametrize(
    ("waiting", "phases"),
    [
        ("sync", ("data", "forward", "backward", "optimizer", "other", "augmentation")),
        ("backward", ("data", "forward", "optimizer", "other", "augmentation")),  # the end of DDP's
        ("other", ("data", "forward")),  # as where the host reads what a GPU has computed
        ("own all-reduce", ("data", "forward", "backward", "optimizer")),  # beside a `sync` that contains no wait
    ],
)
def test_the_rank_that_the_others_wait_for_is_found_whatever_it_does_and_wherever_they_wait(
    waiting: str, phases: tuple[str, ...]
) -> None:
    for phase in phases:
        ranks = of_four(phase, waiting)
        own = own_times(ranks)
        assert (own.index(max(own)), excess(ranks, 2).phase) == (2, phase)
        spans = [span(rank=rank, phases=each) for rank, each in enumerate(ranks)]
        waited = [one["communication"] for one in waits(spans)]
        assert waited[2] == 0
        assert all(one > 20 for one in waited[:2] + waited[3:])


def test_what_a_rank_does_outside_of_its_steps_is_no_time_of_its_own() -> None:
    starts_late = span(rank=1, phases={"forward": 30, "other": 50, "sync": 1}, before={"other": 40}, after={"other": 5})
    usual = span(phases={"forward": 30, "other": 5, "sync": 1})
    assert [one["communication"] for one in waits([usual, starts_late])] == [0, 0]


def test_the_excess_of_a_rank_in_words() -> None:
    words = {phase: excess(of_four(phase, "sync"), 2).text(2, 1000) for phase in ("data", "optimizer", "other")}
    assert words == {
        "data": "rank 2 waits 61 ms for its data, the others 1 ms",
        "optimizer": "rank 2 takes 60 ms longer in optimizer",
        "other": "rank 2 takes 60 ms longer outside of any phase",
    }
