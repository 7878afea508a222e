"""What is round every page of the dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page
    from processes import Daemon

PAGES = ("/", "/compare", "/system", "/alerts", "/export")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_nothing_serious_stands_in_the_way_of_anyone(
    path: str, scheme: str, daemon: Daemon, look: Callable[..., Page], violations: Callable[[Page], list[str]]
) -> None:
    page = look(daemon, path, color_scheme=scheme)
    expect(page.locator("#live")).to_contain_text("Live")
    expect(page.locator("main h1").first).to_be_visible()
    assert violations(page) == []


def test_the_pages_are_reached_by_their_links_and_the_browsers_own_way_back(
    daemon: Daemon, look: Callable[..., Page]
) -> None:
    page = look(daemon)
    expect(page.locator("#live")).to_contain_text("Live")
    assert "token" not in page.url
    for name in ("Compare", "System", "Alerts", "Export"):
        page.get_by_role("link", name=name).click()
        expect(page).to_have_title(f"{name} · trackside")
        expect(page.locator("nav [aria-current=page]")).to_contain_text(name)
    page.go_back()
    expect(page).to_have_title("Alerts · trackside")
    page.reload()
    expect(page.locator("#live")).to_contain_text("Live")
