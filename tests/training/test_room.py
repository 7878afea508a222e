"""Shared memory, file descriptors and pods that ranks report, and the series and records made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from wire_messages import FakeSession, RunsHarness

from trackside.wire import ProcessInfo, ResourceUsage, Totals

if TYPE_CHECKING:
    from trackside_daemon.model.rank_process import RankProcess

GIB = 2**30
ROOM = ResourceUsage(8 * GIB, 2 * GIB, 3 * GIB, 300, 1024)
PAGE = {
    "shm_size_bytes": 8 * GIB,
    "shm_used_bytes": 2 * GIB,
    "shm_peak_bytes": 3 * GIB,
    "open_fds": 300,
    "max_fds": 1024,
}


@pytest.fixture
def session(house: RunsHarness) -> FakeSession:
    """Rank 2 of a run."""
    return house.greet(rank=2)


def room_of(house: RunsHarness) -> dict[str, float]:
    """Return the resource series of the rank that are on the page."""
    known = {family: house.get(family, "train", "2") for family in PAGE}
    return {family: value for family, value in known.items() if isinstance(value, (int, float))}


def member(house: RunsHarness) -> RankProcess:
    """Return the process, after a tick."""
    house.wait(0.0)
    (one,) = house.processes.get()
    return one


def push(
    house: RunsHarness, session: FakeSession, room: ResourceUsage | None, after: float, *, late: bool = False
) -> None:
    """Push a batch that reports resource usage."""
    reported = replace(session.pushes({"loss": 1.0}, after=after), room=room)
    house.ingest(session.id, reported, late=late)


def test_beats_and_batches_put_it_on_the_page(house: RunsHarness, session: FakeSession) -> None:
    assert room_of(house) == {}
    house.beat(session, room=ROOM)
    assert room_of(house) == PAGE
    assert member(house).room == ROOM
    house.beat(session, totals=Totals(pushes=7), room=replace(ROOM, open_fds=4))
    assert room_of(house) == {**PAGE, "open_fds": 4}
    push(house, session, ROOM, 1.0)
    assert room_of(house) == PAGE


def test_a_value_that_is_not_sent_is_absent_and_stays_as_it_was(house: RunsHarness, session: FakeSession) -> None:
    house.beat(session, room=ResourceUsage(open_fds=5))
    house.beat(session)
    push(house, session, None, 1.0)
    assert room_of(house) == {"open_fds": 5}


def test_what_comes_late_is_no_news(house: RunsHarness, session: FakeSession) -> None:
    push(house, session, ROOM, 0.0, late=True)
    assert room_of(house) == {}
    assert member(house).room is None


def test_a_batch_that_comes_again_behind_a_beat_undoes_nothing(house: RunsHarness, session: FakeSession) -> None:
    house.after = 5.0
    house.beat(session, room=ROOM)
    push(house, session, ResourceUsage(1, 1, 1, 1, 1), 4.0)
    assert room_of(house) == PAGE
    push(house, session, ResourceUsage(open_fds=1), 6.0)
    assert room_of(house) == {**PAGE, "open_fds": 1}


def test_it_ends_with_the_other_series_of_its_rank(house: RunsHarness, session: FakeSession) -> None:
    house.beat(session, room=ROOM)
    house.bye(session)
    house.wait(59.0)
    assert room_of(house) == PAGE
    house.wait(2.0)
    assert room_of(house) == {}


def test_an_unknown_member_reports_nothing(house: RunsHarness) -> None:
    house.beat(FakeSession(rank=2), room=ROOM)
    assert room_of(house) == {}


def test_a_member_is_in_the_pod_that_it_names(house: RunsHarness, session: FakeSession) -> None:
    assert member(house)[-7:-4] == ("", "", "")
    house.hello(session, about=ProcessInfo(k8s_pod="train-0", k8s_namespace="ml", k8s_container="main"))
    assert member(house)[-7:-4] == ("train-0", "ml", "main")


def test_the_name_of_a_pod_is_cut_for_a_label() -> None:
    house = RunsHarness(label_bytes=16)
    house.hello(FakeSession(), about=ProcessInfo(k8s_pod="é" * 100))
    assert member(house).k8s_pod == "é" * 8
