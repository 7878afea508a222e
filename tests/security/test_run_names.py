"""No session of one user raises alerts under the name of another user's run, also when its own run is not on the page."""

from __future__ import annotations

import pytest
from ingest.conftest import SessionsHarness
from msgspec.structs import replace
from wire_messages import FakeSession

from trackside_daemon.ingest.connection import Connection
from trackside_daemon.model.records import SessionOpened

ALICE, MALLORY = Connection(b"alice", 61002), Connection(b"mallory", 61003)
ALICE_NAME, MALLORY_NAME = "61002", "61003"


@pytest.fixture
def desk() -> SessionsHarness:
    return SessionsHarness()


def receive(desk: SessionsHarness, connection: Connection, frames: list[bytes]) -> list[bytes]:
    answers, batches = desk.sessions.receive(connection, frames, desk.house.now)
    desk.house.accept(batches)
    return [answer[1] for answer in answers]


def greet(desk: SessionsHarness, connection: Connection, session: FakeSession, *, late: bool = False) -> None:
    receive(desk, connection, session.frames("hello", replace(session.hello(), late=late)))


def names(desk: SessionsHarness) -> list[str]:
    return [record.session.name for record in desk.house.records if isinstance(record, SessionOpened)]


def users(desk: SessionsHarness) -> dict[str, str]:
    """Return the user of each run on the page, by its name."""
    return {key.labels[0]: key.labels[-1] for key in desk.house.page() if key.family == "run_info"}


def late_end(desk: SessionsHarness, connection: Connection, run: str) -> None:
    session = FakeSession(run)
    greet(desk, connection, session, late=True)
    receive(desk, connection, session.frames("bye", session.bye("failed"), 1))


@pytest.mark.parametrize("ended", [False, True])
def test_a_late_session_gets_no_name_of_another_users_run(desk: SessionsHarness, *, ended: bool) -> None:
    session = FakeSession()
    greet(desk, ALICE, session)
    if ended:
        receive(desk, ALICE, session.frames("bye", session.bye(), 1))
    late_end(desk, MALLORY, "id-2")
    assert names(desk) == ["train", "train-2"]
    assert users(desk) == {"train": ALICE_NAME, "train-2": MALLORY_NAME}
    assert desk.house.state_of("train") == ("finished" if ended else "starting")


def test_a_missed_end_retains_its_user_and_gives_way_only_to_the_same(desk: SessionsHarness) -> None:
    late_end(desk, ALICE, "id-1")
    greet(desk, MALLORY, FakeSession("id-2"))
    assert users(desk) == {"train": ALICE_NAME, "train-2": MALLORY_NAME}
    assert desk.house.state_of("train") == "failed"
    greet(desk, ALICE, FakeSession("id-3"))
    assert desk.house.state_of("train") == "starting"


def test_a_session_that_is_not_on_the_page_gets_no_name_of_another_users_run(desk: SessionsHarness) -> None:
    greet(desk, ALICE, FakeSession())
    greet(desk, MALLORY, FakeSession("id-2", name="other", attempt=5))
    greet(desk, MALLORY, FakeSession("id-2"))
    greet(desk, ALICE, FakeSession(attempt=1))
    greet(desk, ALICE, FakeSession())  # of the same owner a name may stay
    assert names(desk) == ["train", "other", "train-2", "train", "train"]


@pytest.mark.parametrize("late", [False, True])
def test_a_name_that_another_users_run_gets_later_is_lost(desk: SessionsHarness, *, late: bool) -> None:
    greet(desk, MALLORY, FakeSession("id-2", name="other", attempt=5))
    session = FakeSession("id-2")
    greet(desk, MALLORY, session, late=late)
    greet(desk, ALICE, FakeSession())
    assert len(receive(desk, MALLORY, session.batch(1))) == 1  # it has to greet again
    greet(desk, MALLORY, session, late=late)
    assert receive(desk, MALLORY, session.batch(1)) == []
    assert names(desk) == ["other", "train", "train", "train-2"]
