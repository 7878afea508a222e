"""The results of a benchmark on the page of its run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from playwright.sync_api import Page
    from processes import Daemon

NOTEBOOK = """
import hashlib, trackside
run = trackside.init("measured", id="measured-1", tags=["benchmark"])
run.benchmark(lambda data: hashlib.sha256(data), lambda batch: bytes(5000 * batch), batch_sizes=[1, 8], seconds=0.1)
"""


def test_throughput_has_a_chart_and_each_load_a_row(
    shared_daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    start_training(shared_daemon, "-c", NOTEBOOK).wait()
    eventually(lambda: shared_daemon.api("runs/measured-1").json().get("state") == "finished")
    page = open_page(shared_daemon, "/runs/measured-1?tab=benchmarks")
    section = page.locator("details.run-section").filter(has=page.get_by_role("heading", name="Benchmarks"))
    expect(section.locator("summary .quiet")).to_have_text("2 combinations of variant and load")
    rows = section.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.locator("td:first-child")).to_have_text(["batch=1", "batch=8"])
    expect(rows.first).to_contain_text(re.compile(r"[\d.]+ [mµ]s \([\d.]+ [mµ]s to [\d.]+ [mµ]s\), [\d,]+ samples"))
    chart = section.locator(".chart")
    expect(chart.locator("h3")).to_have_text("Throughput over batch size")
    chart.scroll_into_view_if_needed()
    expect(chart.locator(".plot")).to_have_attribute(
        "aria-label", re.compile(r"\. Last: original [\d.,]+ items/s at batch size 8")
    )
    expect(chart.locator("canvas")).to_be_visible()
    assert violations(page) == []
