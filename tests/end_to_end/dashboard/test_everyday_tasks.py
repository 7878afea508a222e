"""The everyday tasks of researchers: read charts, compare settings, find runs and a slow rank, silence an alert, share a view.

One daemon and one training serve all tests of the file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from playwright.sync_api import expect
from processes import ROOT, Daemon, clean_environ, eventually, lasting_daemon
from processes import start as start_process

from trackside_daemon.web.dashboard import STATIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Locator, Page

STEPS = 300

#: Runs of two settings with three seeds each; two ranks of which one computes longer, with a spike in the loss; and one more
#: process that waits until its input ends.
TRAINING = f"""
import sys, threading, time, trackside
rank = int(sys.argv[1])
if rank == 0:
    for seed in range(3):
        for lr in (0.1, 0.01):
            with trackside.init("sweep", id=f"{{'ab'[lr < 0.05]}}{{seed}}f3c8", config={{"lr": lr, "seed": seed}}, tags=("night",)) as run:
                for step in range(1, 101 - 50 * (seed == 2)): run.push(step=step, loss=1 / (1 + step * lr) + seed / 100, tokens=1000)
                run.summary(best=lr + seed / 100)
run = trackside.init("wide", id="wide-1", config={{"lr": 0.5}}, total_steps={STEPS})
for step in range(1, {STEPS + 1}):
    with run.phase("data"): pass
    with run.phase("forward"): time.sleep(0.004 + 0.02 * rank)
    run.push(step=step, loss=100.0 if step == {STEPS // 2} else 3 + (step % 2), tokens=1000, lr=8e-4)
    if step % 100 == 0 and rank == 0: run.event("checkpoint", path=f"/c/{{step}}")
if rank == 0:
    run.alert("disk full", severity="critical")
print("done", flush=True)
sys.stdin.read()
"""
HEAD = """async () => {
  const { Header } = await import("/static/run/header.js");
  const head = new Header({ id: "r", name: "r", state: "running", tags: [], attempt_list: [], metrics: [] });
  const alerts = Array.from({ length: 5 }, (_, id) => ({ id, alert: "LossSpike", severity: "info", started: id, summary: "" }));
  head.updateLive({ alerts, now: 9 });
  return [head.firing.children.length, head.moreAlerts.textContent, head.moreAlerts.getAttribute("href")];
}"""
STATED = {"pinned": ["tokens"], "order": ["tokens", "loss", "lr"], "full": [], "own": {}, "columns": 3, "closed": [], "opened": []}  # fmt: skip


@pytest.fixture(scope="module")
def lab() -> Iterator[Daemon]:
    """A daemon with the runs of `TRAINING`, of which wide-1 is live, and two simulated GPUs."""
    with lasting_daemon("--collector.gpu.simulate=2", environ={"TRACKSIDE_ALERTS__STALL_AFTER": "1h"}) as daemon:
        trainings = [_train(daemon, rank) for rank in (0, 1)]
        for training in trainings:
            assert training.stdout is not None
            assert training.stdout.readline() == "done\n"
        eventually(lambda: daemon.api("runs/wide-1").json().get("step") == STEPS)
        yield daemon
        for training in trainings:
            training.communicate(timeout=60)


def _train(daemon: Daemon, rank: int) -> subprocess.Popen[str]:
    more = {
        "TRACKSIDE_ENDPOINT": daemon.endpoint,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
    }
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    return start_process([sys.executable, "-c", TRAINING, str(rank)], env=clean_environ(more), **pipes)


def chart(page: Page, key: str) -> Locator:
    return page.locator("figure.chart").filter(has=page.get_by_role("heading", name=key, exact=True))


def rows(page: Page) -> list[str]:
    return page.locator(".all-runs tbody th.name").all_inner_texts()


def test_a_chart_is_smoothed_scaled_and_read_at_the_cursor(lab: Daemon, open_page: Callable[..., Page]) -> None:
    page = open_page(lab, "/runs/wide-1?smooth=50&smoothing=average")
    loss = chart(page, "loss")
    plot = loss.locator(".plot")
    expect(plot).to_have_attribute("aria-label", re.compile(f"at step {STEPS}"))
    plot.focus()
    page.keyboard.press("ArrowLeft")
    tip = loss.locator(".tip")
    expect(tip).to_contain_text(f"step {STEPS}")
    expect(tip.locator("th")).to_have_text(["", "", "smoothed", "raw"])
    assert [float(text) for text in tip.locator("td.number").all_inner_texts()] == pytest.approx([3.5, 3.5], abs=0.5)

    page.get_by_label("Ranks").select_option("all")
    expect(loss.locator(".legend button")).to_have_count(2)
    expect(loss.locator(".legend button .name")).to_have_text(["rank 0", "rank 1"])

    # The spike in the middle leaves the axis, for all charts or for this one.
    high = "plot => plot.closest('figure').chart.u.scales.y.max"
    assert plot.evaluate(high) > 100
    page.get_by_label("Ignore outliers").first.check()
    eventually(lambda: plot.evaluate(high) < 10)
    loss.get_by_role("button", name="Scale and range").click()
    loss.get_by_label("Highest").fill("50")
    loss.get_by_label("Highest").press("Enter")
    eventually(lambda: plot.evaluate(high) == 50)

    # Checkpoints are a legend that can be switched off, and tokens an axis.
    marks = "plot => plot.closest('figure').chart.view.marks.filter((mark) => mark.kind === 'checkpoint').length"
    eventually(lambda: plot.evaluate(marks) == STEPS // 100)
    page.get_by_role("button", name="■ checkpoint").click()
    eventually(lambda: plot.evaluate(marks) == 0)
    page.get_by_label("X axis").select_option("tokens")
    expect(plot).to_have_attribute("aria-label", re.compile("loss by tokens. Last: rank 0 3 at 600k tokens"))


def test_a_slow_rank_is_seen(
    lab: Daemon, open_page: Callable[..., Page], violations: Callable[[Page], list[str]]
) -> None:
    def known() -> Any:
        found = lab.api("runs/wide-1/performance").json()
        return found if any(value for row in found["ranks"] for value in row["own"]) else None

    found = eventually(known)
    own = [max(value or 0 for value in row["own"]) for row in found["ranks"]]
    assert own[1] > 1.5 * own[0] > 0.005
    assert max(value or 0 for value in found["step"]["p50"]) > 0.004
    page = open_page(lab, "/runs/wide-1")
    page.get_by_role("tab", name="Performance").click()
    expect(page).to_have_url(re.compile("tab=performance"))
    expect(chart(page, "Step time").locator(".legend")).to_contain_text("p99")
    expect(chart(page, "Phases of a step").locator(".legend")).to_contain_text("forward")
    expect(page.locator(".rank-figure")).to_contain_text(
        re.compile(r"Rank 1 takes [\d.]+ times the own time.*, since 20\d\d-")
    )
    expect(page.get_by_role("region", name="Each rank").locator("tbody tr").first).to_contain_text("1")
    expect(page.locator("tr.slow")).to_have_count(1)
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []
    page.keyboard.press("ArrowLeft")  # from the open tab to the one before
    expect(page.get_by_role("tab", name="Charts")).to_be_focused()
    expect(chart(page, "loss")).to_be_visible()


def test_one_alert_is_silenced_and_the_head_of_a_run_has_the_worst(lab: Daemon, open_page: Callable[..., Page]) -> None:
    page = open_page(lab, "/runs/wide-1")
    assert page.evaluate(HEAD) == [3, "2 more alerts", "/alerts?run=r"]
    # A link to the alerts of a run shows only those, also of the ones that fire.
    page.goto(f"{lab.url}/alerts?run=a0f3c8")
    expect(page.get_by_text("No firing alert matches.")).to_be_visible()
    page.get_by_role("searchbox", name="Run").fill("wide")
    page.keyboard.press("Enter")
    expect(page.get_by_role("list", name="Firing alerts").locator("li", has_text="disk full")).to_be_visible()
    page.get_by_role("link", name="Alerts").click()
    firing = page.get_by_role("list", name="Firing alerts")
    row = firing.locator("li", has_text="disk full")
    # Who may only read has no buttons that change something.
    silence = row.get_by_role("button", name="Silence")
    expect(silence).to_be_visible()
    html = page.locator("html")
    expect(html).to_have_attribute("data-role", "admin")
    html.evaluate("html => { html.dataset.role = 'read'; }")
    expect(silence).to_be_hidden()
    html.evaluate("html => { html.dataset.role = 'admin'; }")
    silence.click()
    page.get_by_role("dialog").get_by_role("button", name="Silence").click()
    expect(page.get_by_text("1 firing alert is silenced: UserAlert of wide.")).to_be_visible()
    expect(row).to_contain_text("silenced until")
    silenced = [alert for alert in lab.api("alerts?firing=true").json()["alerts"] if alert["silenced_until"]]
    assert [alert["summary"] for alert in silenced] == ["disk full"]


@pytest.mark.usefixtures("only_soak")
def test_runs_are_found_in_the_table(
    lab: Daemon, open_page: Callable[..., Page], violations: Callable[[Page], list[str]]
) -> None:
    page = open_page(lab, "/runs")
    expect(page.get_by_text("7 runs")).to_be_visible()
    # Equal names are told apart.
    assert sorted(rows(page)) == [*(f"sweep-{lr}{seed}f3" for lr in "ab" for seed in range(3)), "wide"]
    expect(page.locator(".all-runs .curve path")).to_have_count(7)
    page.get_by_role("button", name="best", exact=True).click()
    expect(page.locator(".all-runs tbody tr:not(.spacer)").first).to_contain_text("0.01")
    page.get_by_label("Group by").select_option("lr")
    expect(page.locator("tr.group")).to_have_count(3)
    expect(page.locator("tr.group").first).to_contain_text("0.02 ± 0.01")
    page.locator("tr.group button").first.click()
    expect(page.locator(".all-runs tbody th.name a")).to_have_count(3)
    page.get_by_label("Filter").fill("tag:nig?t")
    expect(page.get_by_text("6 of 7 runs")).to_be_visible()
    expect(page).to_have_url(re.compile("group=config.lr.*q=|q=.*group=config.lr"))
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("loss (lowest)").check()
    expect(page.get_by_role("button", name="loss (lowest)")).to_be_visible()
    expect(page.locator("tr.group").first).to_contain_text("0.5")
    page.get_by_text("Columns", exact=True).click()
    assert violations(page) == []

    page.get_by_role("button", name=re.compile("Edit sweep-")).first.click()
    page.get_by_role("textbox", name="Name").fill("sweep-kept")
    page.get_by_role("textbox", name="Notes").fill("the best <b>so far</b>")
    page.get_by_role("textbox", name="Tags").fill("night, paper")
    assert violations(page) == []
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".all-runs tbody th.name").filter(has_text=re.compile("^sweep-kept$"))).to_have_count(1)
    (run,) = lab.api("runs?name=sweep-kept").json()["runs"]
    assert (run["notes"], run["tags"]) == ("the best <b>so far</b>", ["night", "paper"])


def test_settings_are_compared_with_a_band_over_seeds(
    lab: Daemon, open_page: Callable[..., Page], violations: Callable[[Page], list[str]]
) -> None:
    ids = [run["id"] for run in lab.api("runs?name=sweep").json()["runs"]]
    page = open_page(lab, f"/compare?{'&'.join(f'run={id_}' for id_ in ids)}")
    expect(page.locator("table.all-runs thead")).to_contain_text("lr")
    plot = chart(page, "loss").locator(".plot")
    expect(plot).to_have_attribute("aria-label", re.compile("at step 50"))
    plot.focus()
    page.keyboard.press("ArrowLeft")
    # Each line has its own step: two runs ended at step 50.
    tip = chart(page, "loss").locator(".tip")
    expect(tip).to_contain_text("step 100")
    expect(tip.locator("tr", has_text="step 50")).to_have_count(2)
    page.get_by_label("Group by").select_option("lr")
    expect(plot).to_have_attribute(
        "aria-label", re.compile(r"lr 0\.01 \(3\) \S+ at step \d+; lr 0\.1 \(3\)|lr 0\.1 \(3\)")
    )
    expect(page.locator(".scatter circle")).to_have_count(6)
    expect(page.locator(".parallel polyline")).to_have_count(6)
    assert violations(page) == []


def see_formulas(page: Page) -> None:
    """Give the chart of the loss a second key, with an axis of its own, then their ratio, and take it away."""
    chart(page, "loss").get_by_role("button", name="Scale and range").click()
    chart(page, "loss").get_by_label("With").select_option("lr")
    both = chart(page, "loss and lr")
    expect(both.locator(".legend button")).to_have_count(2)
    page.wait_for_function("document.querySelector('.legend button + button').closest('.chart').chart.u.axes[2].show")
    both.get_by_label("Shown").select_option("/")
    expect(chart(page, "loss ÷ lr").locator(".now")).to_have_text("3,750", timeout=20_000)  # of 3 and 8e-4
    chart(page, "loss ÷ lr").get_by_label("With").select_option("")


def test_a_view_is_arranged_shared_and_used_by_keyboard(
    lab: Daemon, open_page: Callable[..., Page], violations: Callable[[Page], list[str]]
) -> None:
    page = open_page(lab, "/runs/wide-1")
    page.set_viewport_size({"width": 1280, "height": 1600})
    titles = page.locator("section[aria-label=Charts] figure.chart h3")
    expect(titles).to_have_text(["loss", "lr", "tokens"])
    chart(page, "tokens").get_by_role("button", name="Pin to the top").click()
    expect(titles).to_have_text(["tokens", "loss", "lr"])
    expect(page.get_by_role("heading", name="Pinned")).to_be_visible()
    chart(page, "lr").locator(".drag").drag_to(chart(page, "loss"), target_position={"x": 20, "y": 100})
    expect(titles).to_have_text(["tokens", "lr", "loss"])
    page.get_by_label("Columns").select_option("3")
    stored = json.loads(page.evaluate("localStorage.getItem('workspace:wide')"))
    assert (stored["pinned"], stored["columns"]) == (["tokens"], 3)
    page.reload()
    expect(titles).to_have_text(["tokens", "lr", "loss"])

    # The link has it too, for a browser that has stored nothing.
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed')); }")
    page.get_by_role("button", name="Share").click()
    page.get_by_role("button", name="Copy link").click()
    shared = page.get_by_label("To copy").input_value()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="HTML report").click()
    assert "<title>wide: trackside report" in waiting.value.path().read_text("utf-8")
    page.evaluate("localStorage.clear()")
    page.goto(shared)
    expect(titles).to_have_text(["tokens", "lr", "loss"])

    # A chart is hidden, and gets a second key with an axis of its own.
    page.get_by_role("button", name="Hide tokens").click()
    expect(titles).to_have_text(["lr", "loss"])
    page.get_by_role("button", name="Show", exact=True).click()
    see_formulas(page)
    page.evaluate("document.activeElement.blur()")
    expect(titles).to_have_text(["tokens", "lr", "loss"])

    # j, k, f, [ and ] work on charts, / goes to the search, ? explains, t switches the theme.
    page.keyboard.press("j")
    expect(chart(page, "tokens").locator(".plot")).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("]")
    expect(titles).to_have_text(["tokens", "loss", "lr"])
    page.keyboard.press("f")
    expect(chart(page, "lr").locator(".plot canvas")).to_have_css("height", "420px")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Keys")).to_be_focused()
    page.keyboard.type("lr")
    expect(titles).to_have_count(1)
    page.get_by_role("searchbox", name="Keys").blur()
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("pin the chart")
    assert violations(page) == []
    page.evaluate("localStorage.clear()")


def test_the_machine_has_an_hour_and_its_processes_can_be_ended(lab: Daemon, open_page: Callable[..., Page]) -> None:
    page = open_page(lab, "/system")
    expect(chart(page, "CPU").locator(".plot")).to_have_attribute(
        "aria-label", re.compile(r"CPU by time. Last: [\d.]+ %")
    )
    chart(page, "GPU utilization").scroll_into_view_if_needed()
    expect(chart(page, "GPU utilization").locator(".legend button")).to_have_count(2)
    page.locator("label", has_text=re.compile("^More")).locator("select").select_option("clock_hertz")
    expect(chart(page, "GPU clock")).to_be_visible()
    expect(page).to_have_url(re.compile("gpu=clock_hertz"))
    table = page.get_by_role("region", name="Processes")
    ranks = table.locator("tbody tr", has_text="wide: ")
    expect(ranks).to_have_count(2)
    expect(ranks.first).to_contain_text("python")
    page.get_by_role("button", name="Memory", exact=True).click()
    expect(page.get_by_label("As a tree")).not_to_be_checked()
    pid = lab.api("processes").json()["processes"][0]["pid"]
    page.get_by_role("button", name=f"End process {pid}").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert len(lab.api("processes").json()["processes"]) == 2
    page.set_viewport_size({"width": 390, "height": 800})
    eventually(lambda: page.evaluate("document.documentElement.scrollWidth") == 390)


def test_the_font_is_shipped_with_its_licence() -> None:
    fonts = [*STATIC.glob("font/*.woff2")]
    assert 0 < sum(font.stat().st_size for font in fonts) <= 100_000
    assert "SIL OPEN FONT LICENSE" in (STATIC / "font" / "LICENSE").read_text().upper()


def add_spare(lab: Daemon, number: int) -> None:
    """Add an ended run."""
    token = (lab.directory / "push.token").read_text().strip()
    csv = f"step,time,loss\n1,{1.7e9 + number},0.5\n"
    address = f"{lab.url}/api/v1/import?name=spare&id=spare-{number}"
    httpx.post(address, content=csv, headers={"Authorization": f"Bearer {token}"}).raise_for_status()


def test_many_runs_are_tagged_pinned_and_deleted_at_once(lab: Daemon, open_page: Callable[..., Page]) -> None:
    for number in range(4):
        add_spare(lab, number)
    page = open_page(lab, "/runs?q=spare", expected_errors=("404",))  # of the run that is deleted on its own page
    bar = page.locator(".chosen")
    boxes = page.get_by_role("checkbox", name=re.compile("^Select spare"))
    expect(boxes).to_have_count(4)
    boxes.nth(0).click()
    boxes.nth(2).click(modifiers=["Shift"])
    expect(bar).to_contain_text("3 runs selected")
    for pressed in "jx":  # the row below the last that was clicked
        page.keyboard.press(pressed)
    expect(bar).to_contain_text("4 runs selected")
    boxes.nth(3).click()
    page.get_by_role("checkbox", name="Select all listed runs").click()
    expect(bar).to_contain_text("4 runs selected")

    bar.get_by_role("button", name="Tag").click()
    page.get_by_role("textbox", name="Tag", exact=True).fill("old")
    page.get_by_role("dialog").get_by_role("button", name="Tag").click()
    expect(page.get_by_role("button", name="Show only tag old")).to_have_count(4)
    bar.get_by_role("button", name="Pin").click()
    expect(page.locator(".all-runs tbody")).to_contain_text(re.compile("(spare.*pinned.*){4}"))

    boxes.nth(3).click()
    bar.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("3 runs deleted")).to_be_visible()
    expect(boxes).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    expect(boxes).to_have_count(4)
    for place in range(3):
        boxes.nth(place).click()
    bar.get_by_role("button", name="Delete").click()
    expect(boxes).to_have_count(1)

    # They are gone when the page is left. Notes are written where they stand.
    page.get_by_role("link", name="spare").click()
    notes = page.get_by_role("textbox", name="Notes")
    notes.fill("the <b>last</b> one")
    with page.expect_response("**/about"):
        notes.press("Control+Enter")
    eventually(lambda: [run["notes"] for run in lab.api("runs?query=spare").json()["runs"]] == ["the <b>last</b> one"])
    notes.fill("")
    with page.expect_response("**/about"):
        notes.press("Control+Enter")
    eventually(lambda: [run["notes"] for run in lab.api("runs?query=spare").json()["runs"]] == [""])
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_role("dialog", name="Delete this run?").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    assert lab.api("runs?query=spare").json()["runs"] == []


@pytest.mark.usefixtures("only_soak")
def test_a_refused_deletion_brings_the_run_back_and_closing_the_tab_deletes(
    lab: Daemon, open_page: Callable[..., Page]
) -> None:
    add_spare(lab, 4)
    page = open_page(lab, "/runs?q=spare", expected_errors=("503",))
    bar = page.locator(".chosen")
    boxes = page.get_by_role("checkbox", name=re.compile("^Select spare"))
    page.route("**/runs/spare-4", lambda route: route.fulfill(status=503, json={"error": {"message": "busy"}}))
    boxes.check()
    bar.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("1 run deleted")).to_be_visible()
    page.evaluate("dispatchEvent(new Event('pagehide'))")
    expect(page.get_by_text("busy")).to_be_visible()
    expect(boxes).to_have_count(1)
    page.unroute("**/runs/spare-4")
    boxes.check()
    bar.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("1 run deleted")).to_be_visible()
    page.goto("about:blank")
    eventually(lambda: lab.api("runs?query=spare").json()["runs"] == [])
