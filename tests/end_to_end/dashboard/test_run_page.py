"""The page of a run: it shows the API's data of a real run, and requests what the user selects."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest
from playwright.sync_api import expect
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from playwright.sync_api import Locator, Page, Route
    from processes import Daemon

TRAINING = """
import sys, trackside
run = trackside.init("seen", id="seen-1", total_steps=1000, config={"model": {"layers": 12}, "lr": 0.1})
for line in sys.stdin:
    name, _, value = line.strip().partition(" ")
    if name == "event":
        run.event(value, size=5)
        continue
    with run.phase("forward"):
        step = int(name)
    run.push(step=step, loss=float(value or 5.0 - step / 100), tokens=500, **{"eval/f1": step / 1000, "eval/margin": -step})
"""
TRIED_AGAIN = """async () => {
  const { Chart } = await import("/static/charts/chart.js");
  return new Promise((resolve) => {
    const lines = Array.from({ length: 101 }, (_, index) => ({ label: `${index}`, index, points: [[0, 0, index]] }));
    let tries = 0;
    const load = async () => {
      tries += 1;
      if (tries === 1) throw new Error("not now");
      setTimeout(() => resolve([tries, made.root.querySelector("small").textContent]));
      return lines;
    };
    const made = new Chart({ title: "tried", load, reduceHint: "no more" }, new AbortController().signal);
    document.querySelector("main").replaceWith(made.root);
  });
}"""
SWEEP = """(plot) => ["Escape", ...Array(250).fill("ArrowLeft")].map((key) => {
  plot.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  return plot.closest("figure").querySelector(".spoken").textContent;
})"""
TOUCH = """(over, end) => {
  const { left, top } = over.getBoundingClientRect();
  for (const [name, x] of [["pointerdown", 60], ["pointermove", 160], [end, 160]]) {
    over.dispatchEvent(new PointerEvent(name, { pointerType: "touch", clientX: left + x, clientY: top + 50, bubbles: true }));
  }
  return over.querySelector(".u-select").style.width;
}"""
ODD = "<script>alert(1)</script> ünï/cödé 100%?#&"


def send_lines(training: Process, *lines: object) -> None:
    assert training.stdin is not None
    training.stdin.writelines(f"{line}\n" for line in lines)
    training.stdin.flush()


def chart(page: Page, key: str) -> Locator:
    return page.locator("figure.chart").filter(has=page.get_by_role("heading", name=key, exact=True))


def tile(page: Page, name: str) -> Locator:
    return page.locator(".run-tile").filter(has=page.get_by_text(name, exact=True)).locator(".run-figure")


def asked(url: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(url).query)


def of_loss(url: str, *, zoomed: bool) -> bool:
    """Return True if a request is for the loss, of a part or of everything."""
    return "/series" in url and "loss" in asked(url).get("key", ()) and ("from" in asked(url)) == zoomed


def drag(page: Page, plot: Locator, begin: float, end: float) -> None:
    """Drag from one part of the plot's width to another."""
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + begin * box["width"], box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], box["y"] + 90, steps=4)
    page.mouse.up()


def spoken(page: Page, where: Locator, text: str) -> None:
    """Move the cursor from right to left until its position is announced."""
    plot = where.locator(".plot")
    plot.focus()
    page.keyboard.press("ArrowLeft")
    expect(where.locator(".spoken")).to_contain_text("step")
    eventually(lambda: any(text in one for one in plot.evaluate(SWEEP)))


