"""The alerts page while real runs go wrong: it shows the API's data, and its actions take effect."""

from __future__ import annotations

import getpass
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from end_to_end.conftest import Process
    from playwright.sync_api import Locator, Page
    from processes import Daemon

RUN = "<script>diverges"
DIVERGES = f"""
import sys, trackside
run = trackside.init({RUN!r}, id="diverges-1")
for step in range(30):
    run.push(step=step, loss=2.5 + step % 3 / 10, grad_norm=1.5)
sys.stdin.readline()
run.push(step=30, loss=float("nan"), grad_norm=7.5)
run.alert("look <b>here</b>", "at this", severity="info")
sys.stdin.read()
"""
STALLS = """
import threading, time, trackside

def wait_for_nothing():
    time.sleep(600)  # here it sits

threading.Thread(target=wait_for_nothing, name="prefetch", daemon=True).start()
for step in range(60):
    trackside.push(step=step, loss=1.0)
    time.sleep(0.02)
wait_for_nothing()
"""


@pytest.fixture
def daemon(start_daemon: Callable[..., Daemon]) -> Daemon:
    """Turn off slow-step detection, which a waiting training would trigger."""
    return start_daemon(environ={"TRACKSIDE_ALERTS__OFF": '["SlowStep"]'})


def alerts(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    """Return the API's alerts of this name."""
    return [one for one in daemon.api("alerts").json()["alerts"] if one["alert"] == name]


def of_name(daemon: Daemon, name: str, part: str) -> dict[str, Any]:
    """Return the alert of a name once it has a part of its evidence."""
    (found,) = eventually(lambda: [one for one in alerts(daemon, name) if part in one["evidence"]])
    return found


def counted(page: Page, daemon: Daemon) -> int:
    """Return the count in the page's header once it equals the API's number of unsilenced alerts."""

    def same() -> bool:
        firing = daemon.api("overview").json()["alerts"]
        loud = sum(one["severity"] != "info" and not one["silenced"] for one in firing)
        return (page.locator("#firing").text_content() or "0") == str(loud)

    eventually(same)
    return int(page.locator("#firing").text_content() or 0)


def go_on(training: Process) -> None:
    assert training.stdin is not None
    training.stdin.write("\n")
    training.stdin.flush()


def fact(page: Page, name: str) -> Locator:
    """Return the value next to a name in the facts of an alert's page."""
    return page.locator("article > dl dt", has_text=re.compile(f"^{name}$")).locator("xpath=following-sibling::dd[1]")


def see_what_fires(page: Page, daemon: Daemon, training: Process, violations: Callable[[Page], list[str]]) -> None:
    """A NaN appears by itself, and its page has what the API has."""
    row = page.locator(".fires li", has_text="NonFinite")
    expect(row).to_have_count(0)
    page.evaluate("window.notLoadedAgain = true")
    go_on(training)
    expect(row).to_contain_text(RUN)
    found = of_name(daemon, "NonFinite", "samples")
    assert page.evaluate("window.notLoadedAgain")
    expect(row).to_contain_text(found["summary"])
    expect(row.locator(".badge")).to_have_text("◆ critical")
    expect(page.locator(".fires li").first).to_contain_text("NonFinite")  # the worst first
    expect(page.locator(".fires li", has_text="UserAlert")).to_contain_text("look <b>here</b>")
    assert counted(page, daemon) >= 1
    assert violations(page) == []

    row.get_by_role("link", name="NonFinite").click()
    points = found["evidence"]["samples"]["points"]
    page.get_by_text("As a table").click()
    shown = page.locator(".samples tbody tr")
    assert [[float(line.locator("td").nth(place).inner_text()) for place in (0, 2)] for line in shown.all()[:-1]] == [
        [step, value] for step, _, value in points[:-1]
    ]
    assert shown.last.locator("td").all_inner_texts()[::2] == ["30", "NaN"]
    expect(page.get_by_role("img", name=re.compile("loss of rank 0 by step. Last: NaN at step 30"))).to_be_visible()
    rank = found["evidence"]["ranks"]["0"]
    table = page.get_by_role("region", name="Last values of the ranks")
    shown_values = dict(
        zip(*(table.locator("tr").nth(row).locator("th, td").all_inner_texts() for row in (0, 1)), strict=True)
    )
    wanted = {"Rank": "0", "Gradient norm": str(rank["grad_norm"]), "Step": "30", "State": "running", "Loss": "NaN"}
    assert wanted.items() <= shown_values.items()
    expect(fact(page, "Run").get_by_role("link")).to_have_attribute("href", "/runs/diverges-1")
    expect(fact(page, "Notified")).to_have_text(", ".join(alerts(daemon, "NonFinite")[0]["notified"]))
    assert violations(page) == []


def silence(page: Page, daemon: Daemon, violations: Callable[[Page], list[str]]) -> None:
    """The alert is silenced from its page, and notifies again."""
    page.get_by_role("button", name="False alarm", exact=True).click()
    expect(fact(page, "Dismissed")).to_contain_text("as a false alarm")
    assert alerts(daemon, "NonFinite")[0]["dismissed"]["comment"] == ""
    assert violations(page) == []
    page.get_by_role("button", name="Not a false alarm").click()
    expect(fact(page, "Dismissed")).to_have_count(0)
    page.get_by_role("button", name="Silence…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Matches 1 firing alert: NonFinite of {RUN}.")
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="Silence…")).to_be_focused()
    page.keyboard.press("Enter")
    dialog.get_by_label("Pattern of alert").fill("Non*")
    dialog.get_by_role("button", name="Remove rank").click()
    dialog.get_by_label("For").select_option("8 hours")
    dialog.get_by_label("Comment").fill("known")
    dialog.get_by_role("button", name="Silence", exact=True).click()
    expect(page.locator("p.said")).to_contain_text(f"1 firing alert is silenced: NonFinite of {RUN}.")
    (silence,) = daemon.api("silences").json()["silences"]
    assert silence["labels"] == {"alert": "Non*", "key": "loss", "run": RUN, "user": getpass.getuser()}
    assert (silence["comment"], round(silence["until"] - silence["started"])) == ("known", 8 * 3600)
    expect(page.locator("article .line").first).to_contain_text("Silenced until")

    page.get_by_role("link", name="← Alerts").click()
    row = page.locator(".fires li", has_text="NonFinite")
    expect(row).to_contain_text("silenced until")
    expect(row.get_by_role("button")).to_be_hidden()
    silent = counted(page, daemon)
    page.get_by_role("button", name="End the silence").click()
    expect(page.get_by_role("table", name="Silences")).to_be_hidden()
    expect(row.get_by_role("button", name="Silence NonFinite")).to_be_visible()
    assert daemon.api("silences").json()["silences"] == []
    assert counted(page, daemon) > silent

    overview = daemon.api("overview").json()
    overview["alerts"] = [{**overview["alerts"][0], "severity": "critical", "started": second} for second in range(200)]
    reported = f"event: overview\ndata: {json.dumps(overview)}\n\n"
    page.route("**/api/v1/stream*", lambda route: route.fulfill(body=reported, content_type="text/event-stream"))
    page.goto(f"{daemon.url}/alerts?severity=critical")
    expect(page.locator("#firing")).to_have_text("200+")
    expect(page.get_by_role("link", name="Alerts")).to_have_accessible_name("Alerts 200+")
    expect(page.get_by_text("These are the worst 200. There may be more.")).to_be_visible()
    page.unroute("**/api/v1/stream*")
    page.reload()


