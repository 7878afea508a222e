"""Captures in the API."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest
from histories import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Site  # type: ignore[attr-defined]


@pytest.fixture
def recorded(site: Site) -> Iterator[Site]:
    site.keep(opened("id-1", name="train"))
    yield site
    site.recorded.captures.stop()


def test_a_capture_is_begun_followed_listed_and_downloaded(recorded: Site) -> None:
    client = recorded.client()
    body = {"steps": 3, "ranks": [1, 1], "shapes": True, "trigger": "person"}
    begun = client.ask("POST", "/api/v1/runs/train/captures", json=body, headers=recorded.key).json()
    assert (begun["state"], begun["run"], begun["ranks"], begun["trigger"]) == ("asked", "id-1", [1], "person")
    assert begun["options"] == {"steps": 3, "seconds": None, "shapes": True, "stacks": False, "memory": False}
    recorded.recorded.wait(begun["id"])
    (listed,) = client.get("/api/v1/runs/train/captures", headers=recorded.key).json()["captures"]
    assert client.get("/api/v1/captures", headers=recorded.key).json()["captures"] == [listed]
    ended = client.get(f"/api/v1/captures/{begun['id']}", headers=recorded.key).json()
    assert (listed["state"], listed["summary"], ended["summary"]["bottleneck"]["class"]) == ("summarised", {}, "data")
    assert ended["text"][0] == f"profile {begun['id']} of run id-1: summarised"
    (file,) = ended["files"]
    path = f"/api/v1/captures/{begun['id']}/files"
    answer = client.get(f"{path}/{file['name']}", headers=recorded.key)
    assert gzip.decompress(answer.content) == b"{}"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment; ")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get(f"{path}/..%2F..%2Ftrackside.db", headers=recorded.key).status_code == 404


@pytest.mark.parametrize(
    "body", [{"steps": 3, "seconds": 1.0}, {"steps": 0}, {"kind": "video"}, {"trigger": "alert"}, {"x": 1}, [1]]
)
def test_what_is_no_request_for_a_capture_is_refused_in_one_line(recorded: Site, body: Any) -> None:
    answer = recorded.client().ask("POST", "/api/v1/runs/train/captures", json=body, headers=recorded.key)
    assert answer.status_code == 400
    assert "\n" not in answer.json()["error"]["message"]


def test_a_number_out_of_its_range_is_refused_by_its_name(recorded: Site) -> None:
    answer = recorded.client().ask(
        "POST", "/api/v1/runs/train/captures", json={"seconds": 100_000}, headers=recorded.key
    )
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "seconds: 120 at most")
    assert recorded.recorded.records == []


def test_a_request_without_the_token_or_for_an_unknown_run_records_nothing(recorded: Site) -> None:
    client = recorded.client()
    assert client.ask("POST", "/api/v1/runs/train/captures").status_code == 401
    assert client.ask("POST", "/api/v1/runs/other/captures", headers=recorded.key).status_code == 404
    assert client.get("/api/v1/captures/0123", headers=recorded.key).status_code == 404
    assert recorded.recorded.records == []