def test_a_live_run_is_shown_as_the_api_reports_it(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    daemon = start_daemon("--collector.gpu.simulate=2", environ={"TRACKSIDE_ALERTS__STALL_AFTER": "1h"})
    ranks = [start_training(daemon, "-c", TRAINING, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    for training in ranks:
        send_lines(training, *range(1, 100), "event checkpoint", *range(100, 150), "150 nan", *range(151, 200))
    eventually(lambda: daemon.api("runs/seen-1").json().get("step") == 199)
    eventually(lambda: daemon.api("alerts?run=seen-1").json()["alerts"])

    page = open_page(daemon, "/runs/seen-1")
    expect(page).to_have_title("seen · trackside")
    expect(page.locator(".run-head .badge").first).to_contain_text("running")
    loss = chart(page, "loss")
    expect(loss.locator(".plot")).to_have_attribute("aria-label", _with("loss by step. Last: 3.01 at step 199."))

    # What is new comes by itself, for all charts by one question.
    def of_all(url: str) -> bool:
        return "/series" in url and {"loss", "eval/f1"} <= set(asked(url).get("key", ()))

    with page.expect_request(lambda request: of_all(request.url)):
        for training in ranks:
            send_lines(training, 200)
    expect(tile(page, "Step")).to_have_text("200")
    expect(tile(page, "Loss")).to_have_text("3")
    expect(loss.locator(".now")).to_have_text("3")
    expect(loss.locator(".plot")).to_have_attribute("aria-label", _with("loss by step. Last: 3 at step 200."))

    # A scale that has no place for what is not above 0 says so, and an event and an alert are told at their places.
    spoken(page, loss, "NonFinite")
    spoken(page, loss, "checkpoint of ranks 0\u20131, step 99: size 5")
    page.get_by_label("Log scale").check()
    margin = chart(page, "eval/margin")
    margin.scroll_into_view_if_needed()
    expect(margin.locator(".note")).to_contain_text("A log scale needs values above 0")
    expect(loss.locator(".note")).to_be_hidden()
    host = daemon.api("overview").json()["host"]["name"]
    expect(page.get_by_role("heading", name=f"The daemon's machine, {host}")).to_be_visible()
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []

    # The keys, as the API has them.
    page.get_by_role("tab", name="Details").click()
    kept = {one["key"]: one for one in daemon.api("runs/seen-1").json()["metrics"] if one["rank"] == 0}
    table = page.get_by_role("region", name="Metrics")
    for key, one in kept.items():
        row = table.locator("tr").filter(has=page.get_by_role("rowheader", name=key, exact=True))
        expect(row.locator("td").nth(1)).to_have_text(f"{one['last']:g}")
        expect(row.locator("td").nth(6)).to_have_text(str(one["count"]))
        expect(row.locator("td").nth(7)).to_have_text(str(one["nonfinite"]))
    expect(page.get_by_role("region", name="Configuration")).to_contain_text("model.layers")
    assert violations(page) == []

    # The time by phase, of all ranks.
    eventually(lambda: len(daemon.api("runs/seen-1").json()["attempt_list"][0].get("phases", {})) == 2)
    page.get_by_role("tab", name="Performance").click()
    by_phase = page.locator("details").filter(has=page.get_by_role("heading", name="Time by phase"))
    expect(by_phase.locator("tbody th")).to_have_text(["other", "forward"])


def _train_two_ranks(daemon: Daemon, start_training: Callable[..., Process]) -> None:
    trainings = [start_training(daemon, "-c", TRAINING, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    for rank, training in enumerate(trainings):
        send_lines(training, f"1 {1 + rank}")
    # A rank that opens the run after the other has ended it begins another attempt.
    names = {f'trackside_training_loss{{rank="{rank}",run="seen"}}' for rank in (0, 1)}
    eventually(lambda: names <= daemon.series().keys())
    for rank, training in enumerate(trainings):
        send_lines(training, *(f"{step} {step + rank}" for step in range(2, 4001)))
        assert training.stdin is not None
        training.stdin.close()


def see_pictures(page: Page, loss: Locator) -> None:
    """Download a chart as it is shown, and as SVG."""
    with page.expect_download() as fetched:
        loss.get_by_role("button", name="Download as PNG").click()
    assert fetched.value.suggested_filename.endswith("-loss.png")
    assert fetched.value.path().read_bytes().startswith(b"\x89PNG\r\n")
    loss.get_by_role("button", name="Scale and range").click()
    with page.expect_download() as fetched:
        loss.get_by_role("button", name="SVG").click()
    assert fetched.value.suggested_filename.endswith("-loss.svg")
    assert fetched.value.path().read_bytes().startswith(b"<svg ")


def test_zoom_ranks_and_axis_ask_for_what_they_show_and_stay_in_the_address(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process], open_page: Callable[..., Page]
) -> None:
    daemon = start_daemon("--collector.gpu.simulate=2")
    _train_two_ranks(daemon, start_training)
    # On a busy machine, what the end of a training did not wait for comes from its spool.
    eventually(lambda: [daemon.api("runs/seen-1").json().get(one) for one in ("state", "step")] == ["finished", 4000])
    page = open_page(daemon, "/runs/seen-1")
    loss = chart(page, "loss")
    expect(loss.locator(".plot")).to_have_attribute("aria-label", _with("Last: 4,000 at step 4000."))

    with page.expect_response(lambda answer: of_loss(answer.url, zoomed=True)) as zoomed:
        drag(page, loss.locator(".u-over"), 0.25, 0.5)
    query = asked(zoomed.value.url)
    begin, end = float(query["from"][0]), float(query["to"][0])
    assert (begin, end) == pytest.approx((1000, 2000), abs=20)
    width = loss.locator(".plot").evaluate("(one) => one.clientWidth")
    (line,) = (one for one in zoomed.value.json()["series"] if one["key"] == "loss")
    assert 500 < len(line["points"]) <= int(query["points"][0]) <= width
    expect(loss.locator(".plot")).to_have_attribute("aria-label", _with(f"Last: {end:,g} at step {end:g}."))
    eventually(lambda: asked(page.url).get("from") == [f"{begin:g}"])

    def same() -> bool:
        """Return True if the page and the test received the same data; samples may be packed in between."""
        with page.expect_response(lambda answer: of_loss(answer.url, zoomed=True)) as again:
            page.reload()
        path = again.value.url.partition("/api/v1/")[2]
        return bool(daemon.api(path).json() == again.value.json())

    eventually(same)
    expect(loss.locator(".plot")).to_have_attribute("aria-label", _with(f"Last: {end:,g} at step {end:g}."))
    other = chart(page, "eval/f1").locator(".plot")
    other.scroll_into_view_if_needed()
    expect(other).to_have_attribute("aria-label", _with(f"Last: {end / 1000:g} at step {end:g}."))

    with page.expect_request(lambda request: of_loss(request.url, zoomed=False)):
        page.get_by_role("button", name="Reset zoom").click()
    expect(loss.locator(".plot")).to_have_attribute("aria-label", _with("Last: 4,000 at step 4000."))
    eventually(lambda: "from" not in asked(page.url))

    page.get_by_label("Ranks").select_option("all")
    expect(loss.locator(".legend button")).to_have_text(["rank 04,000", "rank 14,001"])
    loss.locator(".legend button").first.click()
    expect(loss.locator(".plot")).to_have_attribute("aria-label", _with("Last: rank 1 4,001 at step 4000."))
    page.get_by_label("Ranks").select_option("band")
    expect(loss.locator(".legend button")).to_have_text(["2 ranks, median4001"])

    with page.expect_request(
        lambda request: of_loss(request.url, zoomed=False) and asked(request.url)["by"] == ["time"]
    ):
        page.get_by_label("X axis").select_option("time")
    page.wait_for_url(lambda url: (asked(url).get("by"), asked(url).get("ranks")) == (["time"], ["band"]))
    expect(loss.locator(".plot")).to_have_attribute("aria-label", _with("loss by time"))

    see_pictures(page, loss)

    page.get_by_role("searchbox", name="Keys").fill("f1")
    expect(page.locator("section[aria-label=Charts] figure.chart")).to_have_count(1)


def test_an_ended_run_whatever_it_is_called(
    shared_daemon: Daemon, start_training: Callable[..., Process], open_page: Callable[..., Page]
) -> None:
    daemon = shared_daemon
    script = f"""
import trackside
run = trackside.init({ODD!r}, id={ODD!r}, tags=[{ODD!r}], config={{{ODD!r}: {ODD!r}}})
run.push({{{ODD!r}: 1.5}}, step=1)
raise RuntimeError({ODD!r})
"""
    start_training(daemon, "-c", script).wait()
    path = quote(ODD, safe="")
    run = eventually(lambda: (kept := daemon.api(f"runs/{path}").json()).get("state") == "failed" and kept)
    page = open_page(daemon, f"/runs/{path}")
    expect(page.locator("h1")).to_have_text(ODD)
    expect(page.locator(".run-head .badge").first).to_contain_text("failed")
    expect(page.locator(".run-cause")).to_contain_text(run["cause"])
    expect(page.locator("span.tag")).to_have_text(ODD)
    expect(chart(page, ODD).locator(".plot")).to_have_attribute("aria-label", _with("Last: 1.5 at step 1."))
    page.get_by_role("tab", name="Details").click()
    expect(page.get_by_role("region", name="Configuration").locator("tbody")).to_have_text(ODD + ODD)
    expect(page.get_by_role("button", name="Show stacks")).to_be_hidden()
    assert page.locator("script:not([src])").count() == 0
    # A chart that failed is tried again, and draws no more lines than can be distinguished.
    assert page.evaluate(TRIED_AGAIN) == [2, "Showing 100 of 101 lines; no more"]


def test_a_run_that_resumed_from_a_checkpoint_is_where_its_last_attempt_is(
    shared_daemon: Daemon, start_training: Callable[..., Process], open_page: Callable[..., Page]
) -> None:
    daemon = shared_daemon
    for step in (900, 400):
        script = f"import trackside; trackside.init('r', id='r-1', total_steps=1000).push(step={step}, loss=1.0)"
        start_training(daemon, "-c", script).wait()
        eventually(lambda: daemon.api("runs/r-1").json().get("state") == "finished")
    eventually(lambda: len(daemon.api("runs/r-1").json()["attempt_list"]) == 2)
    page = open_page(daemon, "/runs/r-1")
    expect(tile(page, "Step")).to_have_text("400")
    expect(chart(page, "loss").locator(".legend button")).to_have_text(["attempt 01", "attempt 11"])

    # A finger that the browser takes for scrolling chooses nothing.
    over, reset = chart(page, "loss").locator(".u-over"), page.get_by_role("button", name="Reset zoom")
    assert over.evaluate(TOUCH, "pointercancel") == "0px"
    expect(reset).to_be_hidden()
    over.evaluate(TOUCH, "pointerup")
    expect(reset).to_be_visible()


def open_noted(
    daemon: Daemon, start_training: Callable[..., Process], open_page: Callable[..., Page], **more: Any
) -> Page:
    script = "import trackside; r = trackside.init('n', id='n-1'); [r.push(step=s, loss=1 / (1 + s)) for s in range(9)]"
    start_training(daemon, "-c", script).wait()
    eventually(lambda: daemon.api("runs/n-1").json().get("state") == "finished")
    return open_page(daemon, "/runs/n-1", **more)


def test_notes_are_written_at_a_step(
    shared_daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    daemon = shared_daemon
    page = open_noted(daemon, start_training, open_page)
    loss, dialog = chart(page, "loss"), page.get_by_role("dialog")
    marks = page.get_by_role("group", name="Marks")

    def noted() -> list[tuple[int, str]]:
        events = daemon.api("events?run=n-1").json()["events"]
        return [(one["step"], one["fields"]["text"]) for one in events if one["kind"] == "annotation"]

    # By the mouse at a point of a chart, and by the keyboard at its cursor; the charts of all axes show it.
    loss.locator(".u-over").click(button="right")
    expect(dialog).to_contain_text("Note at step 4")
    assert violations(page) == []
    dialog.get_by_label("Text").fill("lr <b>halved</b>")
    dialog.get_by_role("button", name="Save").click()
    expect(marks).to_contain_text("annotation 1")
    assert noted() == [(4, "lr <b>halved</b>")]
    page.get_by_label("X axis").select_option("relative")
    place = "root => root.chart.lines.length && root.chart.view.marks.filter((mark) => mark.note).map((mark) => mark.x)"
    begun = daemon.api("runs/n-1").json()["started"]
    (event,) = (one for one in daemon.api("events?run=n-1").json()["events"] if one["kind"] == "annotation")
    eventually(lambda: loss.evaluate(place) == pytest.approx([event["time"] - begun], abs=1e-3))
    page.get_by_label("X axis").select_option("step")
    eventually(lambda: loss.evaluate(place) == [4])
    loss.locator(".u-over").hover()
    expect(loss.locator(".mark-tip")).to_contain_text("annotation, step 4: lr <b>halved</b>")
    loss.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("n")
    expect(dialog).to_contain_text("Note at step 5")
    page.keyboard.press("Escape")
    loss.locator(".u-over").click(button="right")
    expect(dialog.get_by_label("Text")).to_have_value("lr <b>halved</b>")
    dialog.get_by_label("Text").fill("")
    dialog.get_by_role("button", name="Save").click()
    expect(marks).not_to_contain_text("annotation")
    assert noted() == []


def test_notes_survive_a_reload_while_they_are_written(
    shared_daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    daemon = shared_daemon
    page = open_noted(daemon, start_training, open_page)
    notes = page.get_by_role("textbox", name="Notes")
    notes.fill("half a")
    page.reload()
    expect(notes).to_have_text("half a")
    expect(notes).to_have_attribute("title", re.compile("^Not saved"))
    assert daemon.api("runs/n-1").json()["notes"] == ""
    assert violations(page) == []
    notes.fill("half a sentence")
    with page.expect_response("**/about"):
        notes.press("Control+Enter")
    page.reload()
    expect(notes).to_have_text("half a sentence")
    expect(notes).not_to_have_attribute("title", re.compile("."))


def test_notes_that_are_written_on_while_they_are_saved_are_saved_too(
    shared_daemon: Daemon, start_training: Callable[..., Process], open_page: Callable[..., Page]
) -> None:
    page = open_noted(shared_daemon, start_training, open_page)
    notes = page.get_by_role("textbox", name="Notes")
    sent: list[Route] = []

    def save(text: str) -> None:
        notes.fill(text)
        notes.press("Control+Enter")
        expect(notes).to_have_attribute("title", "Saving…")

    def hold(text: str) -> Route:
        page.route("**/about", lambda route: sent.append(route), times=1)  # noqa: PLW0108  it sets an attribute
        save(text)
        eventually(lambda: page.evaluate("1") and sent)
        return sent.pop()

    def stored() -> Any:
        return shared_daemon.api("runs/n-1").json()["notes"]

    first = hold("one")
    notes.fill("one two")
    first.continue_()
    expect(notes).not_to_have_attribute("title", re.compile("."))
    assert stored() == "one"
    page.reload()  # what is not saved is not lost, and replaces what this page has saved
    expect(notes).to_have_text("one two")
    expect(notes).to_have_attribute("title", re.compile("^Not saved"))
    notes.focus()
    first = hold("one two three")
    save("four")
    first.continue_()
    expect(notes).not_to_have_attribute("title", re.compile("."))
    expect(notes).to_have_text("four")
    assert stored() == "four"
    assert page.evaluate("sessionStorage.getItem('draft:n-1')") == "{}"


def test_notes_that_others_wrote_meanwhile_are_shown_and_replaced_only_if_they_are_saved_again(
    shared_daemon: Daemon, start_training: Callable[..., Process], open_page: Callable[..., Page]
) -> None:
    daemon = shared_daemon
    page = open_noted(daemon, start_training, open_page, expected_errors=("409",))
    notes, about = page.get_by_role("textbox", name="Notes"), "/api/v1/runs/n-1/about"
    token = (daemon.directory / "push.token").read_text().strip()

    def save(status: int) -> None:
        with page.expect_response("**/about") as answered:
            notes.press("Control+Enter")
        assert answered.value.status == status

    def stored() -> Any:
        return daemon.api("runs/n-1").json()["notes"]

    for theirs, key, kept in (("theirs", "Control+Enter", "mine"), ("theirs again", "Escape", "theirs again")):
        notes.fill("mine" if key == "Control+Enter" else "mine, too")
        sent = httpx.post(f"{daemon.url}{about}", json={"notes": theirs}, headers={"Authorization": f"Bearer {token}"})
        assert sent.status_code == 200
        save(409)
        expect(notes).to_have_attribute(
            "title", re.compile(f"^Not saved: .*they are now: {theirs}. Escape drops yours")
        )
        expect(notes).to_contain_text("mine")
        assert stored() == theirs
        notes.focus()
        notes.press(key)
        eventually(lambda kept=kept: stored() == kept)  # type: ignore[misc]
        expect(notes).to_have_text(kept)
        expect(notes).not_to_have_attribute("title", re.compile("."))


def _with(text: str) -> Any:
    return re.compile(re.escape(text))
