"""The sections of a run's page beside its charts, each of a real run. One daemon serves all tests of the file."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import expect
from processes import eventually

from trackside_daemon.history.console.files import ConsoleWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from playwright.sync_api import Page, Route
    from processes import Daemon

MEASURED = """
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
    start_training(shared_daemon, "-c", MEASURED).wait()
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


SEEN = "import sys, trackside; trackside.init('seen', id='seen-1').push(step=1, loss=1.0); sys.stdin.read()"
STEP = {"compute": 0.006, "overlapped": 0, "exposed": 0, "copies": 0, "data": 0.003, "idle": 0.001, "other": 0}
OPERATOR = {"name": "aten::mm", "cpu": 0.005, "gpu": 0, "share": 0.5, "count": 3, "shapes": "", "source": "train.py:9"}
FUNCTION = {"name": "train.py:9 in augment", "seconds": 0.002, "share": 0.2, "count": 1, "inner": "<built-in sum>"}
CALLS = [
    {"name": "train.py:9 in augment", "seconds": 0.002, "children": []},
    {"name": "aten::mm", "seconds": 0.005, "children": []},
]
PROFILE = {
    "ranks": {
        "0": {
            "steps": [{"seconds": 0.01, **STEP}] * 3,
            "operators": [OPERATOR],
            "functions": [FUNCTION],
            "flame": {"name": "step", "seconds": 0.01, "children": CALLS},
        }
    },
    "bottleneck": {"text": "compute: 6 of 10 ms a step"},
    "difference": [{"name": "aten::mm", "before": 0.001, "after": 0.005, "rank": 0, "source": "train.py:9 in main"}],
}


def with_profile(route: Route) -> None:
    """Answer for a capture as if it were a profile."""
    answer: dict[str, Any] = route.fetch().json()
    route.fulfill(body=json.dumps({**answer, "kind": "profile", "summary": PROFILE}))


