"""Live runs in the API."""

from __future__ import annotations

import json
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest
from wire_messages import WALL, FakeSession, RunsHarness

from trackside_daemon.model.families import daemon
from trackside_daemon.model.metric import Batch, Sample
from trackside_daemon.model.state import State
from trackside_daemon.web.api import state_json as api

if TYPE_CHECKING:
    from collections.abc import Callable


def live_runs(house: RunsHarness) -> list[dict[str, Any]]:
    """Return a document as JSON carries it, which has no NaN."""
    reported = api.live_runs(house.state, house.now.monotonic)
    found: list[dict[str, Any]] = json.loads(json.dumps(reported, allow_nan=False))
    return found


def test_without_runs_the_list_is_empty(api: Callable[[str], Any]) -> None:
    assert api("runs") == {"runs": [], "next": None}


def test_the_status_is_what_the_daemon_reports(api: Callable[[str], Any]) -> None:
    assert api("status") == {"version": "1"}


def test_the_runs_are_answered_as_json(api: Callable[[str], Any], house: RunsHarness) -> None:
    house.hello(FakeSession())
    (run,) = api("runs")["runs"]
    assert run["name"] == "train"


def test_a_run_names_itself_and_the_state_of_each_rank(house: RunsHarness) -> None:
    session = FakeSession("id-7", host="box", git_commit="abc", framework="torch 2", job_id="9", world=2, local_world=2)
    house.hello(session, total_steps=10)
    house.push(session, {"loss": 2.5}, step=5)
    assert live_runs(house) == [
        {
            "id": "id-7",
            "name": "train",
            "state": "running",
            "attempt": 0,
            "world_size": 2,
            "host": "box",
            "git_commit": "abc",
            "framework": "torch 2",
            "job_id": "9",
            "user": "",
            "source": "",
            "ranks": [
                {
                    "rank": 0,
                    "state": "running",
                    "step": 5.0,
                    "loss": 2.5,
                    "progress": 0.5,
                    "started": WALL,
                    "last_step": WALL,
                }
            ],
        }
    ]


@pytest.mark.parametrize(("loss", "written"), [(nan, "nan"), (inf, "inf"), (-inf, "-inf"), (1e300, 1e300), (-0.0, 0.0)])
def test_a_loss_that_json_cannot_hold_is_a_text(house: RunsHarness, loss: float, written: object) -> None:
    session = FakeSession()
    house.hello(session)
    house.push(session, {"loss": loss})
    assert live_runs(house)[0]["ranks"][0]["loss"] == written


def test_ranks_are_in_order_of_their_numbers(house: RunsHarness) -> None:
    for rank in (10, 2, 0, 1):
        house.hello(FakeSession(rank=rank, world=16, local_world=16))
    assert [rank["rank"] for rank in live_runs(house)[0]["ranks"]] == [0, 1, 2, 10]


def test_the_newest_run_comes_first(house: RunsHarness) -> None:
    for name in ("first", "second", "third"):
        session = FakeSession(name, name=name)
        hello = session.hello(house.after)
        hello.started += round(house.after * 1e9)
        house.open(session.id, hello)
        house.after += 10.0
    assert [run["name"] for run in live_runs(house)] == ["third", "second", "first"]


def test_of_a_run_that_ended_only_the_end_is_left_after_it_lingered_without_any_scrape(house: RunsHarness) -> None:
    session = FakeSession()
    house.hello(session)
    house.push(session, {"loss": 2.5})
    house.bye(session)
    assert live_runs(house)[0]["ranks"][0]["loss"] == 2.5
    house.after = 61.0
    (run,) = live_runs(house)
    assert run["state"] == "finished"
    assert run["ranks"] == [{"rank": 0, "state": None, "ended": WALL}]
    house.after = 901.0
    assert live_runs(house) == []


def test_families_are_listed_by_label_or_as_one_number() -> None:
    state = State()
    samples = [
        Sample(daemon.INGEST_MESSAGES, ("hello",), 2),
        Sample(daemon.INGEST_MESSAGES, ("batch",), nan),
        Sample(daemon.INGEST_DUPLICATES, (), 3),
    ]
    state.update(Batch("ingest", samples))
    assert api.family_values(state, 0.0, daemon.INGEST_MESSAGES, daemon.INGEST_DUPLICATES) == {
        "trackside_ingest_messages_total": {"hello": 2.0, "batch": "nan"},
        "trackside_ingest_duplicates_total": 3.0,
    }
    assert api.family_values(State(), 0.0, daemon.INGEST_DUPLICATES) == {"trackside_ingest_duplicates_total": None}
