"""Images, texts and tables, and the console, in the API: of fixed types, and never run by a browser."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from histories import opened
from session_records import batch_ingested

from trackside.media.pixels import encode
from trackside.wire import MediaItem, ProcessInfo
from trackside_daemon.history.console.files import ConsoleWriter

if TYPE_CHECKING:
    from conftest import Site  # type: ignore[attr-defined]

HOSTILE = "<script>alert(1)</script>"
IMAGE = encode(2, 1, 1, b"ab")
TABLE = {"columns": [HOSTILE], "rows": [[HOSTILE]], "omitted": 0}
LAUNCH = "0123456789abcdef"


@pytest.fixture
def logged(site: Site) -> Site:
    record = opened("id-1", name="train", about=ProcessInfo(launch=LAUNCH))
    media = [
        MediaItem("image", HOSTILE, 1, IMAGE, 3),
        MediaItem("text", "text", 1, HOSTILE.encode(), 3),
        MediaItem("table", "table", 1, json.dumps(TABLE).encode(), 3),
    ]
    site.keep(record, batch_ingested(record.session.id, 1, media=media))
    return site


def test_they_are_listed_and_sent_with_a_fixed_type_that_nothing_runs(logged: Site) -> None:
    client = logged.client()
    assert client.get("/api/v1/runs/train/media").status_code == 401
    image, text, table = client.get("/api/v1/runs/train/media", headers=logged.key).json()["media"]
    assert (image["key"], image["width"], image["step"]) == (HOSTILE, 2, 3)
    for one, kind, content in (
        (image, "image/png", IMAGE),
        (text, "text/plain; charset=utf-8", HOSTILE.encode()),
        (table, "application/json", json.dumps(TABLE, separators=(",", ":")).encode()),
    ):
        answer = client.get(f"/api/v1/runs/train/media/{one['file']}", headers=logged.key)
        assert (answer.status_code, answer.content) == (200, content)
        assert answer.headers["Content-Type"] == kind
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert answer.headers["Content-Disposition"] == "attachment"
        assert answer.headers["Cache-Control"] == "private, no-cache"
        again = {**logged.key, "If-None-Match": f'"x", {answer.headers["ETag"]}'}
        known = client.get(f"/api/v1/runs/train/media/{one['file']}", headers=again)
        assert (known.status_code, known.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.png", "index.jsonl", "..%2F..%2Fhistory.db", "%2Fetc%2Fpasswd"])
def test_no_other_file_is_sent(logged: Site, name: str) -> None:
    client = logged.client()
    assert client.get(f"/api/v1/runs/train/media/{name}", headers=logged.key).status_code == 404
    assert client.get("/api/v1/runs/nobody/media", headers=logged.key).status_code == 404


def test_the_console_of_a_run_is_read_and_searched(logged: Site) -> None:
    writer = ConsoleWriter(logged.history.database.path.parent, LAUNCH)
    writer.write(b"one\ntwo \x1b[1mTWO\x1b[0m\nthree\n")
    writer.close()
    client = logged.client()

    def found(query: str) -> tuple[int, list[list[object]]]:
        answer = client.get(f"/api/v1/runs/train/console{query}", headers=logged.key)
        return answer.status_code, answer.json().get("lines")

    assert found("") == (200, [[1, "one"], [2, "two TWO"], [3, "three"]])
    assert found("?lines=1&before=3") == (200, [[2, "two TWO"]])
    assert found("?search=t&lines=1") == (200, [[3, "three"]])
    assert found("?search=two&colors=true") == (200, [[2, "two TWO", [[4, 7, "bold"]]]])
    assert found(f"?search={'x' * 300}")[0] == found("?lines=-1")[0] == 400
    assert client.get("/api/v1/runs/train/console").status_code == 401


def test_a_run_without_a_console_has_no_lines(logged: Site) -> None:
    logged.keep(opened("id-2", name="plain"))
    answer = logged.client().get("/api/v1/runs/plain/console", headers=logged.key).json()
    assert answer == {"bytes": 0, "lines": [], "total": 0, "more": False}
