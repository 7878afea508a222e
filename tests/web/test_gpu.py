"""Pausing GPU readings over HTTP."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import Any

import pytest


def ask(site: Any, path: str, **options: Any) -> Any:
    return site.client().ask("POST", f"/api/v1/gpu/{path}", headers=site.key, **options)


def test_a_pause_has_an_end_and_is_over_on_request(site: Any) -> None:
    begun = time.time()
    answered = ask(site, "pause", json={"for": 600}).json()
    assert (answered["released"], answered["holders"]) == (True, [])
    assert answered["paused_until"] == site.nvml.paused_until
    assert begun + 600 <= answered["paused_until"] <= time.time() + 601
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


def test_each_pause_and_what_ends_it_is_logged(site: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "trackside"):
        for path, body in (("pause", b'{"for": 600}'), ("pause", b""), ("resume", b""), ("resume", b"")):
            ask(site, path, content=body)
    first, *rest = [record.getMessage() for record in caplog.records if "GPU readings" in record.getMessage()]
    assert re.fullmatch(r"GPU readings paused on request, until \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first)
    assert rest == [
        "GPU readings paused on request, until trackside resume-gpu",
        "GPU readings resumed on request",
    ]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"600", "Expected `object`, got `int`"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{", "Input data was truncated"),
        (b"\xff", "JSON is malformed: invalid character (byte 0)"),
        (b'{"for\xff": 1}', ""),  # the words depend on the release of msgspec
        (b'{"fro": 10}', "Object contains unknown field `fro`"),
        (b"[" * 100_000, "Expected `object`, got `array`"),
        (b'{"for": ' + b"[" * 100_000, "Expected `float | null`, got `array` - at `$.for`"),
        (b'{"fro": ' + b"[" * 100_000, "Object contains unknown field `fro`"),
        (b'{"for": 0}', "Expected `float` > 0.0 - at `$.for`"),
        (b'{"for": -1}', "Expected `float` > 0.0 - at `$.for`"),
        (b'{"for": true}', "Expected `float | null`, got `bool` - at `$.for`"),
        (b'{"for": "10m"}', "Expected `float | null`, got `str` - at `$.for`"),
        (b'{"for": 1e300}', "Expected `float` <= 31622400.0 - at `$.for`"),
        (b'{"for": 1' + b"0" * 5000 + b"}", ""),
        (b'{"for": [1]}', "Expected `float | null`, got `array` - at `$.for`"),
    ],
)
def test_a_body_that_is_none_is_refused_with_what_it_is_and_pauses_nothing(site: Any, body: bytes, why: str) -> None:
    answer = ask(site, "pause", content=body)
    assert answer.status_code == 400
    reported = answer.json()["error"]["message"]
    assert reported.startswith(
        'the body must be {"for": SECONDS}, 31622400 at most, or {"for": null} for no end (' + why
    )
    assert site.nvml.paused_until is None


def test_a_resume_that_waits_for_a_reading_holds_up_no_other_page(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    resume, threads = site.nvml.resume, []

    def watched() -> None:
        threads.append(threading.current_thread())
        resume()

    monkeypatch.setattr(site.nvml, "resume", watched)
    ask(site, "pause")
    assert ask(site, "resume").json() == {"resumed": True}
    assert threads
    assert threads != [threading.current_thread()], "the one that answers all pages"


@pytest.mark.parametrize("path", ["pause", "resume"])
def test_a_request_without_the_token_does_not_stop_the_reading_of_gpus(site: Any, path: str) -> None:
    for client in (site.client(), site.client(public_read=True)):
        assert client.ask("POST", f"/api/v1/gpu/{path}").status_code == 401
        assert client.get(f"/api/v1/gpu/{path}", headers=site.key).status_code == 405
    assert site.nvml.paused_until is None