def find_again(page: Page, daemon: Daemon, training: Process) -> None:
    """A past alert is found again."""
    assert training.stdin is not None
    names = page.locator(".history tbody a.named")
    expect(page.locator(".fires li", has_text="NonFinite")).to_be_visible()
    expect(page.get_by_text("No alerts match.")).to_be_visible()  # what fires is not listed twice
    expect(page.get_by_role("list", name="Starts and ends of runs")).to_contain_text("started")
    training.stdin.close()
    expect(names).to_have_text(["NonFinite"])
    expect(page.locator(".fires li", has_text="UserAlert")).to_have_count(0)  # nor what was of a run that has ended
    expect(page.get_by_role("list", name="Starts and ends of runs")).to_contain_text("finished")
    page.get_by_role("combobox", name="Severity").select_option("any")
    every = [one["alert"] for one in reversed(daemon.api("alerts?firing=false").json()["alerts"])]
    expect(names).to_have_text(every)
    assert "severity" not in page.url
    page.get_by_role("combobox", name="Alert").fill("user")
    with page.expect_request(re.compile(r"/alerts\?.*alert=\*user\*&")):  # all are looked through, by the daemon
        page.keyboard.press("Enter")
    expect(names).to_have_text(["UserAlert"])
    page.get_by_role("searchbox", name="Run").fill("nowhere")
    page.keyboard.press("Enter")
    expect(page.get_by_text("nowhere", exact=False).first).to_be_visible()
    expect(names.first).to_be_hidden()


def test_an_alert_appears_by_itself_is_explained_silenced_and_found_again_and_a_test_alert_shows_where_it_arrived(
    daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    training = start_training(daemon, "-c", DIVERGES)
    page = open_page(daemon, "/alerts", expected_errors=("404",))
    see_what_fires(page, daemon, training, violations)
    silence(page, daemon, violations)
    find_again(page, daemon, training)
    page.get_by_role("button", name="Silence…", exact=True).first.click()
    expect(page.get_by_label("Pattern of alert")).to_have_value("")
    expect(page.get_by_role("dialog")).to_contain_text("Name the alert, or remove the label to silence all alerts.")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Send a test alert").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Severity").select_option("critical")
    dialog.get_by_role("button", name="Send").click()
    expect(dialog).to_contain_text("Delivered to log. No other sink is configured.")
    (test,) = alerts(daemon, "TestAlert")
    assert (test["severity"], test["notified"]) == ("critical", ["log"])
    dialog.get_by_role("link", name=f"alert {test['id']}").click()
    expect(page).to_have_url(f"{daemon.url}/alerts/{test['id']}")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("heading", name="TestAlert")).to_be_visible()


def test_a_stall_shows_where_each_thread_is(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    tmp_path: Path,
) -> None:
    script = tmp_path / "stalls.py"
    script.write_text(STALLS, encoding="utf-8")
    daemon = start_daemon(environ={"TRACKSIDE_ALERTS__STALL_AFTER": "2"})
    start_training(daemon, str(script), TRACKSIDE_RUN_NAME="stuck")
    found = of_name(daemon, "TrainingStalled", "stacks")
    page = open_page(daemon, f"/alerts/{found['id']}", width=390, color_scheme="dark")
    (rank,) = found["evidence"]["stacks"]
    page.get_by_text("rank 0, prefetch").click()
    for thread in rank["threads"]:
        stack = page.get_by_role("region", name=f"Stack of rank 0, {thread['name']}, the innermost call last")
        expect(stack).to_be_visible()
        assert stack.inner_text().strip().splitlines() == thread["frames"]
    sits = next(number for number, line in enumerate(STALLS.splitlines(), 1) if "here it sits" in line)
    expect(page.locator("pre").first.locator("b").last).to_have_text(
        f"{script}:{sits} wait_for_nothing"
    )  # its own code
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
