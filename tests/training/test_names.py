"""Name under which a run is exported, and the number of its attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wire_messages import FakeSession, RunsHarness

if TYPE_CHECKING:
    from collections.abc import Callable


def attempts(house: RunsHarness, run: str = "train") -> list[str]:
    return [one.labels[2] for one in house.page() if one.family == "run_info" and one.labels[0] == run]


def test_a_second_live_run_of_a_name_gets_a_number(house: RunsHarness) -> None:
    for number, run in enumerate(("a", "b", "c")):
        session = house.greet(run)
        house.push(session, {"loss": float(number)})
    assert [house.get("loss", name, "0") for name in ("train", "train-2", "train-3")] == [0.0, 1.0, 2.0]


def test_a_number_is_free_again_when_its_run_has_ended(house: RunsHarness) -> None:
    first, second = FakeSession("a"), FakeSession("b")
    house.hello(first)
    house.hello(second)
    house.bye(first)
    house.hello(FakeSession("c"))
    assert house.runs_in("starting") == ["train-2", "train"]


def test_a_number_in_a_name_is_not_mistaken_for_a_second_run(house: RunsHarness) -> None:
    for run, name in (("a", "train"), ("b", "train-2"), ("c", "train")):
        house.hello(FakeSession(run, name=name))
    assert sorted(house.runs_in("starting")) == ["train", "train-2", "train-3"]


def test_an_ended_run_makes_room_for_one_of_its_name_at_once(house: RunsHarness) -> None:
    first = house.greet("a")
    house.push(first, {"loss": 1.0, "other": 2.0})
    house.bye(first)
    house.hello(FakeSession("b"))
    assert house.has("train") == {*house.has("train")} - {"loss", "value", "end_timestamp_seconds"}
    assert [one.labels[1] for one in house.page() if one.family == "run_info"] == ["b"]
    assert house.state_of() == "starting"


def test_a_lost_run_makes_room_too(house: RunsHarness) -> None:
    house.hello(FakeSession("a", boot="another"))
    house.wait(30)
    house.hello(FakeSession("b"))
    assert house.runs_in("starting") == ["train"]
    assert house.runs_in("lost") == []


def test_of_several_nodes_the_newer_run_replaces_the_living_one(house: RunsHarness) -> None:
    first = house.greet("a", world=16, local_world=8)
    house.push(first, {"loss": 1.0})
    house.hello(FakeSession("b", world=16, local_world=8))
    assert house.runs_in("starting") == ["train"]
    assert house.get("loss") is None
    house.push(first, {"loss": 0.5})
    assert house.get("loss") is None, "messages of the replaced run are ignored"


def test_a_long_name_is_cut_at_a_character_and_still_gets_its_number(house: RunsHarness) -> None:
    for run in ("a", "b"):
        house.hello(FakeSession(run, name="é" * 200))
    first, second = house.runs_in("starting")
    assert (first, second) == ("é" * 128, "é" * 124 + "-2")


def test_the_id_of_an_ended_run_resumes_it_as_the_next_attempt(house: RunsHarness) -> None:
    for attempt in ("0", "1", "2"):
        session = house.greet("same")
        assert attempts(house) == [attempt]
        house.push(session, {"loss": 1.0})
        assert house.get("steps_total") == 1.0, "the counters of an attempt are its own"
        house.bye(session)


def test_a_launchers_restart_is_a_new_attempt_at_once(house: RunsHarness) -> None:
    before = [FakeSession("same", rank=rank, world=2, local_world=2) for rank in range(2)]
    for session in before:
        house.hello(session)
        house.push(session, {"loss": 1.0})
    house.greet("same", attempt=1, world=2, local_world=2)
    assert attempts(house) == ["1"]
    assert house.state_of() == "starting"
    assert house.get("loss", "train", "1") is None, "the old attempt's ranks are gone"


def test_messages_of_an_old_attempt_are_ignored(house: RunsHarness) -> None:
    old, new = FakeSession("same"), FakeSession("same", attempt=1)
    house.hello(old)
    house.hello(new)
    house.push(new, {"loss": 1.0})
    house.push(old, {"loss": 9.0})
    house.bye(old, "failed")
    house.hello(old, last={"loss": 9.0}, step=1, progress_age=0)
    house.hello(FakeSession("same", rank=3))
    assert house.get("loss") == 1.0
    assert house.state_of() == "running"
    assert attempts(house) == ["1"]


def test_the_ranks_of_a_resumed_run_find_each_other_in_any_order(house: RunsHarness) -> None:
    for attempt in ("0", "1"):
        ranks = [FakeSession("same", rank=rank, world=4, local_world=4) for rank in (2, 0, 3, 1)]
        for session in ranks:
            house.hello(session)
            assert attempts(house) == [attempt]
        assert {one.labels[1] for one in house.page() if one.family == "rank_state"} == {"0", "1", "2", "3"}
        for session in ranks:
            house.bye(session)


def test_a_run_that_was_killed_and_started_anew_is_a_new_attempt_without_waiting(
    house: RunsHarness, start_process: Callable[[], Any]
) -> None:
    killed = [start_process() for _ in range(2)]
    for rank, process in enumerate(killed):
        house.hello(FakeSession("same", rank=rank, world=2, local_world=2, **process.identity))
    for process in killed:
        process.kill()
    for rank in range(2):
        house.hello(FakeSession("same", rank=rank, world=2, local_world=2))
        assert attempts(house) == ["1"]
    assert house.runs_in("starting") == ["train"]


def test_a_rank_that_was_restarted_beside_living_ones_continues_in_the_same_attempt(
    house: RunsHarness, process: Any
) -> None:
    survivor = FakeSession("same", rank=1, world=2, local_world=2)
    house.hello(FakeSession("same", world=2, local_world=2, **process.identity))
    house.hello(survivor)
    house.push(survivor, {"loss": 1.0})
    process.kill()
    house.hello(FakeSession("same", world=2, local_world=2))
    house.push(survivor, {"loss": 0.5})
    assert attempts(house) == ["0"]
    assert (house.state_of(rank="0"), house.get("loss", "train", "1")) == ("starting", 0.5)


def test_two_sessions_of_one_rank_are_one_run(house: RunsHarness) -> None:
    both = [FakeSession("same"), FakeSession("same")]
    for session in both:
        house.hello(session)
    for session in both:
        assert house.state_of() == "starting"
        house.bye(session)
    assert house.state_of() == "finished"
    assert attempts(house) == ["0"]


def test_a_run_begins_again_after_it_was_forgotten(house: RunsHarness) -> None:
    session = house.greet("same")
    house.bye(session)
    house.wait(901)
    house.hello(FakeSession("same"))
    assert attempts(house) == ["0"]
