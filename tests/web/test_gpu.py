"""Letting go of the GPUs over HTTP."""

from __future__ import annotations

import time
from typing import Any

import pytest


def ask(site: Any, path: str, **options: Any) -> Any:
    return site.client().ask("POST", f"/api/v1/gpu/{path}", headers=site.key, **options)


def test_a_pause_has_an_end_and_is_over_when_somebody_says_so(site: Any) -> None:
    begun = time.time()
    said = ask(site, "pause", json={"for": 600}).json()
    assert (said["released"], said["holders"]) == (True, [])
    assert said["paused_until"] == site.nvml.paused_until
    assert begun + 600 <= said["paused_until"] <= time.time() + 601
    assert ask(site, "resume").json() == {"resumed": True}
    assert site.nvml.paused_until is None
    assert site.forgotten == 1, "other GPUs may be there after a pause"


@pytest.mark.parametrize("body", [b"", b"{}", b'{"for": null}'])
def test_a_pause_may_have_no_end(site: Any, body: bytes) -> None:
    assert ask(site, "pause", content=body).json()["paused_until"] == "inf"


def test_a_second_pause_counts_instead_of_the_first_and_a_second_resume_changes_nothing(site: Any) -> None:
    ask(site, "pause")
    assert ask(site, "pause", json={"for": 10.5}).json()["paused_until"] < time.time() + 60
    assert [ask(site, "resume").json()["resumed"] for _ in range(2)] == [True, False]


@pytest.mark.parametrize("body", [b"600", b"[]", b"{", b"\xff"])
def test_a_body_that_is_none_is_refused_with_what_it_is(site: Any, body: bytes) -> None:
    answer = ask(site, "pause", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == 'the body is {"for": SECONDS}, or {"for": null} for no end'
    assert site.nvml.paused_until is None


@pytest.mark.parametrize("length", ["0", "-1", "true", '"10m"', "1e300", "[1]"])
def test_a_length_that_is_none_is_refused(site: Any, length: str) -> None:
    answer = ask(site, "pause", content=f'{{"for": {length}}}'.encode())
    assert answer.status_code == 400
    assert "is no number of seconds from 0 to 31622400, nor null" in answer.json()["error"]["message"]
    assert site.nvml.paused_until is None


@pytest.mark.parametrize("path", ["pause", "resume"])
def test_nobody_without_the_token_stops_the_reading_of_gpus(site: Any, path: str) -> None:
    for client in (site.client(), site.client(public_read=True)):
        assert client.ask("POST", f"/api/v1/gpu/{path}").status_code == 401
        assert client.get(f"/api/v1/gpu/{path}", headers=site.key).status_code == 405
    assert site.nvml.paused_until is None
