"""The Compare page: it shows the API's data and follows live runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Locator, Page
    from processes import Daemon

TRAINING = """
import sys, trackside
name, rate, layers, live = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "live"
config = {"lr": rate, "model": {"layers": layers}, "batch_size": 32}
run = trackside.init(name, id=name.strip("<>/"), config=config)
for step in range(40):
    values = {"loss": 3.0 / (1 + step * rate), "accuracy": step * rate / 40, f"own/{layers}": 1.0}
    run.push({**values, **({"eval/loss": 3.5 - step * rate / 40} if step % 10 == 0 else {})}, step=step)
for line in sys.stdin if live else ():
    run.push(loss=float(line), step=(step := step + 1))
"""
SMALL, WIDE, ODD = "small", "wide", "<script>"


def cells(row: Locator) -> list[str]:
    return [text.replace("best", "") for text in row.locator("td").all_inner_texts()]


def row(page: Page, name: str) -> Locator:
    return page.locator("table.results tbody tr").filter(has=page.get_by_role("rowheader", name=name, exact=True))


def plot(page: Page, key: str) -> Locator:
    return page.get_by_role("img", name=re.compile(f"^{key} by "))


def summaries(daemon: Daemon, run: str, key: str) -> dict[str, Any]:
    """Return the summaries of a key."""
    (found,) = (one for one in daemon.api(f"runs/{run}").json()["metrics"] if one["key"] == key)
    return dict(found)


def settings(page: Page) -> dict[str, list[str]]:
    """Return the rows of the configuration, without their marks."""
    rows = page.locator("table.settings tbody tr").filter(has=page.locator("td"))
    return {one.locator("th .mono").inner_text(): one.locator("td").all_inner_texts() for one in rows.all()}


def test_runs_are_chosen_and_put_beside_each_other(
    daemon: Daemon,
    open_page: Callable[..., Page],
    run_training: Callable[..., str],
    violations: Callable[[Page], list[str]],
) -> None:
    run_training(daemon, "-c", TRAINING, SMALL, "0.25", "12", "")
    run_training(daemon, "-c", TRAINING, WIDE, "0.5", "24", "")
    page = open_page(daemon, "/compare")
    expect(page.get_by_role("status").filter(has_text="Choose two or more runs")).to_be_visible()
    page.get_by_label("Search runs").fill("nowhere")
    expect(page.get_by_text("no run matches nowhere")).to_be_visible()
    page.get_by_label("Search runs").fill(SMALL)
    expect(page.get_by_role("checkbox")).to_have_count(1)
    page.get_by_role("checkbox", name=SMALL).check()
    expect(page.get_by_text("Choose another run to compare with this one.")).to_be_visible()
    page.get_by_label("Search runs").fill("")
    page.get_by_role("checkbox", name=WIDE).check()
    expect(page).to_have_url(re.compile(rf"\?run={SMALL}&run={WIDE}$"))

    expect(page.locator(".charts h3")).to_have_text(["loss", "eval/loss", "accuracy"])  # none that only one has
    last = [f"{summaries(daemon, run, 'loss')['last']:.4g}" for run in (SMALL, WIDE)]
    expect(plot(page, "loss")).to_have_attribute(
        "aria-label", re.compile(rf"Last: small {last[0]} at step 39; wide {last[1]} at step 39\.")
    )
    for run in (SMALL, WIDE):
        known = [summaries(daemon, run, key) for key in ("loss", "eval/loss", "accuracy")]
        shown = cells(row(page, run))
        assert shown[:2] == ["finished", "39"]
        values = [one[name] for one in known for name in ("last", "min", "max")]
        assert [float(text) for text in shown[3:]] == pytest.approx(values, rel=5e-4)
    assert row(page, WIDE).locator("td.best").all_inner_texts() == [
        f"best{text}" for place, text in enumerate(cells(row(page, WIDE))) if place in {3, 4, 6, 7, 9, 11}
    ]
    assert row(page, SMALL).locator("td.best").count() == 0

    differing = settings(page)
    assert {key: differing[key] for key in ("lr", "model.layers")} == {
        "lr": ["0.25", "0.5"],
        "model.layers": ["12", "24"],
    }
    assert "batch_size" not in differing
    page.get_by_label("Show all").check()
    assert settings(page)["batch_size"] == ["32", "32"]
    assert "Host" in settings(page)
    assert len(differing) == page.locator("tr.differs .mark", has_text="differs").count()
    assert violations(page) == []


def test_a_view_is_stored_in_the_address_and_continues_with_a_run_that_lives(
    daemon: Daemon, open_page: Callable[..., Page], run_training: Callable[..., str], start_training: Callable[..., Any]
) -> None:
    for name, rate in ((SMALL, "0.25"), (WIDE, "0.5")):
        run_training(daemon, "-c", TRAINING, name, rate, "12", "")
    others = "".join(f"&run=gone-{number}" for number in range(30))
    page = open_page(daemon, f"/compare?run={SMALL}&run={WIDE}&run=gone{others}", expected_errors=("404",))
    expect(page.get_by_text("Showing the first 32 of 33 runs")).to_be_visible()
    expect(page.get_by_text("Run “gone” does not exist.")).to_be_visible()
    expect(plot(page, "loss")).to_have_attribute("aria-label", re.compile("Last"))
    plot(page, "loss").focus()
    zooms = (re.compile(rf"key={key}&.*&from=") for key in ("loss", "accuracy"))
    with page.expect_request(next(zooms)), page.expect_request(next(zooms)):
        page.keyboard.press("+")
    expect(page).to_have_url(re.compile("from=.*&to="))
    page.get_by_role("button", name="Reset zoom").click()
    expect(page.get_by_role("button", name="Reset zoom")).to_be_hidden()
    expect(page).not_to_have_url(re.compile("from="))

    page.get_by_role("combobox", name="By", exact=False).first.select_option("relative")
    expect(plot(page, "loss")).to_have_attribute(
        "aria-label", re.compile(r"by time since start\. Last: small 0\.2791 at \S+ [mµ]?s after start; ")
    )
    page.get_by_label("Log scale").check()
    page.get_by_label("Keys containing").fill("LOSS")
    expect(page.locator(".charts h3")).to_have_text(["loss", "eval/loss"])
    expect(page).to_have_url(re.compile("LOSS"))  # written a moment later
    page.reload()
    expect(page.locator(".charts h3")).to_have_text(["loss", "eval/loss"])
    assert (
        page.get_by_role("combobox", name="By", exact=False).first.input_value(),
        page.get_by_label("Log scale").is_checked(),
    ) == (
        "relative",
        True,
    )
    page.get_by_label("Keys containing").fill("nothing")
    expect(page.get_by_text("No key shared by these runs matches the filter.")).to_be_visible()
    page.get_by_label("Keys containing").fill("")
    page.get_by_role("combobox", name="By", exact=False).first.select_option("step")

    training = start_training(daemon, "-c", TRAINING, ODD, "1", "12", "live")
    eventually(lambda: daemon.api("runs/script").json().get("step") == 39)
    page.get_by_text("Choose runs").click()
    page.get_by_label("Search runs").fill("script")
    page.get_by_role("checkbox", name=ODD).check()
    expect(row(page, ODD).locator("td").first).to_have_text("running")
    training.stdin.write("0.03125\n")
    training.stdin.flush()
    expect(plot(page, "loss")).to_have_attribute("aria-label", re.compile(r"<script> 0\.03125 at step 40"))
    expect(row(page, ODD).locator("td").nth(1)).to_have_text("40")
    assert cells(row(page, ODD))[3] == "0.03125"

    page.get_by_role("button", name=f"Remove {SMALL}").click()
    expect(page).to_have_url(re.compile(rf"run={WIDE}&run=script$"))
    expect(page.locator("table.results tbody tr")).to_have_count(2)
    expect(plot(page, "loss")).to_have_attribute("aria-label", re.compile("Last: wide"))
