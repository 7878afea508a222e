"""The end of a run on its page: cause, traceback, and the output of its command with a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect
from processes import eventually

from trackside_daemon.history.console.files import ConsoleWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from playwright.sync_api import Page
    from processes import Daemon

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
