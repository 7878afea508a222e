"""The System page: host, GPUs, processes and the daemon."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect
from processes import eventually
from ray_service import HEAD, Ray

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nvml.fake.library import Scenario
    from playwright.sync_api import Locator, Page
    from processes import Daemon

SCRIPT_NAME = "<script>alert(1)</script>"

STATES = {"R": "running", "S": "sleeping", "D": "waiting for a device", "Z": "zombie", "T": "stopped", "I": "idle"}

#: A run of one process, and a child of it.
TRAINING = f"""
import subprocess, sys, trackside
trackside.init({SCRIPT_NAME!r}).push(step=1, loss=1.0)
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.communicate()
"""


def fact(card: Locator, name: str) -> Locator:
    """Return the value of a fact on a card."""
    return card.locator("dt", has_text=re.compile(f"^{name}$")).locator("xpath=following-sibling::dd[1]")


def processes(daemon: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.api("processes").json()["processes"]
    return found


def line(one: dict[str, Any]) -> list[str]:
    """Return a process's id, run, role, memory and command from its row, without its state, which changes all the time."""
    resident = f"{one['resident_bytes'] / 2**20:.3g} MiB"
    return [str(one["pid"]), f"{one['run']}: {one['rank']}", one["role"], resident, one["command"]]


def lines(table: Locator) -> list[list[str]]:
    """Return the values of every row at one moment."""
    rows: list[list[str]] = table.locator("tr:has(td)").evaluate_all(
        "rows => rows.map((row) => [row.querySelector('.mono').textContent, ...[2, 3, 9, 10].map((at) => row.cells[at].textContent)])"
    )
    return rows


def is_as_reported(card: Locator, status: dict[str, Any]) -> bool:
    """Return whether the page shows of the daemon what the API has."""
    states = status["collectors"].items()
    silent = sorted(name for name, one in states if one["state"] == "ok" and not one.get("why"))
    known = {"Version": status["version"], "Storage": status["storage_path"], "Working": ", ".join(silent)}
    known["Push endpoints"] = ", ".join(status["push_endpoints"])
    parts = len(states) + len(status["notifications"])
    shown = {name: fact(card, name).text_content() for name in known}
    return shown == known and card.locator("tbody tr").count() == parts - len(silent)


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[Ray]:
    """A cluster of Ray with a node on this machine."""
    service = Ray(tmp_path)
    raylet = service.process()
    yield service
    raylet.kill()
    raylet.communicate()
    service.stop()


def pause(page: Page, daemon: Daemon, violations: Callable[[Page], list[str]]) -> None:
    """The GPUs are let go of and read again by buttons."""
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme="dark")
    gpus = page.locator("main .cards > li")
    eventually(lambda: page.evaluate("document.documentElement.scrollWidth") == 390)
    page.get_by_role("button", name="Pause reading").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert daemon.api("status").json()["nvml"]["paused_until"] is None
    page.get_by_role("button", name="Pause reading").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_text(re.compile(r"^Paused until 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.$"))).to_be_visible()
    assert daemon.api("status").json()["nvml"]["paused_until"] is not None
    expect(gpus).to_have_count(0)
    assert violations(page) == []
    page.get_by_role("button", name="Resume reading").click()
    expect(gpus).to_have_count(8)
    assert daemon.api("status").json()["nvml"]["paused_until"] is None


