"""`make docs`: the pages as a site, without broken links."""

from __future__ import annotations

import functools
import http.server
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright
from processes import ROOT, clean_environ

QUESTIONS = {
    "kill": "troubleshooting",
    "export csv": "export-import",
    "token": "troubleshooting",
    "loss nan": "troubleshooting",
    "hang": "evidence",
    "resume": "checkpoints",
    "notification": "notifications",
    "compare seeds": "compare",
    "pandas": "python",
    "silence": "tuning",
}
SITE = ROOT / "build" / "site"


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Path:
    """Build the site. A broken link, or a name that the client does not have, makes the build fail."""
    if not request.config.getoption("--soak"):
        pytest.skip(
            "the site takes seconds of a processor: under --soak; tests/documentation checks the links of the pages"
        )
    binaries = Path(sys.executable).parent
    made = subprocess.run(
        ["make", "--no-print-directory", "-o", ".venv/.docs", f"BIN={binaries}", "docs"],
        cwd=ROOT,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr + made.stdout
    return SITE


def test_the_client_reference_has_every_public_name(site: Path) -> None:
    import trackside

    page = (site / "docs" / "client.html").read_text(encoding="utf-8")
    assert [name for name in trackside.__all__ if not re.search(rf">(?:run\.)?{name}[<(]", page, re.IGNORECASE)] == []


def test_every_page_of_the_docs_is_in_the_navigation(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    pages = [path.stem for path in (ROOT / "docs").glob("*.md")]
    assert [name for name in pages if f'href="docs/{name}.html"' not in index] == []


def test_the_site_needs_no_other_host(site: Path) -> None:
    """A cluster without internet access can serve it."""
    loaded = re.compile(
        r"""<(?:script|img|link rel="(?:stylesheet|preconnect|icon)")[^>]*(?:src|href)="(https?:[^"]+)"""
    )
    assert {page.name: found for page in site.rglob("*.html") if (found := loaded.findall(page.read_text()))} == {}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_the_search_finds_the_right_page_first(site: Path) -> None:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as started:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = started.chromium.launch(executable_path="/usr/bin/chromium-headless-shell")
        found = {}
        for question in QUESTIONS:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_address[1]}/index.html?q={question.replace(' ', '+')}")
            first = page.wait_for_selector(".md-search-result__item a")
            assert first is not None
            found[question] = re.sub(r".*/|\.html.*", "", first.get_attribute("href") or "")
            page.close()
        browser.close()
        server.shutdown()
    wrong = {question: page for question, page in found.items() if page != QUESTIONS[question]}
    assert len(wrong) <= 1, wrong
