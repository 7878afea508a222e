"""A report as a file in Chromium without a network: it is drawn, answers the mouse, and has no error and no access fault."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from histories import BEGIN, finished, history, ingested, opened
from playwright.sync_api import expect

from trackside_daemon.diagnosis.report import read_contents
from trackside_daemon.diagnosis.settings import CostSection
from trackside_daemon.documents.html import write
from trackside_daemon.documents.report import document
from trackside_daemon.model.records import Alert
from trackside_daemon.questions.diagnosis import SIZE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Browser, Page

HOSTILE = "</script><script>document.title = 'run'</script>"
KEYS = ["loss", HOSTILE, *(f"eval/{number}" for number in range(12))]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A report about two runs with an alert; the loss of the second one becomes NaN."""
    with history(tmp_path / "history") as kept:
        for run in ("first", HOSTILE):
            values = [dict.fromkeys(KEYS, math.exp(-step / 50)) for step in range(200)]
            for value in values[190:] if run == HOSTILE else ():
                value["loss"] = math.nan
            pushes = [(step, round((BEGIN + step) * 1e6), value) for step, value in enumerate(values)]
            kept.put([opened(run), ingested(run, pushes), finished(run, after=200)])
        kept.put([Alert("NonFinite", "critical", BEGIN + 100, "first", {}, HOSTILE, "", BEGIN + 150)])
        with kept.database.reading() as connection:
            text = write(document([read_contents(connection, run, CostSection(), SIZE) for run in ("first", HOSTILE)]))
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(("scheme", "width"), [pytest.param("light", 1280, marks=pytest.mark.only_soak), ("dark", 390)])
def test_a_report_works_without_a_network(
    browser: Browser, report: Path, violations: Callable[[Page], list[str]], scheme: str, width: int
) -> None:
    context = browser.new_context(
        offline=True, color_scheme="dark" if scheme == "dark" else "light", viewport={"width": width, "height": 800}
    )
    tab = context.new_page()
    errors: list[str] = []
    tab.on("console", lambda message: errors.append(message.text))
    tab.on("pageerror", lambda problem: errors.append(str(problem)))
    tab.on("request", lambda request: errors.extend([request.url] if request.url != report.as_uri() else []))
    tab.goto(report.as_uri())
    charts = tab.locator("figure")
    expect(tab.locator("figure canvas")).to_have_count(len(KEYS))
    assert tab.title().startswith("first, </script>")
    expect(charts.nth(1).locator("h3")).to_have_text(HOSTILE)
    first = charts.first.locator("b").first
    expect(first).to_have_text("0.01869")
    expect(charts.first.locator("b").nth(1)).to_have_text("nan")
    plot = charts.first.locator(".u-over")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    tab.mouse.move(box["x"] + 1, middle)
    expect(first).to_have_text("1 at 0")
    tab.mouse.move(box["x"] + box["width"] * 0.5, middle)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.8, middle, steps=4)
    tab.mouse.up()
    tab.mouse.move(box["x"] + 1, middle)
    expect(first).to_have_text("0.1353 at 100")  # the left edge of what was selected
    tab.get_by_role("combobox", name="Over").select_option("time")
    tab.get_by_role("searchbox", name="Keys").fill("EVAL/1")
    expect(tab.locator("figure:visible")).to_have_count(3)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert violations(tab) == []
    assert errors == []
    context.close()
