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


def test_each_load_has_a_chart_of_latency_and_a_row(
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
    charts = section.locator(".chart")
    latencies = [f"batch={batch}: latency by percentile" for batch in (1, 8)]
    expect(charts.locator("h3")).to_have_text(["Throughput over batch size", *latencies])
    for place, last in enumerate(
        (r"items/s at batch size 8", r"[mµ]s at percentile p9\d", r"[mµ]s at percentile p9\d")
    ):
        charts.nth(place).scroll_into_view_if_needed()
        expect(charts.nth(place).locator(".plot")).to_have_attribute(
            "aria-label", re.compile(rf"\. Last: original [\d.,]+ {last}")
        )
        expect(charts.nth(place).locator("canvas")).to_be_visible()
    assert violations(page) == []
