"""The captures on the page of a run: begun there, followed, shown and downloaded."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from playwright.sync_api import Page, Route
    from processes import Daemon

TRAINING = "import sys, trackside; trackside.init('seen', id='seen-1').push(step=1, loss=1.0); sys.stdin.read()"
STEP = {"compute": 0.006, "overlapped": 0, "exposed": 0, "copies": 0, "data": 0.003, "idle": 0.001, "other": 0}
OPERATOR = {"name": "aten::mm", "cpu": 0.005, "gpu": 0, "share": 0.5, "count": 3, "shapes": "", "source": "train.py:9"}
PROFILE = {
    "ranks": {"0": {"steps": [{"seconds": 0.01, **STEP}] * 3, "operators": [OPERATOR]}},
    "bottleneck": {"text": "compute: 6 of 10 ms a step"},
    "difference": [{"text": "aten::mm 1 → 5 ms a step"}],
}


def with_profile(route: Route) -> None:
    """Answer for a capture as if it were a profile."""
    answer: dict[str, Any] = route.fetch().json()
    route.fulfill(body=json.dumps({**answer, "kind": "profile", "summary": PROFILE}))


def test_a_capture_is_begun_followed_shown_and_downloaded(
    shared_daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    training = start_training(shared_daemon, "-c", TRAINING)
    eventually(lambda: shared_daemon.api("runs/seen-1").json().get("state") == "running")
    page = open_page(shared_daemon, "/runs/seen-1")
    page.get_by_role("button", name="Record with Python stacks").click()
    row = page.locator(".run-capture")
    expect(row.locator("summary").first).to_contain_text("summarised")
    row.locator("summary").first.click()
    expect(row.locator("pre")).to_contain_text("MainThread")
    with page.expect_download() as download:
        row.get_by_role("button", name="Download rank 0").click()
    assert "MainThread" in gzip.decompress(Path(download.value.path()).read_bytes()).decode()
    page.route("**/api/v1/captures/*", with_profile)
    page.reload()
    row.locator("summary").first.click()
    expect(row.locator(".run-capture-step")).to_have_count(3)
    expect(row.locator(".run-capture-step").first).to_have_attribute(
        "aria-label", "10 ms: compute 60 %, data wait 30 %, device idle 10 %"
    )
    expect(row.locator("li")).to_have_text(["aten::mm 1 → 5 ms a step"])
    expect(row.locator("tbody tr")).to_have_text(["aten::mm550 %3train.py:9"])
    assert violations(page) == []
    training.stdin.close()  # type: ignore[union-attr]
    training.wait()
