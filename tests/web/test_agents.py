"""The endpoint for agents."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from histories import BEGIN, finished, opened
from wire_messages import FakeSession

from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Site  # type: ignore[attr-defined]
    from wire_messages import RunsHarness


@pytest.fixture
def recorded(site: Site) -> Iterator[Site]:
    site.keep(opened("id-1", name="train"))
    yield site
    site.recorded.captures.stop()


def call(site: Site, tool: str, *, actions: str = "true", **arguments: Any) -> tuple[bool, Any]:
    """Call a tool; return whether it refused, and its answer."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    path = f"/api/v1/mcp?allow-actions={actions}"
    result = site.client().ask("POST", path, json=body, headers=site.key).json()["result"]
    text = result["content"][0]["text"]
    return result.get("isError", False), text if result.get("isError") else json.loads(text)


def test_a_capture_returns_its_summary_where_actions_are_allowed(recorded: Site) -> None:
    off = (True, "tool 'capture' is off; a person allows it with trackside mcp --allow-actions")
    assert call(recorded, "capture", run="train", steps=3) == off, "the setting of the daemon is off"
    recorded.agent_actions = True
    refused, answer = call(recorded, "capture", run="train", steps=3)
    assert not refused
    assert answer["state"] == "summarised"
    assert answer["text"][0].endswith("of run id-1: summarised</untrusted>")
    assert call(recorded, "capture", run="train", actions="false") == off


def test_a_live_run_is_listed_with_its_newest_step(recorded: Site, house: RunsHarness) -> None:
    session = FakeSession()
    house.hello(session)
    house.push(session, {"loss": 2.5}, step=7)
    (run,) = call(recorded, "runs", limit=1)[1]["runs"]
    assert (run["state"], run["step"], run["loss"]) == ("running", 7, 2.5)


def test_a_wait_ends_with_its_time(recorded: Site) -> None:
    refused, answer = call(recorded, "wait", run="train", timeout_seconds=0.01)
    assert (refused, answer["reason"], answer["state"]) == (False, "timeout", "starting")


def test_a_wait_for_a_run_that_has_ended_names_what_still_fires(recorded: Site) -> None:
    recorded.keep(Alert("CheckpointDamaged", "critical", BEGIN + 5, "id-1", {}, "step-30.pt is cut off", ""))
    recorded.keep(finished("id-1", state="failed"))
    _, answer = call(recorded, "wait", run="train", timeout_seconds=5)
    assert (answer["reason"], answer["state"]) == ("end", "failed")
    assert [one["alert"] for one in answer["alerts"]] == ["CheckpointDamaged"]
    assert "resume" in answer["alerts"][0]["advice"].lower()


def test_messages_that_need_no_answer_and_those_that_are_no_messages(recorded: Site) -> None:
    client = recorded.client(public_read=True)
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert client.ask("POST", "/api/v1/mcp", json=notification, headers=recorded.key).status_code == 202
    assert client.ask("POST", "/api/v1/mcp", json=notification).status_code == 401
    assert client.get("/api/v1/mcp", headers=recorded.key).status_code == 405
    answer = client.ask("POST", "/api/v1/mcp", content=b" " * (1 << 20) + b"{}", headers=recorded.key)
    assert answer.status_code == 400
