"""The run that an integration opens: the id that a checkpoint carries."""

from __future__ import annotations

from typing import Any

import pytest

from trackside.integrations.run_adapter import RunAdapter


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable that names the run."""
    monkeypatch.delenv("TRACKSIDE_RUN_ID", raising=False)


def resumed_run_id(state: object, **arguments: Any) -> str:
    """Return the id of the run that is opened after a checkpoint with this state was loaded."""
    adapter = RunAdapter("resumed", {"enabled": False, **arguments})
    adapter.resume(state)
    return adapter.open().id


def test_a_checkpoint_carries_the_id_of_its_run() -> None:
    before = RunAdapter("resumed", {"enabled": False})
    assert before.state() == {}
    run = before.open()
    assert resumed_run_id(before.state()) == run.id


@pytest.mark.parametrize(
    "run", ["", "x" * 129, "two\nlines", "\x1b[2J", "\udcff", "ünïcode", 7, ["a"], {"a": 1}, b"bytes", True]
)
def test_an_id_that_no_client_writes_begins_a_new_run(run: object, caplog: pytest.LogCaptureFixture) -> None:
    assert len(resumed_run_id({"run": run})) == 12
    [line] = caplog.messages
    assert line.isprintable()


@pytest.mark.parametrize("state", [None, {}, [], "run", 3, {"run": None}])
def test_a_checkpoint_without_an_id_begins_a_new_run(state: object, caplog: pytest.LogCaptureFixture) -> None:
    assert len(resumed_run_id(state)) == 12
    assert not caplog.messages


def test_an_id_that_the_user_sets_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resumed_run_id({"run": "checkpoint"}, id="argument") == "argument"
    monkeypatch.setenv("TRACKSIDE_RUN_ID", "variable")
    assert resumed_run_id({"run": "checkpoint"}) == "variable"
