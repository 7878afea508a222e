"""The overview page with live and ended runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from certificate_authorities import hashed
from playwright.sync_api import expect
from processes import eventually

from trackside_daemon.web.dashboard import STATIC

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, Locator, Page
    from processes import Daemon

SCRIPT_NAME = "<script>alert(1)</script>"
LONG_NAME = "exp/" + "a-name-that-does-not-end-" * 8

#: Runs that have ended, one with a loss that is no number; then one that goes on a step with each line that it reads,
#: and one beside it whose loss is no number from its twentieth step on.
RUNS = f"""
import sys, trackside
for name, status in (("diverged", "failed"), ({LONG_NAME!r}, "finished"), ("given-up", "stopped")):
    with trackside.init(name, tags=("night", "base line")) as run:
        for step in range(1, 11): run.push(step=step, loss=float("nan") if name == "diverged" else 2.718281828 / step)
        run.finish(status)
for number in range(int(sys.argv[1])):
    with trackside.init(f"sweep-{{number}}") as run: run.push(step=number, loss=number / 7)
ill = trackside.init("goes-wrong")
run = trackside.init({SCRIPT_NAME!r}, total_steps=40)
for step, _ in enumerate(sys.stdin, 1):
    run.push(step=step, loss=2.718281828 / step, tokens=4096)
    ill.push(step=step, loss=float("nan") if step >= 20 else 2.0)
"""


def go_on(training: subprocess.Popen[str], steps: int) -> None:
    """Let the training make so many more steps."""
    assert training.stdin is not None
    training.stdin.write("\n" * steps)
    training.stdin.flush()


def now(daemon: Daemon, name: str) -> dict[str, Any]:
    """Return a run of the overview."""
    found: list[dict[str, Any]] = daemon.api("overview").json()["runs"]
    return next((run for run in found if run["name"] == name), {})


def ended(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the ended runs of the API once three have ended and two are live."""
    runs: list[dict[str, Any]] = daemon.api("runs").json()["runs"]
    over = [run for run in runs if run.get("ended")]
    return over if len(runs) - len(over) == 2 and len(over) >= 3 else []


def names(rows: Locator) -> list[str]:
    return rows.locator(".who a").all_inner_texts()


def test_what_is_now_is_on_it_as_the_api_has_it(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., subprocess.Popen[str]],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    daemon = start_daemon("--collector.gpu.simulate=8", "--collector.gpu.trouble=throttled:3")
    training = start_training(daemon, "-c", RUNS, "0")
    go_on(training, 10)
    eventually(lambda: now(daemon, SCRIPT_NAME).get("step") == 10)
    page = open_page(daemon)
    run = page.locator(".runs:not(.ended) > .run", has_text=SCRIPT_NAME)
    expect(run).to_contain_text("10 of 40, 25.0 %")
    expect(run).to_contain_text("running")
    expect(run).to_contain_text(f"{now(daemon, SCRIPT_NAME)['loss']:.4g}")
    assert run.locator(".bar span").evaluate("one => one.style.width") == "25%"
    go_on(training, 1)
    expect(run).to_contain_text("11 of 40, 27.5 %")
    expect(run).to_contain_text(f"{2.718281828 / 11:.4g}")
    reported = re.compile(f"to {2.718281828 / 11:.4g}, lowest {2.718281828 / 11:.4g}$")
    expect(run.get_by_role("img")).to_have_attribute("aria-label", reported)

    go_on(training, 14)
    # Trouble comes first, with its sentence.
    wrong = page.locator(".run").first
    expect(wrong).to_contain_text(re.compile("goes-wrong.*1 critical.*NaN at step 20.*NaN"))
    expect(page.get_by_text("1 of 2 live need attention")).to_be_visible()
    alert = page.locator(".firing li", has_text="NonFinite").filter(has_text="goes-wrong")
    expect(alert).to_contain_text("critical")
    [fires] = [
        one
        for one in daemon.api("overview").json()["alerts"]
        if (one["alert"], one.get("name")) == ("NonFinite", "goes-wrong")
    ]
    expect(alert).to_contain_text(fires["summary"])
    expect(alert.get_by_role("link", name="NonFinite")).to_have_attribute("href", f"/alerts/{fires['id']}")

    gpus = page.locator(".gpus > li")
    expect(gpus).to_have_count(8)
    expect(gpus.nth(3)).to_contain_text("hw slowdown")
    expect(gpus.nth(0)).to_contain_text(re.compile(r"\d+ %.*[\d.]+ GiB of 79.6 GiB.*\d+ W · \d+ °C", re.DOTALL))
    assert "undefined" not in page.locator("main").inner_text()
    assert "NaN %" not in page.locator("main").inner_text()
    host = daemon.api("overview").json()["host"]
    expect(page.locator(".strip")).to_contain_text(f"of {host['cpus']:.0f}")
    assert violations(page) == []

    run.get_by_role("checkbox").check()
    assert training.stdin is not None
    training.stdin.close()
    over = page.locator(".ended > li", has_text=SCRIPT_NAME)
    expect(over).to_contain_text("finished")
    expect(run).to_have_count(0)
    expect(page.get_by_text("No runs are live.")).to_be_visible()
    expect(over.get_by_role("checkbox")).to_be_checked()


