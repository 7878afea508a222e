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
FUNCTION = {"name": "train.py:9 in augment", "seconds": 0.002, "share": 0.2, "count": 1, "inner": "<built-in sum>"}
CALLS = [
    {"name": "train.py:9 in augment", "seconds": 0.002, "children": []},
    {"name": "aten::mm", "seconds": 0.005, "children": []},
]
PROFILE = {
    "ranks": {
        "0": {
            "steps": [{"seconds": 0.01, **STEP}] * 3,
            "operators": [OPERATOR],
            "functions": [FUNCTION],
            "flame": {"name": "step", "seconds": 0.01, "children": CALLS},
        }
    },
    "bottleneck": {"text": "compute: 6 of 10 ms a step"},
    "difference": [{"name": "aten::mm", "before": 0.001, "after": 0.005, "rank": 0, "source": "train.py:9 in main"}],
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
    page = open_page(shared_daemon, "/runs/seen-1?tab=captures")
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
        "aria-label", "10 ms: compute 60.0 %, data wait 30.0 %, device idle 10.0 %"
    )
    expect(row.locator("tbody tr")).to_have_text(
        [
            "aten::mm1 ms5 ms+4 ms0train.py:9 in main",
            "aten::mm550.0 %3train.py:9",
            "train.py:9 in augment220.0 %1<built-in sum>",
        ]
    )
    row.get_by_text("Calls of the training thread").click()
    row.get_by_role("button", name="aten::mm: 5 ms, 50.0 % of a step").click()
    expect(row.locator(".flame-call")).to_have_text(["aten::mm"])
    row.get_by_role("button", name="Whole step").click()
    expect(row.locator(".flame-call")).to_have_text(["step", "train.py:9 in augment", "aten::mm"])
    assert violations(page) == []
    training.stdin.close()  # type: ignore[union-attr]
    training.wait()
