"""No browser guesses the type of an answer, and no cache keeps what the token has opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from processes import Daemon


def test_answers_are_of_their_type_and_those_of_the_api_are_not_stored(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon("--no-collector.gpu")
    answers = {path: daemon.api(path) for path in ("status", "runs", "runs/none", "overview", "nothing")}
    answers |= {"refused": daemon.get("/api/v1/status"), "host": daemon.get("/api/v1/status", Host="evil.example")}
    assert {answer.status_code for answer in answers.values()} == {200, 401, 404, 421}
    headers = ("X-Content-Type-Options", "Cache-Control")
    assert {tuple(answer.headers.get(name) for name in headers) for answer in answers.values()} == {
        ("nosniff", "no-store")
    }
    for path in ("/metrics", "/-/healthy"):
        assert daemon.get(path).headers["X-Content-Type-Options"] == "nosniff"
    assert daemon.get("/").headers.get_list("X-Content-Type-Options") == ["nosniff"]
    assert daemon.get("/").headers["Cache-Control"] == "no-cache"
