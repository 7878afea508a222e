"""The Compare page: it shows the API's data and follows live runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from end_to_end.dashboard.conftest import train
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


@pytest.fixture(scope="module")
def trained(shared_daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Daemon:
    """Return a daemon with two ended runs, whose code differs."""
    script = tmp_path_factory.mktemp("trained") / "train.py"
    for text, *arguments in ((TRAINING, SMALL, "0.25", "12", ""), (TRAINING + "# wider\n", WIDE, "0.5", "24", "")):
        script.write_text(text)
        train(shared_daemon, "-B", str(script), *arguments, TRACKSIDE_CODE="1")
    return shared_daemon


def row(page: Page, name: str) -> Locator:
    return page.locator("table.all-runs tbody tr").filter(has=page.get_by_role("rowheader", name=name, exact=True))


def cells(page: Page, name: str) -> dict[str, str]:
    """Return the texts of a run's row by the titles of their columns."""
    titles = [text.rstrip(" ↑↓") for text in page.locator("table.all-runs thead th").all_inner_texts()]
    return dict(zip(titles, row(page, name).locator("td, th").all_inner_texts(), strict=True))


def plot(page: Page, key: str) -> Locator:
    return page.get_by_role("img", name=re.compile(f"^{key} by "))


def summaries(daemon: Daemon, run: str, key: str) -> dict[str, Any]:
    """Return the summaries of a key."""
    (found,) = (one for one in daemon.api(f"runs/{run}").json()["metrics"] if one["key"] == key)
    return dict(found)


def test_runs_are_chosen_and_put_beside_each_other(
    trained: Daemon, open_page: Callable[..., Page], violations: Callable[[Page], list[str]]
) -> None:
    daemon = trained
    page = open_page(daemon, "/compare")
    # Without a choice, the newest runs are there.
    expect(page).to_have_url(re.compile(rf"\?run={WIDE}&run={SMALL}$"))
    small = page.get_by_role("checkbox", name=SMALL)
    small.uncheck()
    expect(page.locator(".charts h3")).to_have_text(["loss", "eval/loss", "accuracy", "own/24"])
    page.get_by_role("button", name="None").click()
    expect(page.get_by_role("status").filter(has_text="Check runs in the list")).to_be_visible()
    page.get_by_label("Search runs").fill("nowhere")
    expect(page.get_by_text("no run matches nowhere")).to_be_visible()
    page.get_by_label("Search runs").fill("lr=0.25")
    expect(page.locator(".ticks li")).to_have_count(1)
    small.check()
    page.get_by_label("Search runs").fill("")
    expect(page.locator(".ticks li")).to_have_count(2)
    page.get_by_role("button", name="All listed").click()
    expect(page).to_have_url(re.compile(rf"\?run={SMALL}&run={WIDE}$"))

    expect(page.locator(".charts h3")).to_have_text(["loss", "eval/loss", "accuracy"])  # none that only one has
    last = [f"{summaries(daemon, run, 'loss')['last']:.4g}" for run in (SMALL, WIDE)]
    expect(plot(page, "loss")).to_have_attribute(
        "aria-label", re.compile(rf"Last: small {last[0]} at step 39; wide {last[1]} at step 39\.")
    )
    for run in (SMALL, WIDE):
        shown = cells(page, run)
        assert (shown["State"], shown["Step"]) == ("✓ finished", "39")
        for key, best in (("loss", "lowest"), ("eval/loss", "lowest"), ("accuracy", "highest")):
            known = summaries(daemon, run, key)
            values = [float(shown[f"{key} ({name})"]) for name in (best, "last")]
            assert values == pytest.approx([known["min" if best == "lowest" else "max"], known["last"]], rel=5e-3)
    assert row(page, WIDE).locator("td.best").count() == 6
    assert row(page, SMALL).locator("td.best").count() == 0

    rates = [cells(page, run) for run in (SMALL, WIDE)]
    assert [(shown["lr"], shown["model.layers"]) for shown in rates] == [("0.25", "12"), ("0.50", "24")]
    assert "batch_size" not in rates[0]
    # The others are compared with the baseline, and sorted.
    page.get_by_role("button", name=f"Compare with {SMALL}").click()
    expect(row(page, WIDE).locator(".delta.good").first).to_have_text(re.compile(r"-\d+\.\d %"))
    page.get_by_role("button", name="Difference of the code").click()
    expect(page.get_by_role("region", name="Difference of the code")).to_contain_text(re.compile("[+-]# wider"))
    page.get_by_role("button", name="lr", exact=True).click()
    page.get_by_role("button", name="lr ↑").click()
    expect(page.locator("table.all-runs tbody th").first).to_have_text(WIDE)
    expect(page).to_have_url(re.compile(f"baseline={SMALL}.*sort=-config.lr"))
    page.get_by_label("Show all").check()
    assert cells(page, SMALL)["batch_size"] == "32"
    assert "Host" in cells(page, SMALL)
    assert violations(page) == []


@pytest.mark.usefixtures("only_soak")
def test_a_view_is_stored_in_the_address_and_continues_with_a_run_that_lives(
    trained: Daemon, open_page: Callable[..., Page], start_training: Callable[..., Any]
) -> None:
    daemon = trained
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

    page.get_by_label("X axis").select_option("relative")
    expect(plot(page, "loss")).to_have_attribute(
        "aria-label", re.compile(r"by time since start\. Last: small 0\.2791 at \S+ [mµ]?s after start; ")
    )
    page.get_by_label("Log scale").check()
    page.get_by_role("searchbox", name="Keys").fill("LOSS")
    expect(page.locator(".charts h3")).to_have_text(["loss", "eval/loss"])
    expect(page).to_have_url(re.compile("LOSS"))  # written a moment later
    page.reload()
    expect(page.locator(".charts h3")).to_have_text(["loss", "eval/loss"])
    assert (
        page.get_by_label("X axis").input_value(),
        page.get_by_label("Log scale").is_checked(),
    ) == (
        "relative",
        True,
    )
    page.get_by_role("searchbox", name="Keys").fill("nothing")
    expect(page.get_by_text("No key shared by these runs matches the filter.")).to_be_visible()
    page.get_by_role("searchbox", name="Keys").fill("")
    page.get_by_label("X axis").select_option("step")

    training = start_training(daemon, "-c", TRAINING, ODD, "1", "12", "live")
    eventually(lambda: daemon.api("runs/script").json().get("step") == 39)
    page.get_by_label("Search runs").fill("script")
    page.get_by_role("checkbox", name=ODD).check()
    expect(row(page, ODD)).to_contain_text("running")
    training.stdin.write("0.03125\n")
    training.stdin.flush()
    expect(plot(page, "loss")).to_have_attribute("aria-label", re.compile(r"<script> 0\.03125 at step 40"))
    expect(row(page, ODD)).to_contain_text("40")
    assert float(cells(page, ODD)["loss (lowest)"]) == pytest.approx(0.03125, rel=0.01)

    page.get_by_role("checkbox", name=SMALL).uncheck()
    expect(page).to_have_url(re.compile(rf"run={WIDE}&run=script$"))
    expect(page.locator("table.all-runs tbody tr:not(.spacer)")).to_have_count(2)
    expect(plot(page, "loss")).to_have_attribute("aria-label", re.compile("Last: wide"))
