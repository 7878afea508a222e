"""The images, texts and tables that a training logs, on its page: a slider shows each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from playwright.sync_api import Page
    from processes import Daemon

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
