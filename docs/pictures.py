"""Draw the pictures of docs/dashboard.md from a running daemon: ``python docs/pictures.py LINK``.

LINK is the address that the daemon prints, with its token. ``trackside demo --ranks 4 --gpus 8 --trouble straggler`` is a
good source, some minutes after the trouble began, with six runs that have ended, for the comparison. Needs Chromium.

"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent / "pictures"
PAGES = {
    "overview": "/",
    "runs": "/runs",
    "run": "run?smooth=50",
    "performance": "run?tab=performance",
    "compare": "/compare",
    "system": "/system",
    "alerts": "/alerts",
    "export": "/export",
}


def draw(browser: Browser, link: str, name: str, page: str, *, phone: bool = False, dark: bool = False) -> None:
    """Draw one picture. *page* is the address of a page, or ``run`` for the first run on the overview, with a query."""
    parts = urlsplit(link)
    origin = f"{parts.scheme}://{parts.netloc}"
    context = browser.new_context(
        viewport={"width": 390, "height": 844} if phone else {"width": 1440, "height": 900},
        color_scheme="dark" if dark else "light",
    )
    tab = context.new_page()
    of_run, _, query = page.partition("?")
    tab.goto(f"{origin}{'/' if of_run == 'run' else page}#{parts.fragment}")
    expect(tab.locator("#live")).to_contain_text("Live")
    if of_run == "run":
        address = tab.locator(".runs a[href^='/runs/']").first.get_attribute("href")
        tab.goto(f"{origin}{address}?{query}")
        tab.locator(".chart:visible").first.scroll_into_view_if_needed()  # on a phone, it is below the first screen
        expect(tab.locator(".chart canvas:visible").first).to_be_visible()
        tab.evaluate("scrollTo(0, 0)")
    if page == "/compare":
        _compare(tab)
    tab.wait_for_load_state("load")
    expect(tab.locator("main h1").first).to_be_visible()
    tab.wait_for_timeout(2500)  # a sparkline and the charts fill with the next seconds
    tab.screenshot(path=HERE / f"dashboard-{name}.png")
    context.close()


def _compare(tab: Page) -> None:
    """Compare six runs of the table, without the newest two."""
    tab.get_by_role("link", name="Runs").click()
    for row in range(2, 8):
        tab.locator(".all-runs td.box input").nth(row).check()
    tab.locator(".chosen").get_by_role("link", name="Compare").click()
    expect(tab.locator(".chart canvas").first).to_be_visible()


def main(link: str) -> None:
    """Draw all pictures."""
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium-headless-shell", args=["--no-sandbox", "--disable-gpu"]
        )
        for name, page in PAGES.items():
            draw(browser, link, name, page)
            draw(browser, link, f"{name}-dark", page, dark=True)
            draw(browser, link, f"{name}-phone", page, phone=True)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
