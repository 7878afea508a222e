"""The layers on the page of a run: a map that can be read, one layer's distribution, and the difference from another run."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import expect
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from playwright.sync_api import Page, Route
    from processes import Daemon

TRAINING = "import sys, trackside; trackside.init('deep', id='deep-1').push(step=1, loss=1.0); sys.stdin.read()"
KINDS = {"weights": ["norm", "update_ratio"], "attention": ["entropy", "logit"]}
MIDDLE = "(canvas) => [...canvas.getContext('2d').getImageData(canvas.width - 40, 12, 1, 1).data]"


def a_map(route: Route) -> None:
    """Answer with a map of two layers; the second grows."""
    query = parse_qs(urlsplit(route.request.url).query)
    kind = query.get("kind", ["weights"])[0]
    value = query.get("value", [KINDS[kind][0]])[0]
    found: dict[str, Any] = {"run": "deep-1", "kinds": KINDS, "kind": kind, "value": value, "times": [1, 2]}
    low, high = (float(query.get(end, [default])[0]) for end, default in (("from", "-inf"), ("to", "inf")))
    columns = [(10, 1.0, 1.0), (20, 1.0, 2.0 if value == "norm" else 300.0)]
    steps, *values = map(list, zip(*(one for one in columns if low <= one[0] <= high), strict=True))
    names = ["attn.0/0", "attn.1/1"] if kind == "attention" else ["embed", "head"]
    found |= {"layers": names, "steps": steps, "values": values}
    route.fulfill(body=json.dumps(found))


def a_layer(route: Route) -> None:
    """Answer with the distribution of a layer."""
    quantiles = {
        share: [at, 2 * at] for share, at in (("0.05", -2), ("0.25", -1), ("0.5", 0), ("0.75", 1), ("0.95", 2))
    }
    found = {"kind": "weights", "layer": "head", "steps": [10, 20], "times": [1, 2], "quantiles": quantiles}
    found["columns"] = [{}, {}]
    route.fulfill(body=json.dumps(found))


def test_a_map_is_read_chosen_from_and_compared(
    shared_daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    start_training(shared_daemon, "-c", TRAINING)
    eventually(lambda: shared_daemon.api("runs/deep-1").json().get("state") == "running")
    page = open_page(shared_daemon, "/runs/deep-1?tab=model")
    page.route("**/api/v1/runs/*/layers?*", a_map)
    page.route("**/api/v1/runs/*/layers/*", a_layer)
    page.route("**/api/v1/runs?*", lambda route: route.fulfill(body='{"runs": [{"id": "deep-0", "name": "before"}]}'))
    page.reload()
    canvas = page.get_by_role("tabpanel", name="Model").locator("canvas.run-map").first
    expect(canvas).to_have_attribute("aria-label", "norm of 2 layers from 1 to 2")
    assert canvas.evaluate(MIDDLE) == [68, 1, 84, 255]  # the lowest value
    canvas.hover(position={"x": 900, "y": 24})
    expect(page.get_by_text("head, step 20: norm 2")).to_be_visible()
    canvas.click(position={"x": 900, "y": 24})
    expect(page.get_by_role("heading", name="head, weights: median, and the middle 50 % and 90 %")).to_be_visible()
    page.get_by_role("combobox", name="Value").select_option("update_ratio")
    expect(canvas).to_have_attribute("aria-label", "update ratio of 2 layers from 1 to 300")
    page.get_by_role("combobox", name="Difference from").select_option("before")
    expect(canvas).to_have_attribute("aria-label", "update ratio, log2 of the ratio of 2 layers from -1e-12 to 1e-12")
    page.get_by_role("combobox", name="Difference from").select_option("")
    page.get_by_role("combobox", name="Of").select_option("attention")
    expect(page.get_by_role("img", name="entropy of 2 heads in 2 layers")).to_be_visible()
    page.goto(page.url + "&from=15&to=25")  # the zoom of the charts
    section = page.locator("details", has=page.get_by_role("heading", name="Layers"))
    expect(section.locator("summary")).to_contain_text("2 layers, 1 column")
    canvas.hover(position={"x": 300, "y": 24})
    expect(page.get_by_text("head, step 20: norm 2")).to_be_visible()
    page.get_by_role("tab", name="Charts").click()
    with page.expect_request("**/layers?*by=time*"):
        page.get_by_label("X axis").select_option("time")
    page.get_by_role("tab", name="Model").click()
    expect(section.locator("summary")).to_contain_text("2 layers, 2 columns")
    canvas.hover(position={"x": 900, "y": 24})
    expect(page.get_by_text(re.compile(r"head, step 20, 1970-01-01 ..:..:02: norm 2"))).to_be_visible()
    page.route("**/captures", lambda route: route.fulfill(body='{"captures": []}'))
    with page.expect_request(lambda request: request.method == "POST") as sent:
        section.get_by_role("button", name="Record 100 steps").click()
    assert sent.value.post_data_json == {"kind": "layers", "trigger": "person"}
    expect(page.get_by_text("The next 100 steps are measured more often")).to_be_visible()
    assert violations(page) == []
