"""The diagnosis on the page of a run, and the results that the run states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from playwright.sync_api import Page
    from processes import Daemon

TRAINING = """
import time, trackside
run = trackside.init("waits", id="waits-1")
for step in range(3):
    with run.phase("data"):
        time.sleep(0.1)
    run.push(step=step, loss=1.0)
run.summary({"eval/best": 1.25}, note="<b>")
"""


def test_the_costliest_cause_is_named_and_the_whole_opens(
    shared_daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    start_training(shared_daemon, "-c", TRAINING).wait()
    eventually(lambda: shared_daemon.api("runs/waits-1").json().get("state") == "finished")
    found = shared_daemon.api("runs/waits-1/diagnosis").json()
    assert found["causes"][0]["cause"] == "data_wait"
    page = open_page(shared_daemon, "/runs/waits-1?tab=diagnosis")
    section = page.locator("details.run-section").filter(has=page.get_by_role("heading", name="Diagnosis"))
    expect(section.locator("summary .quiet")).to_have_text(found["causes"][0]["summary"])
    accounts = section.locator(".run-phases tbody tr")
    expect(accounts).to_have_count(len(found["ledger"]))
    expect(section.locator(".run-stack > span")).to_have_count(len(found["ledger"]))
    expect(accounts.locator("th").first).to_have_text(found["accounts"][next(iter(found["ledger"]))])
    first = section.locator(".run-causes > li").first
    expect(first).to_contain_text("Expected gain: ")
    expect(first).to_contain_text(f"Try: {found['causes'][0]['advice']}")
    results = page.locator("dl[aria-label=Results]")
    expect(results.locator(".run-tile")).to_have_text(["eval/best1.25", "note<b>"])
    assert violations(page) == []


STOPPED = """
import select, sys, trackside
run = trackside.init("stops", id="stops-1")
run.push(step=1, loss=1.0)
run.push(step=2, loss=float("nan"))
sys.stdin.readline()
raise RuntimeError("set `max_norm` to 1")
"""


def test_what_stops_a_run_is_shown_once_and_commands_in_it_as_code(
    shared_daemon: Daemon, start_training: Callable[..., Process], open_page: Callable[..., Page]
) -> None:
    training = start_training(shared_daemon, "-c", STOPPED)
    verdict = eventually(lambda: shared_daemon.api("runs/stops-1").json().get("verdict"))
    page = open_page(shared_daemon, "/runs/stops-1?tab=diagnosis")
    expect(page.locator(".run-cause")).to_have_text(verdict)
    firing = page.locator(".run-firing li").filter(has_text="NonFinite")
    expect(firing).to_have_count(1)
    expect(firing.locator(".clamp")).to_have_text("")
    expect(page.locator("details.run-section p.bad")).to_have_count(0)
    training.communicate("\n")
    expect(page.locator(".run-cause code")).to_have_text("max_norm")
    expect(page.locator(".run-cause")).to_contain_text("set max_norm to 1")
