"""A hello or a bye with texts of megabytes fills neither the memory nor the log, and an owner's attempts not the log."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import pytest
from ingest.conftest import PEER, SessionsHarness
from msgspec.structs import replace
from wire_messages import FakeSession

from trackside.environment.config import CONFIG_BYTES
from trackside.environment.process_info import COMMAND_BYTES, NAME_LENGTH, PACKAGES, VARIABLES
from trackside.wire import ProcessInfo, Totals
from trackside_daemon.ingest.connection import Connection
from trackside_daemon.ingest.messages import MessageLimits
from trackside_daemon.model.records import SessionOpened
from trackside_daemon.training.admission import MAX_INT32, NEW_RUNS_BURST, NEW_RUNS_RATE

LONG = "A" * 2**21
IDENTITIES: list[dict[str, Any]] = [
    *({name: LONG} for name in ("name", "host", "boot", "job_id", "git_commit", "framework")),
    {"gpus": (LONG,)},
    {"gpus": tuple(map(str, range(100_000)))},
]
PARTS: list[dict[str, Any]] = [
    {"config": json.dumps(LONG)},
    {"tags": (LONG,)},
    {"about": ProcessInfo(command=(LONG,))},
    {"about": ProcessInfo(packages={LONG: "1"})},
]
BYES: list[dict[str, Any]] = [{"status": LONG}, {"cause": LONG}, {"totals": Totals(nonfinite={LONG: 1})}]


@pytest.fixture
def desk() -> SessionsHarness:
    """An ingest with a run at attempt 5, so that sessions of earlier attempts are over the limit of its page."""
    desk = SessionsHarness()
    desk.greet(FakeSession("id-1", attempt=5))
    return desk


def grown(desk: SessionsHarness, identity: dict[str, Any], bye: dict[str, Any], **more: Any) -> int:
    """Return by how many bytes a session over the limit lets the memory grow, with what goes to the history."""

    def session() -> None:
        speaker = FakeSession("id-1", **identity)
        assert [answer.kind for answer in desk.receive(*speaker.frames("hello", speaker.hello(**more)))] == ["welcome"]
        desk.receive(*speaker.frames("bye", replace(speaker.bye(), **bye), 1))

    session()  # what is allocated once
    tracemalloc.start()
    try:
        session()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("identity", IDENTITIES, ids=lambda fields: next(iter(fields)))
@pytest.mark.parametrize("late", [False, True])
def test_texts_of_an_identity_do_not_stay_in_memory(
    desk: SessionsHarness, identity: dict[str, Any], *, late: bool
) -> None:
    assert grown(desk, identity, {}, late=late) < 50_000


@pytest.mark.parametrize("more", PARTS, ids=lambda fields: next(iter(fields)))
def test_other_parts_of_a_hello_do_not_stay_in_memory(desk: SessionsHarness, more: dict[str, Any]) -> None:
    assert grown(desk, {}, {}, **more) < 50_000


@pytest.mark.parametrize("bye", BYES, ids=lambda fields: next(iter(fields)))
@pytest.mark.parametrize("late", [False, True])
def test_a_bye_does_not_stay_in_memory(desk: SessionsHarness, bye: dict[str, Any], *, late: bool) -> None:
    assert grown(desk, {}, bye, late=late) < 50_000


def test_what_a_client_sends_at_most_is_stored(desk: SessionsHarness) -> None:
    speaker = FakeSession("id-2")
    command = ("A" * (COMMAND_BYTES - 1),)
    packages = {f"{number:256}": "1" * 64 for number in range(PACKAGES)}
    environ = {f"{number:{NAME_LENGTH}}": "1" * NAME_LENGTH for number in range(VARIABLES)}
    sent: dict[str, Any] = {
        "config": json.dumps("A" * (CONFIG_BYTES - 2)),
        "tags": tuple(map(str, range(1000))),
        "about": ProcessInfo(command, "/" * 4096, packages=packages, environ=environ),
    }
    desk.receive(*speaker.frames("hello", speaker.hello(**sent)))
    opened = next(one for one in desk.house.records if isinstance(one, SessionOpened) and one.session.id == speaker.id)
    assert {name: getattr(opened.hello, name) for name in sent} == sent


def test_numbers_of_a_process_are_those_that_the_system_can_have(desk: SessionsHarness) -> None:
    speaker = FakeSession("id-2", pid=2**63 - 1, local_rank=2**63 - 1)
    desk.greet(speaker)
    opened = next(one for one in desk.house.records if isinstance(one, SessionOpened) and one.session.id == speaker.id)
    assert (opened.hello.identity.pid, opened.hello.identity.local_rank, opened.session.process.pid) == (MAX_INT32,) * 3


def test_long_texts_do_not_fill_the_log(desk: SessionsHarness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for late in (False, True):
        speaker = FakeSession("id-2", name=LONG)
        desk.receive(*speaker.frames("hello", speaker.hello(late=late)))
        desk.receive(*speaker.frames("bye", replace(speaker.bye("failed"), cause=LONG), 1))
    lengths = list(map(len, caplog.messages))
    assert len(lengths) >= 3
    assert max(lengths) < 1000


def test_attempts_of_one_run_have_the_rate_of_new_runs(desk: SessionsHarness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def begun() -> int:
        return sum("begins" in message for message in caplog.messages)

    for attempt in range(6, 306):
        desk.greet(FakeSession("id-1", attempt=attempt))
    assert begun() == NEW_RUNS_BURST - 1  # and the one of the fixture
    assert desk.house.rejected() == {"runs": 300 - (NEW_RUNS_BURST - 1)}
    desk.house.after = 1.0
    for attempt in range(306, 316):
        desk.greet(FakeSession("id-1", attempt=attempt))
    assert begun() == NEW_RUNS_BURST - 1 + NEW_RUNS_RATE
    other = FakeSession("id-2", name="other")
    desk.sessions.receive(Connection(PEER, 4711), other.frames("hello", other.hello()), desk.house.now)
    assert "run other (id id-2, attempt 0) begins" in caplog.messages


def test_late_sessions_are_logged_at_a_rate(desk: SessionsHarness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for _ in range(300):
        speaker = FakeSession("id-1")
        desk.receive(*speaker.frames("hello", speaker.hello(late=True)))
        for number in (1, 2):
            desk.receive(*speaker.frames("bye", speaker.bye(), number))
    assert len(caplog.messages) == 2 * NEW_RUNS_BURST


def test_refused_messages_of_one_user_do_not_silence_the_report_of_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = SessionsHarness(MessageLimits(logged=3))
    for number in range(9):
        desk.receive(b"nonsense", peer=b"%d" % number)
    assert len(caplog.messages) == 3
    desk.sessions.receive(Connection(PEER, 4711), [b"nonsense"], desk.house.now)
    assert len(caplog.messages) == 4
