"""The frame around every page of the dashboard."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page, Route
    from processes import Daemon

SEEN = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
ROWS = """async () => {
  const { h, syncRows } = await import("/static/dom.js");
  const list = h("ul");
  document.body.append(list);
  const show = (...items) => syncRows(list, items, (one) => one, (one) => h("button", {}, `button ${one}`));
  show(1, 2, 3);
  list.lastChild.focus();
  const moved = new MutationObserver(() => {});
  moved.observe(list, { childList: true });
  show(2, 3);
  const added = moved.takeRecords().flatMap((one) => [...one.addedNodes]).length;
  const focused = document.activeElement.textContent;
  list.remove();
  return [focused, added];
}"""
LEFT = """async () => {
  const { confirmDialog } = await import("/static/confirm.js");
  const page = new AbortController();
  const answer = confirmDialog("Delete this run?", "It is gone then.", "Delete", page.signal);
  page.abort();
  return answer;
}"""


def test_the_pages_are_reached_by_their_links_and_the_browsers_own_way_back_and_nothing_stands_in_the_way_of_anyone(
    shared_daemon: Daemon, open_page: Callable[..., Page], violations: Callable[[Page], list[str]]
) -> None:
    page = open_page(shared_daemon, color_scheme="dark")  # their own tests have them light
    expect(page.locator("#live")).to_contain_text("Live")
    expect(page.locator("main h1").first).to_be_visible()
    assert "token" not in page.url
    assert violations(page) == []
    for name in ("Runs", "Compare", "System", "Alerts", "Export"):
        page.get_by_role("link", name=name).click()
        expect(page).to_have_title(f"{name} · trackside")
        expect(page.locator("nav [aria-current=page]")).to_contain_text(name)
        expect(page.locator("main h1").first).to_be_visible()
        assert violations(page) == []
    page.go_back()
    expect(page).to_have_title("Alerts · trackside")
    page.reload()
    expect(page.locator("#live")).to_contain_text("Live")


def test_a_tab_lives_on_when_its_daemon_falls_silent_or_restarts_but_not_with_another_token(
    start_daemon: Callable[..., Daemon], open_page: Callable[..., Page], violations: Callable[[Page], list[str]]
) -> None:
    daemon = start_daemon()
    page = open_page(daemon, "/system", expected_errors=("401", "ERR_"))
    live, outage = page.locator("#live"), page.locator("#outage")
    expect(live).to_contain_text("Live")
    expect(outage).to_be_hidden()
    daemon.process.send_signal(signal.SIGSTOP)
    expect(outage).to_contain_text("Retrying. The daemon sends no updates.")
    assert re.match(r"No updates since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\. ", outage.inner_text())
    expect(live).to_have_text("Not live")
    page.get_by_role("link", name="Compare").click()
    expect(page.locator("nav [aria-current=page]")).to_have_text("Compare")
    daemon.process.send_signal(signal.SIGCONT)
    expect(live).to_contain_text("Live, ")
    expect(outage).to_be_hidden()
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()

    page.goto(f"{daemon.url}/runs?sort=step")
    page.get_by_label("Filter").fill("x")
    expect(page).to_have_url(f"{daemon.url}/runs?sort=step&q=x")
    daemon.stop()
    expect(outage).to_contain_text("The daemon does not answer.")
    same_address = f"--web.listen-address={urlsplit(daemon.url).netloc}"
    again = start_daemon(same_address)
    expect(live).to_contain_text("Live, ")
    expect(outage).to_be_hidden()
    expect(page.get_by_label("Filter")).to_have_value("x")
    old = (again.directory / "push.token").read_text().strip()
    rotated = httpx.post(f"{again.url}/api/v1/token", headers={"Authorization": f"Bearer {old}"})
    notice = page.locator("main").get_by_role("alert")
    expect(notice).to_contain_text("The daemon has a new token")
    expect(outage).to_be_hidden()
    assert violations(page) == []
    token = rotated.json()["token"]
    assert (again.directory / "push.token").read_text() == (again.history / "api.token").read_text() == f"{token}\n"
    page.get_by_label("Token").fill("x" * 32)
    page.keyboard.press("Enter")
    expect(notice).to_contain_text("The token is wrong")
    page.get_by_label("Token").fill(f" {daemon.url}/#token={token}\n")
    page.get_by_role("button", name="Open").click()
    expect(live).to_contain_text("Live")
    expect(page).to_have_url(f"{daemon.url}/runs?sort=step&q=x")
    expect(page.get_by_label("Filter")).to_have_value("x")


def test_a_hidden_tab_receives_nothing_a_dialog_ends_with_its_page_and_rows_keep_the_focus(
    shared_daemon: Daemon, open_page: Callable[..., Page]
) -> None:
    page = open_page(shared_daemon, "/system")
    live = page.locator("#live")
    expect(live).to_contain_text("Live")
    with page.expect_event("requestfailed", lambda request: "/stream" in request.url):
        page.evaluate(SEEN, True)
    expect(live).to_have_text("Paused")
    page.evaluate(SEEN, False)
    expect(live).to_contain_text("Live")
    assert page.evaluate(LEFT) is False
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.evaluate(ROWS) == ["button 3", 0]


@pytest.mark.usefixtures("only_soak")
def test_a_request_that_is_lost_costs_no_token(
    start_daemon: Callable[..., Daemon], open_page: Callable[..., Page]
) -> None:
    page = open_page(start_daemon("--web.public-read"), "/system", expected_errors=("ERR_FAILED", "401"))
    expect(page.get_by_role("heading", name="Host")).to_be_visible()
    status = "**/api/v1/status"
    refusal = {"error": {"reason": "token", "message": "the API needs a token"}}

    def lost(route: Route) -> None:
        if "authorization" in route.request.headers:
            route.abort()
        else:
            route.fulfill(status=401, json=refusal)

    page.route(status, lost)
    expect(page.get_by_role("alert")).to_have_text("The daemon does not answer.")
    page.unroute(status)
    expect(page.get_by_role("alert")).to_be_hidden()

    def answered(page: Page, *, token: bool) -> None:
        page.wait_for_event(
            "response",
            lambda one: one.url.endswith("/status") and one.ok and ("authorization" in one.request.headers) is token,
        )

    page.route(status, lambda route: route.abort() if "authorization" in route.request.headers else route.continue_())
    answered(page, token=False)
    page.unroute(status)
    answered(page, token=True)


def test_a_fragment_opens_no_page_anew_and_an_odd_address_reports_it(
    shared_daemon: Daemon, open_page: Callable[..., Page]
) -> None:
    page = open_page(shared_daemon, "/runs/100%", expected_errors=("404",))
    expect(page.get_by_role("alert")).to_contain_text("run '100%'")
    page.goto(f"{shared_daemon.url}/nope")
    expect(page.get_by_role("alert")).to_contain_text("There is no page /nope.")
    assert page.evaluate("document.fonts.ready.then(() => document.fonts.check('14px Inter'))")
    assert page.locator("nav svg").count() == page.locator("nav a").count()
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    page.goto(f"{shared_daemon.url}/system")
    heading = page.get_by_role("heading", name="System")
    heading.evaluate("heading => heading.mine = true")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{shared_daemon.url}/system#main")
    expect(page.locator("main")).to_be_focused()
    assert heading.evaluate("heading => heading.mine")