def _keep_and_delete(daemon: Daemon, page: Page, violations: Callable[[Page], list[str]]) -> None:
    """Keep and delete runs in the table of three ended runs, also where the daemon refuses it."""
    rows = page.locator(".all-runs tbody tr:not(.spacer)")

    def edit(name: str) -> Locator:
        page.get_by_role("button", name=f"Edit {name}").click()
        return page.get_by_role("dialog")

    edit("given-up").get_by_label("Pinned").check()
    page.get_by_role("button", name="Save").click()
    expect(rows.filter(has_text="given-up")).to_contain_text("pinned")
    assert daemon.api("runs?name=given-up").json()["runs"][0]["pinned"] is True

    page.route(
        "**/pin", lambda route: route.fulfill(status=507, json={"error": {"reason": "error", "message": "no room"}})
    )
    dialog = edit("diverged")
    dialog.get_by_label("Pinned").check()
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_have_text("no room")
    dialog.get_by_role("button", name="Delete").click()
    confirmation = page.get_by_role("dialog").filter(has_text="Delete this run?")
    expect(confirmation).to_contain_text("diverged")
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(confirmation).to_have_count(0)
    expect(dialog.get_by_role("button", name="Delete")).to_be_focused()
    assert daemon.api("runs?name=diverged").json()["runs"]
    dialog.get_by_role("button", name="Delete").click()
    confirmation.get_by_role("button", name="Delete").click()
    expect(rows).to_have_count(2)
    assert daemon.api("runs?name=diverged").json()["runs"] == []


