"""Secrets in the texts of a training: no surface has them, whichever program has pushed them."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from typing import TYPE_CHECKING

import pytest
from histories import history, opened
from ingest.conftest import SessionsHarness
from msgspec.structs import replace
from wire_messages import FakeSession, clock

from trackside.environment.identity import identify
from trackside.redact import REDACTED
from trackside.wire import HOOK_FAILED, ProcessInfo, TrainingAlert, TrainingEvent
from trackside_daemon.history.record.run_changes import describe

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hunter2hunter2"
URL = f"postgres://u:{SECRET}@db/x"
SAFE = f"postgres://u:{REDACTED}@db/x"


@pytest.mark.parametrize(("name", "run"), [(URL, "id-1"), ("train", URL)])
def test_the_client_has_its_run_by_a_name_and_an_id_without_secrets(name: str, run: str) -> None:
    identity = identify(name, run, environ={})
    assert (identity.name, identity.run) == (name.replace(URL, SAFE), run.replace(URL, SAFE))
    assert identify(environ={"TRACKSIDE_RUN_NAME": name, "TRACKSIDE_RUN_ID": run}) == identity


@pytest.mark.parametrize("field", ["name", "run", "host", "job_id", "framework"])
def test_nothing_on_the_page_and_in_the_log_has_a_secret_of_an_identity(
    field: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    desk = SessionsHarness()
    speaker = FakeSession()
    speaker.identity = replace(speaker.identity, **{field: URL})
    pods = ProcessInfo(k8s_pod=URL, k8s_namespace=URL, k8s_container=URL)
    desk.receive(*speaker.frames("hello", speaker.hello(about=pods)))
    desk.receive(*speaker.batch(1))
    page = repr(list(desk.house.page()))
    assert SAFE in page
    assert SECRET not in page + caplog.text
    assert SECRET not in repr([one.session for one in desk.house.records if hasattr(one, "session")])


def test_events_alerts_and_ends_have_no_secret_before_they_are_stored(caplog: pytest.LogCaptureFixture) -> None:
    desk = SessionsHarness()
    speaker = FakeSession()
    desk.greet(speaker)
    fields = json.dumps({"hook": "h", "error": URL, "traceback": URL, "password": SECRET})
    events = [TrainingEvent(HOOK_FAILED, clock().monotonic, 1, fields), TrainingEvent("x", 1, 1, f"not JSON: {URL}")]
    alerts = [TrainingAlert(f"title {URL}", clock().monotonic, f"text {URL}")]
    desk.receive(*speaker.frames("batch", replace(speaker.pushes({"loss": 1.0}), events=events, alerts=alerts), 1))
    desk.receive(*speaker.frames("bye", replace(speaker.bye("failed"), cause=f"RuntimeError: {URL}"), 2))
    found = repr([one for one in desk.house.records if type(one).__name__ in {"Event", "RunState"}])
    assert found.count(SAFE) >= 6
    assert SECRET not in found + caplog.text
    assert SAFE in caplog.text


def test_a_run_that_is_imported_or_renamed_has_no_secret_in_its_name(place: Path) -> None:
    with history(place / "history") as one:
        record = opened("a")
        one.put([dataclasses.replace(record, session=record.session._replace(name=URL))])
        assert _names(place) == [SAFE]
        one.writer.call(lambda store: store.connection.execute("UPDATE run SET ended = 1")).result()
        one.writer.call(lambda store: describe(store, "a", name=f"b {URL}", notes=None, tags=None)).result()
        assert _names(place) == [f"b {SAFE}"]


def _names(place: Path) -> list[str]:
    with sqlite3.connect(place / "history" / "history.db") as connection:
        return [name for (name,) in connection.execute("SELECT name FROM run")]
