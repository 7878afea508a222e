"""Values over a limit: counted, kept off the page, and without effect on other values."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from typing import TYPE_CHECKING

from wire_messages import FakeSession, RunsHarness

from trackside.limits import SESSION_PHASES
from trackside.wire import Device, Memory
from trackside_daemon.training.rank import REFUSED_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from trackside_daemon.model.metric import Distribution


def values(house: RunsHarness) -> dict[str, float | Distribution]:
    return {one.labels[2]: value for one, value in house.page().items() if one.family == "value"}


def test_one_run_too_many_is_counted_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    house = RunsHarness(runs=2)
    late = FakeSession("c", name="late")
    for session in (FakeSession("a", name="one"), FakeSession("b", name="two"), late):
        house.hello(session)
    house.push(late, {"loss": 1.0})
    house.bye(late)
    assert house.runs_in("starting") == ["one", "two"]
    assert house.has("late") == set()
    assert house.rejected() == {"runs": 1.0}
    assert caplog.messages == [
        "run late is over the limit of 2 (runs): it is not on /metrics, nor are further ones",
    ]


def test_an_ended_run_does_not_count_as_live() -> None:
    house = RunsHarness(runs=1)
    for run in ("a", "b", "c"):
        session = house.greet(run, name=run)
        assert house.runs_in("starting") == [run]
        house.bye(session)


def test_a_run_at_the_limit_may_be_started_anew() -> None:
    house = RunsHarness(runs=1)
    house.hello(FakeSession("same"))
    house.hello(FakeSession("same", attempt=1))
    assert house.get("run_info", *info(FakeSession("same"), attempt="1")) == 1.0
    assert house.rejected() == {}


def info(session: FakeSession, attempt: str) -> tuple[str, ...]:
    known = session.identity
    return ("train", known.run, attempt, "1", known.host, known.git_commit, known.framework, known.job_id, "", "")


def test_as_many_ended_runs_as_may_live_are_retained_and_the_oldest_is_removed_first() -> None:
    house = RunsHarness(runs=3)
    for number in range(20):
        session = FakeSession(str(number), name=f"run-{number}")
        house.hello(session)
        house.bye(session)
        house.after += 1
    assert house.runs_in("finished") == ["run-17", "run-18", "run-19"]
    assert sum(session.attached for session in house.sessions.values()) == 3
    assert house.rejected() == {"runs": 17.0}


def test_keys_over_the_limit_of_a_rank_are_counted_once_each_and_not_shown() -> None:
    house = RunsHarness(keys=3)
    session = house.greet()
    for _ in range(4):
        house.push(session, {f"key-{number}": 1.0 for number in range(5)})
    assert set(values(house)) == {"key-0", "key-1", "key-2"}
    assert house.rejected() == {"keys": 2.0}


def test_series_over_the_limit_in_all_are_counted() -> None:
    house = RunsHarness(series=3)
    for run in ("a", "b"):
        session = house.greet(run, name=run)
        house.push(session, {"one": 1.0, "two": 2.0})
    assert len([one for one in house.page() if one.family == "value"]) == 3
    assert house.rejected() == {"series": 1.0}


def test_ranks_that_share_statistics_count_as_these() -> None:
    house = RunsHarness(ranks=2, series=14)
    for number in range(10):
        session = house.greet(rank=number, world=10)
        house.push(session, {"one": 1.0, "two": 2.0, f"own-{number // 9}": 3.0})
    assert "series" in house.rejected()
    assert sum(one.labels[-1] == "two" for one in house.page() if one.family == "value") == 10


def test_families_of_their_own_are_never_crowded_out() -> None:
    house = RunsHarness(keys=1, series=1)
    session = house.greet()
    known = ("loss", "accuracy", "learning_rate", "grad_norm", "epoch")
    house.push(session, {f"key-{number}": 1.0 for number in range(100)} | dict.fromkeys(known, 0.5))
    assert [house.get(key) for key in known] == [0.5] * 5
    assert house.get("step") == 1.0
    assert len(values(house)) == 1


def test_a_key_longer_than_a_label_may_be_is_counted() -> None:
    house = RunsHarness(label_bytes=16)
    session = house.greet()
    house.push(session, {"é" * 8: 1.0, "é" * 8 + "x": 2.0})
    assert set(values(house)) == {"é" * 8}
    assert house.rejected() == {"label_length": 1.0}


def test_no_label_of_a_run_is_longer_than_allowed() -> None:
    house = RunsHarness(label_bytes=16)
    long = "x" * 1000
    house.hello(FakeSession(long, name=long, host=long, git_commit=long, framework=long, job_id=long))
    assert max(len(label) for one in house.page() for label in one.labels) == 16


def test_short_labels_do_not_make_a_process_here_one_of_another_machine() -> None:
    house = RunsHarness(label_bytes=16)
    house.hello(FakeSession())
    house.wait(1000)
    assert house.state_of() == "starting"


def test_the_series_of_a_run_that_was_forgotten_make_room_for_others() -> None:
    house = RunsHarness(series=2)
    first, second = FakeSession("a", name="first"), FakeSession("b", name="second")
    for session in (first, second):
        house.hello(session)
        house.push(session, {"one": 1.0, "two": 2.0})
    assert "value" not in house.has("second")
    house.bye(first)
    house.wait(61)
    house.push(second, {"three": 3.0})
    assert house.get("value", "second", "0", "three") == 3.0


def test_sessions_over_the_limit_are_counted_and_their_run_is_not_shown() -> None:
    house = RunsHarness(sessions=5)
    for _ in range(20):
        house.hello(FakeSession("same"))
    assert sum(session.attached for session in house.sessions.values()) == 5
    assert house.rejected() == {"sessions": 15.0}


def test_each_limit_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    house = RunsHarness(runs=1, keys=1)
    session = house.greet("a", name="a")
    with caplog.at_level(logging.WARNING, "trackside"):
        for number in range(5):
            house.push(session, {f"key-{number}": 1.0})
            house.hello(FakeSession(str(number), name="b"))
    assert caplog.messages == [
        "run b is over the limit of 1 (runs): it is not on /metrics, nor are further ones",
        "key key-1 of run a is over the limit of 1 (keys): it is not on /metrics, nor are further ones",
    ]


def test_a_training_that_invents_keys_without_end_fills_no_memory(
    count: Callable[[int, int], int],
) -> None:
    house = RunsHarness(keys=10)
    session = house.greet()
    house.push(session, {f"loss/{number}": float("nan") for number in range(10)})
    house.push(session, {f"refused/{number}": 1.0 for number in range(REFUSED_KEYS + 10)})

    def invent(first: int, last: int) -> int:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(first, last):
            house.push(
                session, {f"loss/{number}": float("nan")}, nonfinite={f"loss/{one}": 1 for one in range(number)[-50:]}
            )
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        invent(0, 200)
        grown = invent(200, count(1000, 100_000))
    finally:
        tracemalloc.stop()
    assert grown < 50_000
    assert house.rejected()["keys"] > 200
    assert len(values(house)) == 10
    assert {one.labels[2] for one in house.page() if one.family == "nonfinite_total"} == set(values(house))


def test_a_key_without_a_series_has_no_nonfinite_counter_either() -> None:
    house = RunsHarness(keys=1)
    session = house.greet()
    house.push(session, {"a": float("nan"), "b": float("nan")}, nonfinite={"a": 1, "b": 1})
    assert house.get("nonfinite_total", "train", "0", "a") == 1.0
    assert house.get("nonfinite_total", "train", "0", "b") is None


def test_phases_and_devices_are_bounded_over_all_sessions_of_a_rank() -> None:
    house = RunsHarness()
    house.hello(FakeSession(rank=1))
    for number in range(4):
        session, other = FakeSession(), FakeSession()
        for one in (session, other):  # two at once, and when they have ended the next two
            house.hello(one)
            names = [f"{number}/{one.id.hex()}/{place}" for place in range(SESSION_PHASES + 1)]
            memory = dict.fromkeys(names, Memory(1))
            house.push(one, {"loss": 1.0}, phases=dict.fromkeys(names, 1.0), device=Device(memory=memory))
        for one in (session, other):
            house.bye(one)
    shown = [one.family for one in house.page()]
    assert shown.count("phase_seconds_total") == shown.count("device_memory_allocated_bytes") == SESSION_PHASES + 1
