"""Draw the pictures of docs/dashboard.md from a running daemon: ``python docs/pictures.py LINK``.

LINK is the address that the daemon prints, with its token. ``trackside demo --ranks 4 --gpus 8 --trouble straggler`` is a
good source, some minutes after the trouble began. Needs Chromium.

"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HERE = Path(__file__).parent / "pictures"


def draw(browser: Browser, link: str, name: str, page: str, *, phone: bool = False, dark: bool = False) -> None:
    """Draw one picture. *page* is the address of a page, or ``run`` for the first run on the overview."""
    parts = urlsplit(link)
    origin = f"{parts.scheme}://{parts.netloc}"
    context = browser.new_context(
        viewport={"width": 390, "height": 844} if phone else {"width": 1280, "height": 860},
        color_scheme="dark" if dark else "light",
        device_scale_factor=2 if phone else 1,
    )
    tab = context.new_page()
    tab.goto(f"{origin}{'/' if page == 'run' else page}#{parts.fragment}")
    expect(tab.locator("#live")).to_contain_text("Live")
    if page == "run":
        tab.locator("main a[href^='/runs/']").first.click()
        expect(tab.locator(".chart canvas").nth(3)).to_be_visible()
    tab.wait_for_load_state("load")
    expect(tab.locator("main h1").first).to_be_visible()
    tab.wait_for_timeout(2500)  # a sparkline and the charts fill with the next seconds
    tab.screenshot(path=HERE / f"dashboard-{name}.png")
    context.close()


def main(link: str) -> None:
    """Draw all pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        draw(browser, link, "overview", "/")
        draw(browser, link, "run", "run", dark=True)
        draw(browser, link, "phone", "/alerts", phone=True)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
