"""Processes of one user that claim one rank keep no client waiting: a hello reads the sessions and the history once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ingest.conftest import SessionsHarness
from msgspec.structs import replace
from wire_messages import FakeSession

from trackside.wire import ProcessInfo
from trackside_daemon.model.records import SessionOpened

if TYPE_CHECKING:
    import pytest

    from trackside_daemon.ingest.greeting import Rivals


RIVALS = 40


def test_a_hello_costs_the_same_however_many_live_and_ended_runs_have_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = SessionsHarness()
    monkeypatch.setattr(desk.house.runs, "exists", lambda *_: True)
    ended: list[str] = []
    checked: list[str] = []

    class Sessions(dict[bytes, object]):
        """Counts how often all of them are looked at."""

        def values(self) -> Any:
            checked.append("all")
            return super().values()

    def has_ended(run: str) -> bool:
        ended.append(run)
        return int(run.partition("~")[2]) % 2 == 0

    monkeypatch.setattr(desk.house.runs, "has_ended", has_ended)
    rivals: Rivals = desk.sessions._greetings._rivals
    got = []
    for pid in range(1, RIVALS + 1):
        session = FakeSession("train", pid=pid, start=pid)
        rivals._sessions = Sessions(desk.sessions._sessions)  # type: ignore[assignment]
        body = replace(session.hello(), about=ProcessInfo(parents=((os.getpid(), 1),)))
        assert desk.receive(*session.frames("hello", body))
        got.append(next(one.hello.identity.run for one in desk.house.records if isinstance(one, SessionOpened)))
        desk.house.records.clear()
    assert got == ["train", *(f"train~{number}" for number in range(3, 2 * RIVALS + 1, 2))]
    assert len(checked) == RIVALS
    assert len(ended) == len({*ended})