def test_it_shows_what_the_api_has_and_pauses_the_gpus(
    start_daemon: Callable[..., Daemon],
    start_training: Callable[..., subprocess.Popen[str]],
    open_page: Callable[..., Page],
    violations: Callable[[Page], list[str]],
    ray: Ray,
) -> None:
    flags = ("--collector.gpu.simulate=8", "--collector.gpu.trouble=throttled:3", "--collector.ray")
    daemon = start_daemon(*flags, f"--collector.ray.dashboard={ray.url}")
    training = start_training(daemon, "-c", TRAINING, LOCAL_RANK="2")
    assert training.stdout is not None
    child = training.stdout.readline().strip()
    eventually(lambda: len(processes(daemon)) == 2)
    page = open_page(daemon, "/system")

    gpus = page.locator("main .cards > li")
    expect(gpus).to_have_count(8)
    for place, known in enumerate(daemon.api("overview").json()["gpus"]):
        card = gpus.nth(place)
        expect(card.locator("h3")).to_have_text(f"GPU {known['gpu']}")
        expect(card).to_contain_text(known["uuid"])
        expect(card.locator(".head .badge")).to_have_text("● up")
    expect(fact(gpus.nth(0), "Power")).to_have_text(re.compile(r"^\d+ W of 700 W$"))
    expect(fact(gpus.nth(0), "Memory")).to_have_text(re.compile(r"^[\d.]+ GiB of 79.6 GiB$"))
    expect(fact(gpus.nth(3), "Limited by")).to_contain_text("hw slowdown")
    expect(fact(gpus.nth(2), "Limited by")).to_be_hidden()
    expect(gpus.nth(3)).to_contain_text("its clocks are reduced by")

    table = page.locator(".processes")
    expect(table.get_by_role("link")).to_have_text([SCRIPT_NAME] * 2)
    eventually(lambda: lines(table) == [line(one) for one in processes(daemon)])
    assert [one for one in lines(table) if one[0] == child]
    assert set(table.locator("td:nth-child(5)").all_inner_texts()) <= set(STATES.values())
    link = table.get_by_role("link").first
    link.focus()
    for _ in range(2):  # what the first has told is on the page by the second
        with page.expect_response("**/processes"):
            pass
    expect(link).to_be_focused()

    # On a busy machine the states of collectors change.
    itself = page.get_by_role("region", name="Daemon")
    eventually(lambda: is_as_reported(itself, daemon.api("status").json()))
    expect(fact(itself, "History")).to_contain_text("iB")

    cluster = page.get_by_role("region", name="Ray")
    expect(fact(cluster, "Cluster")).to_have_text("4 CPU, 1.86 GiB memory")
    expect(fact(cluster, "Nodes")).to_have_text("2 alive")
    expect(fact(cluster, "Tasks")).to_have_text("3 running")
    expect(cluster.locator("tbody tr:visible")).to_have_text(
        re.compile(f"^{HEAD[:12]}● up1 of 2.*23.8 MiB of 95.4 MiB$")
    )
    host = daemon.api("overview").json()["host"]
    about = page.get_by_role("region", name="Host")
    expect(about.get_by_role("heading", name=host["name"], exact=True)).to_be_visible()
    expect(fact(about, "CPU")).to_contain_text(f"of {os.cpu_count()}")
    expect(about.locator("tbody tr")).to_have_count(len(host["disks"]))
    assert "undefined" not in page.locator("main").inner_text()
    assert "NaN" not in page.locator("main").inner_text()
    assert violations(page) == []

    training.kill()
    expect(page.get_by_text("No training processes run on this machine.")).to_be_visible()
    pause(page, daemon, violations)


def test_a_value_that_a_gpu_refuses_is_shown_with_the_reason_and_a_lost_gpu_has_no_numbers(
    scenario: Scenario, start_daemon: Callable[..., Daemon], open_page: Callable[..., Page]
) -> None:
    scenario.set("0 nvmlDeviceGetTemperature status 3")
    daemon = start_daemon()
    page = open_page(daemon, "/system")
    gpus = page.locator("main .cards > li")
    expect(gpus).to_have_count(2)
    status = eventually(lambda: daemon.api("status").json()["gpus"])
    refused: dict[str, str] = status[0]["refused"]
    assert refused
    details = gpus.first.locator("details")
    details.locator("summary").click()
    expect(details.locator("dt")).to_have_text(sorted(refused))
    expect(details.locator("dd").first).to_have_text(refused[min(refused)])
    expect(gpus.nth(1).locator("dt:visible").first).to_be_visible()
    scenario.set("1 * status 15")
    expect(gpus.nth(1)).to_contain_text("down")
    expect(gpus.nth(1).locator(".facts dt:visible")).to_have_count(0)
    page.get_by_role("link", name="Overview").click()
    expect(page.locator(".gpus > li").nth(1)).to_contain_text("down")
    expect(page.locator(".gpus > li").nth(0)).to_contain_text("%")


@pytest.mark.usefixtures("only_soak")
def test_without_gpus_the_page_shows_it(start_daemon: Callable[..., Daemon], open_page: Callable[..., Page]) -> None:
    page = open_page(start_daemon("--no-collector.gpu"), "/system")
    expect(page.get_by_text("the daemon was started with --no-collector.gpu")).to_be_visible()
    expect(page.get_by_role("button", name="Pause reading")).to_be_hidden()
