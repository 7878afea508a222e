"""The landing page in a real browser."""

from __future__ import annotations

import re
import subprocess
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from authorities import hashed
from processes import DEADLINE, eventually

from trackside_daemon.web.app import STATIC

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processes import Daemon

BROWSER = (
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--virtual-time-budget=2000",
)
SCRIPT_NAME = "<script>alert(1)</script>"

#: Three runs: one with a name that is no name, one with a loss that is none, and one that goes on.
RUNS = f"""
import time, trackside
with trackside.init({SCRIPT_NAME!r}, total_steps=40) as run:
    for step in range(1, 11): run.push(step=step, loss=2.718281828 / step)
run = trackside.init("diverged")
run.push(step=1, loss=float("nan"))
run.finish("failed")
run = trackside.init("goes-on")
run.push(step=123456, loss=1.23e-7)
time.sleep(600)
"""


class Page:
    """What a page shows: its text, and the cells of its rows."""

    def __init__(self, dom: str) -> None:
        self.text = unescape(re.sub(r"<[^>]*>", "", dom))
        rows = (re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", dom))
        self.rows = [[unescape(cell) for cell in row] for row in rows if row]


@pytest.fixture
def look(tmp_path: Path) -> Callable[[str], Page]:
    """Opens an address in a browser of its own, and returns what is shown once the API has answered."""
    count = iter(range(100))

    def browse(address: str) -> Page | None:
        profile = f"--user-data-dir={tmp_path / str(next(count))}"
        shown = subprocess.run(
            [*BROWSER, profile, "--dump-dom", address], capture_output=True, text=True, timeout=DEADLINE, check=True
        )
        return None if "Loading…" in shown.stdout else Page(shown.stdout)

    return lambda address: eventually(lambda: browse(address)) or Page("")


def test_it_shows_the_runs_as_the_api_has_them(
    daemon: Daemon, start_training: Callable[..., object], look: Callable[[str], Page]
) -> None:
    start_training(daemon, "-c", RUNS)
    runs = eventually(lambda: three_runs(daemon))
    token = (daemon.directory / "push.token").read_text().strip()
    page = look(f"{daemon.url}/#token={token}")
    shown = {row[0]: row for row in page.rows}
    assert list(shown) == [run["name"] for run in runs] == ["goes-on", "diverged", SCRIPT_NAME]
    for run in runs:
        [rank] = run["ranks"]
        name, number, state, step, loss, progress, last_push = shown[run["name"]]
        assert (name, number, state, step) == (run["name"], "0", run["state"], f"{rank['step']:.0f}")
        assert float(loss) == pytest.approx(float(rank["loss"]), rel=1e-4, nan_ok=True)
        assert progress == ("25.0 %" if name == SCRIPT_NAME else "")
        assert re.fullmatch(r"\d+ (s|min) ago", last_push)
    assert "Version " in page.text
    assert token not in page.text


def three_runs(daemon: Daemon) -> list[dict[str, Any]]:
    """The runs of the API, once all are in the state that they stay in."""
    runs: list[dict[str, Any]] = daemon.api("runs").json()["runs"]
    return runs if {run["state"] for run in runs} == {"finished", "failed", "running"} else []


@pytest.mark.parametrize("fragment", ["", "#token=wrong"])
def test_without_the_token_it_says_what_is_missing_and_where_it_lies(
    fragment: str, daemon: Daemon, look: Callable[[str], Page]
) -> None:
    page = look(f"{daemon.url}/{fragment}")
    assert f"open {daemon.url}/#token=TOKEN" in page.text
    assert str(daemon.directory / "push.token") in page.text


def test_without_a_run_it_says_the_line_to_add(daemon: Daemon, look: Callable[[str], Page]) -> None:
    token = (daemon.directory / "push.token").read_text().strip()
    assert "trackside.push(step=step, loss=loss)" in look(f"{daemon.url}/#token={token}").text


def test_the_page_asks_nobody_else_and_has_nothing_inline(daemon: Daemon) -> None:
    policy = daemon.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for file in STATIC.iterdir():
        text = file.read_text()
        assert not re.search(r"https?:|url\(|@import|innerHTML|\bon[a-z]+=|\bstyle=|<style|<script(?! type)", text), (
            file
        )
    assert {file.suffix for file in STATIC.iterdir()} == {".html", ".js", ".css"}


@pytest.mark.parametrize("fragment", ["", "#token=of-another-time"])
def test_with_a_password_of_the_web_configuration_it_needs_no_token(
    start_daemon: Callable[..., Daemon], look: Callable[[str], Page], tmp_path: Path, fragment: str
) -> None:
    (tmp_path / "web.yml").write_text(f"basic_auth_users: {{ada: '{hashed('lovelace')}'}}")
    flags = (f"--web.config.file={tmp_path}/web.yml", "--no-collector.gpu")
    daemon = start_daemon(*flags, asking={"auth": ("ada", "lovelace")})
    page = look(daemon.url.replace("//", "//ada:lovelace@") + f"/{fragment}")
    assert "None yet. Add trackside.push" in page.text