def test_a_capture_is_begun_followed_shown_and_downloaded(
    shared_daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    training = start_training(shared_daemon, "-c", SEEN)
    eventually(lambda: shared_daemon.api("runs/seen-1").json().get("state") == "running")
    page = open_page(shared_daemon, "/runs/seen-1?tab=captures")
    page.get_by_role("button", name="Record with Python stacks").click()
    row = page.locator(".run-capture")
    expect(row.locator("summary").first).to_contain_text("summarised")
    row.locator("summary").first.click()
    expect(row.locator("pre")).to_contain_text("MainThread")
    with page.expect_download() as download:
        row.get_by_role("button", name="Download rank 0").click()
    assert "MainThread" in gzip.decompress(Path(download.value.path()).read_bytes()).decode()
    page.route("**/api/v1/captures/*", with_profile)
    page.reload()
    row.locator("summary").first.click()
    expect(row.locator(".run-capture-step")).to_have_count(3)
    expect(row.locator(".run-capture-step").first).to_have_attribute(
        "aria-label", "10 ms: compute 60.0 %, data wait 30.0 %, device idle 10.0 %"
    )
    expect(row.locator("tbody tr")).to_have_text(
        [
            "aten::mm1 ms5 ms+4 ms0train.py:9 in main",
            "aten::mm550.0 %3train.py:9",
            "train.py:9 in augment220.0 %1<built-in sum>",
        ]
    )
    row.get_by_text("Calls of the training thread").click()
    row.get_by_role("button", name="aten::mm: 5 ms, 50.0 % of a step").click()
    expect(row.locator(".flame-call")).to_have_text(["aten::mm"])
    row.get_by_role("button", name="Whole step").click()
    expect(row.locator(".flame-call")).to_have_text(["step", "train.py:9 in augment", "aten::mm"])
    assert violations(page) == []
    training.stdin.close()  # type: ignore[union-attr]
    training.wait()


SAVED = """
import os, sys, zipfile, trackside
folder, first, last, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
run = trackside.init("saved", id="saved-1")
layers = [["embed", "Embedding", 4096, "float32", "cpu"], ["head", "Linear", 64, "bfloat16", "cpu"]]
run.event("model", **{"class": "Gpt", "parameters": 4160, "trainable": 64, "bytes": 16512, "modules": layers})
for step in range(first, last):
    run.push(step=step, loss=4 / step)
    if step % 10 == 0:
        path = f"{folder}/step-{step}.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data/0", os.urandom(5000))
        if end and step == 20:
            os.truncate(path, 3000)
        run.event("checkpoint", path=path)
run.finish()
"""


def test_checkpoints_the_verdict_and_the_model_are_shown(
    shared_daemon: Daemon,
    run_training: Callable[..., str],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
    tmp_path: Path,
) -> None:
    for first, last, end in ((1, 26, 1), (11, 20, 0)):
        run_training(shared_daemon, "-c", SAVED, str(tmp_path), str(first), str(last), str(end))
    path = "runs/saved-1/checkpoints"
    eventually(
        lambda: [one["state"] for one in shared_daemon.api(path).json()["checkpoints"]] == ["complete", "damaged"]
    )
    eventually(lambda: shared_daemon.api("runs/saved-1").json()["resumes"])
    page = open_page(shared_daemon, "/runs/saved-1?tab=checkpoints")
    section = page.locator("details").filter(has=page.get_by_role("heading", name="Checkpoints", exact=True))
    expect(section.locator("summary")).to_contain_text(
        "2 checkpoints on disk, 1 damaged, the last intact one is of step 10"
    )
    expect(section.locator("tbody tr").nth(0)).to_contain_text("step-20.pt")
    expect(section.locator("tbody tr").nth(0)).to_contain_text("damagedstep-20.pt: ")
    expect(section.locator("tbody tr").nth(1)).to_contain_text("complete")
    assert violations(page) == []
    page.get_by_role("tab", name="Model").click()
    model = page.locator("details").filter(has=page.get_by_role("heading", name="Model", exact=True))
    expect(model.locator("summary")).to_contain_text("Gpt, 4.16k parameters, 16.1 KiB")
    expect(model.locator("tbody tr").nth(1)).to_have_text("headLinear64bfloat16cpu")
    page.get_by_role("tab", name="Details").click()
    attempts = page.locator("details").filter(has=page.get_by_role("heading", name="Attempts", exact=True))
    expect(attempts.locator(".run-verdict")).to_contain_text("attempt 1 goes on after step 10 of 25, ")
    assert violations(page) == []


WAITS = """
import time, trackside
run = trackside.init("waits", id="waits-1")
for step in range(3):
    with run.phase("data"):
        time.sleep(0.1)
    run.push(step=step, loss=1.0)
run.summary({"eval/best": 1.25}, note="<b>")
"""


def test_the_costliest_cause_is_named_and_the_whole_opens(
    shared_daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    start_training(shared_daemon, "-c", WAITS).wait()
    eventually(lambda: shared_daemon.api("runs/waits-1").json().get("state") == "finished")
    found = shared_daemon.api("runs/waits-1/diagnosis").json()
    assert found["causes"][0]["cause"] == "data_wait"
    page = open_page(shared_daemon, "/runs/waits-1?tab=diagnosis")
    section = page.locator("details.run-section").filter(has=page.get_by_role("heading", name="Diagnosis"))
    expect(section.locator("summary .quiet")).to_have_text(found["causes"][0]["summary"])
    accounts = section.locator(".run-phases tbody tr")
    expect(accounts).to_have_count(len(found["ledger"]))
    expect(section.locator(".run-stack > span")).to_have_count(len(found["ledger"]))
    expect(accounts.locator("th").first).to_have_text(found["accounts"][next(iter(found["ledger"]))])
    first = section.locator(".run-causes > li").first
    expect(first).to_contain_text("Expected gain: ")
    expect(first).to_contain_text(f"Try: {found['causes'][0]['advice']}")
    results = page.locator("dl[aria-label=Results]")
    expect(results.locator(".run-tile")).to_have_text(["eval/best1.25", "note<b>"])
    assert violations(page) == []


STOPPED = """
import select, sys, trackside
run = trackside.init("stops", id="stops-1")
run.push(step=1, loss=1.0)
run.push(step=2, loss=float("nan"))
sys.stdin.readline()
raise RuntimeError("set `max_norm` to 1")
"""


def test_what_stops_a_run_is_shown_once_and_commands_in_it_as_code(
    shared_daemon: Daemon, start_training: Callable[..., Process], open_page: Callable[..., Page]
) -> None:
    training = start_training(shared_daemon, "-c", STOPPED)
    verdict = eventually(lambda: shared_daemon.api("runs/stops-1").json().get("verdict"))
    page = open_page(shared_daemon, "/runs/stops-1?tab=diagnosis")
    expect(page.locator(".run-cause")).to_have_text(verdict)
    firing = page.locator(".run-firing li").filter(has_text="NonFinite")
    expect(firing).to_have_count(1)
    expect(firing.locator(".clamp")).to_have_text("")
    expect(page.locator("details.run-section p.bad")).to_have_count(0)
    training.communicate("\n")
    expect(page.locator(".run-cause code")).to_have_text("max_norm")
    expect(page.locator(".run-cause")).to_contain_text("set max_norm to 1")


LAUNCH = "feedfacefeedface"
RAISES = """
import trackside
def load(batch):
    raise ValueError("the batch has shape (3, 4)\\n<b>expected</b> (4, 4), api_key=0123456789abcdef")
trackside.init("raises", id="raises-1").push(step=7, loss=1.0)
load(None)
"""


def test_a_failed_run_shows_its_traceback_and_the_console_is_searched(
    shared_daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    writer = ConsoleWriter(shared_daemon.history, LAUNCH)
    writer.write(b"".join(b"\x1b[1mstep %d\x1b[0m\n" % number for number in range(1000)) + b"<b>the error</b>\n")
    writer.close()
    start_training(shared_daemon, "-c", RAISES, TRACKSIDE_LAUNCH=LAUNCH)
    eventually(lambda: shared_daemon.api("runs/raises-1").json().get("state") == "failed")
    page = open_page(shared_daemon, "/runs/raises-1?tab=output")
    ending = page.locator("details", has=page.get_by_role("heading", name="How it ended"))
    expect(ending).to_contain_text("ValueError: the batch has shape (3, 4)")
    traceback = ending.get_by_role("region", name="Traceback, the innermost call last")
    expect(traceback).to_contain_text("in load")
    expect(traceback).to_contain_text("<b>expected</b> (4, 4), api_key=[redacted]")
    lines = page.locator(".console-lines li")
    expect(lines).to_have_count(400)
    expect(lines.last).to_have_text("<b>the error</b>")
    expect(lines.nth(398).locator("span.sgr-bold")).to_have_text("step 999")
    assert violations(page) == []
    page.get_by_role("button", name="Earlier lines").click()
    expect(lines).to_have_count(800)
    expect(lines.first).to_have_text("step 201")
    page.get_by_label("Search the console").fill("STEP 99")
    page.keyboard.press("Enter")
    expect(lines).to_have_text(["step 99", *(f"step {number}" for number in range(990, 1000))])
    assert lines.last.get_attribute("value") == "1000"
    expect(page.locator(".console-lines mark").first).to_have_text("step 99")


DEEP = "import sys, trackside; trackside.init('deep', id='deep-1').push(step=1, loss=1.0); sys.stdin.read()"
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
    start_training(shared_daemon, "-c", DEEP)
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


LOGS = """
import sys, numpy, trackside
run = trackside.init("logs", id="logs-1")
for step in range(5):
    run.push(step=step, loss=1.0)
    run.log_image("<b>samples", numpy.full((4, 6, 3), 50 * step, "uint8"))
    run.log_text("completion", f"<script>alert(1)</script> step {step}")
    run.log_histogram("lengths", [1.0, 2.0, 2.0, float("nan")])
    run.log_table("worst", [{"input": "<img src=x>", "loss": 1.5 * step}])
sys.stdin.read()
"""
PIXEL = """img => {
  const canvas = new OffscreenCanvas(img.naturalWidth, img.naturalHeight).getContext("2d");
  canvas.drawImage(img, 0, 0);
  return [img.naturalWidth, img.naturalHeight, canvas.getImageData(0, 0, 1, 1).data[0]];
}"""


def test_a_slider_moves_over_the_steps(
    shared_daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    training = start_training(shared_daemon, "-c", LOGS)
    eventually(lambda: len(shared_daemon.api("runs/logs-1/media").json().get("media", ())) == 20)
    page = open_page(shared_daemon, "/runs/logs-1?tab=media")
    image = page.get_by_role("img", name="<b>samples, step 4")
    expect(image).to_be_visible()
    assert image.evaluate(PIXEL) == [6, 4, 200]
    expect(page.get_by_role("region", name="Text completion")).to_have_text("<script>alert(1)</script> step 4")
    expect(page.get_by_role("region", name="Table worst").locator("td")).to_have_text(["<img src=x>", "6"])
    expect(page.get_by_role("img", name="lengths: 1 to 2, at most 2 in a bin, 1 NaN or infinite")).to_be_visible()
    assert violations(page) == []
    slider = page.get_by_role("slider", name="Step of <b>samples")
    slider.focus()
    page.keyboard.press("Home")
    first = page.get_by_role("img", name="<b>samples, step 0")
    expect(first).to_be_visible()
    assert first.evaluate(PIXEL) == [6, 4, 0]
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("img", name="<b>samples, step 1")).to_be_visible()
    expect(page.get_by_role("region", name="Text completion")).to_contain_text("step 4")
    assert "<b>samples" not in shared_daemon.get("/metrics").text
    assert training.stdin is not None
    training.stdin.close()


POLICY = """
import trackside
run = trackside.init("policy", id="policy-1")
for step in range(20):
    values = {"critic/rewards/mean": step / 20, "critic/score/mean": 5.0, "train/entropy_loss": -1.5}
    run.push(step=step, **values, **{"frac_reward_zero_std": 0.25, "timing_s/gen": 3.0, "timing_s/update_actor": 1.0})
run.finish()
"""


def test_each_quantity_has_a_chart_under_one_name_and_the_roles_have_shares(
    shared_daemon: Daemon,
    start_training: Callable[..., Process],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
) -> None:
    start_training(shared_daemon, "-c", POLICY).wait()
    eventually(lambda: shared_daemon.api("runs/policy-1").json().get("state") == "finished")
    page = open_page(shared_daemon, "/runs/policy-1?tab=learning")
    section = page.locator("details.run-section").filter(has=page.get_by_role("heading", name="Reinforcement learning"))
    expect(section.locator("summary .quiet")).to_have_text("75.0 % of the time is generation")
    expect(section.locator(".chart h3")).to_have_text(["Reward", "Entropy", "Groups with equal rewards"])
    lasts = ["critic/rewards/mean 0.95", "train/entropy_loss 1.5", "frac_reward_zero_std 25.0 %"]
    for place, last in enumerate(lasts):
        section.locator(".plot").nth(place).scroll_into_view_if_needed()
        label = re.compile(f"Last: {last} at step 19")
        expect(section.locator(".plot").nth(place)).to_have_attribute("aria-label", label)
    expect(section.locator("tbody tr")).to_have_text(
        [re.compile("^generation.*75.0 %$"), re.compile("^updates.*25.0 %$")]
    )
    assert violations(page) == []
