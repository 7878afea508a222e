"""The dashboard in Debian's Chromium, through Playwright: nothing may go wrong in it, and nobody else be asked."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from processes import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, ConsoleMessage, Request
    from processes import Daemon

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, once a file: while it is there, nothing else in this process may run a loop of asyncio."""
    expect.set_options(timeout=1000 * DEADLINE)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def start_daemon(start_daemon: Callable[..., Daemon]) -> Callable[..., Daemon]:
    """Daemons to which a training that waits for its test is not stalled."""
    return partial(start_daemon, environ={"TRACKSIDE_ALERTS__STALL_AFTER": "1h"})


class Watched:
    """A tab, and what went wrong in it.

    Attributes:
        page: Playwright's.
        wrong: Errors of its console and scripts, and addresses elsewhere that it asked for.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.wrong: list[str] = []
        self._host = urlsplit(url).netloc
        page.set_default_timeout(1000 * DEADLINE)
        page.on("console", self._said)
        page.on("pageerror", lambda problem: self.wrong.append(str(problem)))
        page.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.wrong.append(message.text)

    def _asked(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"blob", "data"} and parts.netloc.rpartition("@")[2] != self._host:
            self.wrong.append(f"asked {request.url}")


@pytest.fixture
def look(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page of a daemon's dashboard, with its token: ``look(daemon, "/runs/ID", color_scheme="dark")``.

    The test fails if anything was wrong in any of them, but for errors that have one of the texts *amiss*.
    """
    watched: list[Watched] = []
    expected: list[str] = []

    def opened(daemon: Daemon, path: str = "/", *, amiss: tuple[str, ...] = (), **context: Any) -> Page:
        expected.extend(amiss)
        made = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **context})
        one = Watched(made.new_page(), daemon.url)
        watched.append(one)
        token = (daemon.directory / "push.token").read_text().strip()
        one.page.goto(f"{daemon.url}{path}#token={token}")
        return one.page

    yield opened
    for one in watched:
        one.page.context.close()
    wrong = [text for one in watched for text in one.wrong]
    assert [text for text in wrong if not any(re.search(each, text) for each in expected)] == []


@pytest.fixture
def violations() -> Callable[[Page], list[str]]:
    """The serious and critical rules of axe-core that a page breaks, with the elements."""

    def found(page: Page) -> list[str]:
        # Not by a script element: the page's own policy forbids those, as it should.
        page.evaluate(AXE)
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {node['html']}"
            for one in result["violations"]
            if one["impact"] in {"serious", "critical"}
            for node in one["nodes"]
        ]

    return found