def test_an_ended_run_is_shown_and_found_kept_deleted_and_compared_in_the_table(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., subprocess.Popen[str]],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    daemon = start_daemon("--collector.gpu.simulate=16")
    go_on(start_training(daemon, "-c", RUNS, "40"), 1)
    eventually(lambda: len(ended(daemon)) == 43)
    runs = {run["name"]: run for run in ended(daemon)}
    page = open_page(daemon, width=390, color_scheme="dark", expected_errors=("507",))
    rows = page.locator(".ended > li")
    expect(rows).to_have_count(10)
    assert names(rows) == list(runs)[:10]
    assert float(rows.first.locator(".loss").inner_text()) == pytest.approx(runs["sweep-39"]["loss"], rel=1e-4)
    expect(page.locator(".gpus > li")).to_have_count(16)
    # Long names make no phone scroll sideways.
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert violations(page) == []

    page.set_viewport_size({"width": 1280, "height": 800})
    page.get_by_role("link", name="All runs").click()
    rows = page.locator(".all-runs tbody tr:not(.spacer)")
    expect(page.get_by_text("45 runs")).to_be_visible()
    page.evaluate(
        "for (const box of [...document.querySelectorAll('.all-runs td.box input')].slice(0, 33)) box.click()"
    )
    expect(page.locator(".chosen")).to_contain_text("33 runs selected; Compare and Export have at most 32")
    expect(page.locator(".chosen").get_by_role("link", name="Compare")).to_be_hidden()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(".chosen")).to_be_hidden()
    search = page.get_by_role("combobox", name="Filter")
    search.fill("state:failed")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text(re.compile("diverged.*failed.*NaN.*10"))
    page.get_by_role("button", name="Show only tag base line").click()
    expect(rows).to_have_count(3)
    expect(page).to_have_url(re.compile("q=tag"))  # written a moment later
    page.reload()
    expect(rows).to_have_count(3)

    _keep_and_delete(daemon, page, violations)
    search.fill("given-up|alert")
    for name in ("given-up", SCRIPT_NAME):
        page.get_by_role("checkbox", name=f"Select {name}").check()
    expect(page.locator(".chosen")).to_contain_text("2 runs selected")
    page.locator(".chosen").get_by_role("link", name="Compare").click()
    live = now(daemon, SCRIPT_NAME)["id"]
    assert parse_qs(urlsplit(page.url).query) == {"run": [runs["given-up"]["id"], live]}


def test_without_the_token_the_page_names_what_is_missing_and_where_it_lies(
    shared_daemon: Daemon, shared_context: BrowserContext
) -> None:
    daemon = shared_daemon
    with shared_context.new_page() as page:
        for fragment in ("", "#token=wrong"):
            page.goto(f"{daemon.url}/{fragment}")
            expect(page.get_by_role("alert")).to_contain_text("trackside token")
            expect(page.get_by_role("alert")).to_contain_text(str(daemon.directory / "push.token"))
        page.goto(f"{daemon.url}/#token={(daemon.directory / 'push.token').read_text().strip()}")
        expect(page.locator("#live")).to_contain_text("Live")
        assert "token" not in page.url


def test_the_page_asks_no_other_host_and_has_nothing_inline(shared_daemon: Daemon) -> None:
    policy = shared_daemon.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    ours = [file for file in STATIC.rglob("*") if file.is_file() and "uplot" not in file.relative_to(STATIC).parts]
    font = STATIC / "font"
    assert {file.suffix for file in ours if font not in file.parents} == {".html", ".js", ".css", ".svg"}
    for file in ours:
        if file.suffix == ".woff2" or file == font / "LICENSE":
            continue
        text = re.sub(r'"http://www.w3.org/[\w/]+"', "", file.read_text())  # names of SVG, which nobody asks for
        text = text.replace('url("/static/font/', "")
        found = re.search(
            r"https?:|url\(|@import|innerHTML|\bon[a-z]+=\"|\bstyle=|<style|<script>|document\.write", text
        )
        assert not found, (file, found)


def test_with_a_password_of_the_web_configuration_it_needs_no_token_and_without_a_run_has_the_lines_to_add(
    start_daemon: Callable[..., Daemon], browser: Browser, tmp_path: Path, violations: Callable[[Page], list[str]]
) -> None:
    (tmp_path / "web.yml").write_text(f"basic_auth_users: {{ada: '{hashed('lovelace')}'}}")
    flags = (f"--web.config.file={tmp_path}/web.yml", "--no-collector.gpu")
    daemon = start_daemon(*flags, asking={"auth": ("ada", "lovelace")})
    for fragment in ("", "#token=of-another-time"):
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(daemon.url.replace("//", "//ada:lovelace@") + f"/{fragment}")
            expect(page.locator("main")).to_contain_text("No runs yet. Add trackside.push(step=step, loss=loss)")
            expect(page.locator("pre")).to_contain_text("import trackside")
            expect(page.get_by_text("Ended last")).to_be_hidden()
            assert fragment or violations(page) == []
