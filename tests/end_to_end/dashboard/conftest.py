"""The dashboard in Debian's Chromium without its window (two thirds of the CPU time), through Playwright; errors and requests to other hosts fail the test."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import pytest
from end_to_end.conftest import finish
from playwright.sync_api import Page, expect, sync_playwright
from processes import DEADLINE, ROOT, Daemon, clean_environ, lasting_daemon
from processes import start as start_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Request

FOLDER = Path(__file__).parent
AXE = (FOLDER / "axe" / "axe.min.js").read_text()
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


_browsers: list[Browser] = []
_ends = ExitStack()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Close Chromium before tests of another folder: while it runs, nothing else in this process may run an asyncio loop."""
    yield
    if nextitem is None or FOLDER not in nextitem.path.parents:
        _browsers.clear()
        _ends.close()


@pytest.fixture(scope="module")
def browser() -> Browser:
    """Return Chromium, started once per process; its start and its first page take two seconds of CPU time."""
    if not _browsers:
        expect.set_options(timeout=1000 * DEADLINE)
        playwright = _ends.enter_context(sync_playwright())
        started = playwright.chromium.launch(executable_path="/usr/bin/chromium-headless-shell", args=list(FLAGS))
        _ends.callback(started.close)
        _browsers.append(started)
    return _browsers[0]


@pytest.fixture(scope="module")
def shared_context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser context for all tests of a file; each has a separate tab, and with it a separate session storage."""
    context = browser.new_context()
    context.new_page()  # while a tab is open, Chromium keeps a process for the others: half of the cost of a test
    yield context
    context.close()


PATIENT = {"TRACKSIDE_ALERTS__STALL_AFTER": "1h"}
"""A waiting training is not stalled."""


@pytest.fixture
def start_daemon(start_daemon: Callable[..., Daemon]) -> Callable[..., Daemon]:
    """Start daemons that do not consider a waiting training as stalled."""
    return partial(start_daemon, environ=PATIENT)


@pytest.fixture(scope="module")
def shared_daemon() -> Iterator[Daemon]:
    """A daemon for all tests of a file that leave it as it is."""
    with lasting_daemon(environ=PATIENT) as running:
        yield running


def train(daemon: Daemon, *arguments: str, **environ: str) -> None:
    """Run Python as a training to its end, for all tests of a file."""
    more = {"TRACKSIDE_ENDPOINT": daemon.endpoint, "OMP_NUM_THREADS": "1", **environ}
    pipes: dict[str, Any] = {**dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE), "text": True, "cwd": ROOT}
    finish(start_process([sys.executable, *arguments], env=clean_environ(more), **pipes))


class WatchedTab:
    """A tab that records its errors.

    Attributes:
        page: Playwright's page.
        errors: Console and script errors, and requests to other hosts.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.errors: list[str] = []
        self._host = urlsplit(url).netloc
        page.set_default_timeout(1000 * DEADLINE)
        page.on("console", self._on_console)
        page.on("pageerror", lambda problem: self.errors.append(str(problem)))
        page.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"blob", "data"} and parts.netloc.rpartition("@")[2] != self._host:
            self.errors.append(f"requested {request.url}")


@pytest.fixture
def open_page(shared_context: BrowserContext) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a page of a daemon's dashboard with its token.

    Example: ``open_page(daemon, "/runs/ID", color_scheme="dark")``. The test fails if any page has an error that matches none
    of the patterns *expected_errors*.
    """
    tabs: list[WatchedTab] = []
    allowed: list[str] = []

    def open_tab(
        daemon: Daemon,
        path: str = "/",
        *,
        expected_errors: tuple[str, ...] = (),
        width: int = 1280,
        color_scheme: Literal["light", "dark"] = "light",
    ) -> Page:
        allowed.extend(expected_errors)
        tab = WatchedTab(shared_context.new_page(), daemon.url)
        tabs.append(tab)
        tab.page.set_viewport_size({"width": width, "height": 800})
        tab.page.emulate_media(color_scheme=color_scheme)
        token = (daemon.directory / "push.token").read_text().strip()
        tab.page.goto(f"{daemon.url}{path}#token={token}")
        return tab.page

    yield open_tab
    for tab in tabs:
        tab.page.close()
    errors = [text for tab in tabs for text in tab.errors]
    assert [text for text in errors if not any(re.search(pattern, text) for pattern in allowed)] == []


@pytest.fixture
def violations() -> Callable[[Page], list[str]]:
    """Return a function that lists axe-core's serious and critical violations on a page."""

    def found(page: Page) -> list[str]:
        # Not by a script element: the page's own policy forbids those, as it should.
        if not page.evaluate("'axe' in window"):
            page.evaluate(AXE)
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {node['html']}"
            for one in result["violations"]
            if one["impact"] in {"serious", "critical"}
            for node in one["nodes"]
        ]

    return found
