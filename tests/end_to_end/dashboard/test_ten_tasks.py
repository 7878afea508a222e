"""Ten tasks of researchers among 1,100 runs: each is done with at most four gestures; and the command that does the same."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from end_to_end.dashboard.conftest import train
from histories import BEGIN, history, ingested, opened
from playwright.sync_api import expect
from processes import Daemon, eventually

from trackside_daemon.model.records import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Locator, Page

SWEEP = 40
FAILED = 10
OTHERS = 1050 - FAILED
MOST_GESTURES = 4
TRAINING = """
import trackside
run = trackside.init("code")
run.push(step=1, loss=1.0)
"""


class Task(NamedTuple):
    """The clicks and keys of a task, from the page that it begins on, and the command that does the same."""

    clicks: int
    keys: int
    command: tuple[str, ...] = ()


TASKS = {
    "which of 40 runs used lr 3e-4 and bs 64": Task(0, 14, ("runs", "lr=3e-4 bs=64")),
    "did validation diverge": Task(0, 0, ("why", "overfits")),
    "a chart as a picture": Task(1, 0, ("report", "overfits", "--plots", "{directory}")),
    "what changed in the code": Task(2, 0, ("compare", "{older}", "{newer}", "--code")),
    "when was a GPU hottest": Task(1, 0),
    "hide a noisy key": Task(1, 0),
    "delete ten failed runs": Task(2, 17, ("delete", "--query", "failed tag:debug", "--yes")),
    "two keys on two axes": Task(2, 0),
    "annotate a run": Task(1, 9),
    "share with a colleague": Task(2, 0, ("report", "overfits", "--output", "{directory}/report.html")),
}


class Hands:
    """Does a task on a page, and counts the gestures."""

    def __init__(self, page: Page) -> None:
        self.page, self.clicks, self.keys, self.gestures = page, 0, 0, 0

    def click(self, what: Locator) -> None:
        self.clicks, self.gestures = self.clicks + 1, self.gestures + 1
        what.click()

    def choose(self, what: Locator, option: str) -> None:
        self.clicks, self.gestures = self.clicks + 1, self.gestures + 1
        what.select_option(option)

    def press(self, key: str) -> None:
        self.keys, self.gestures = self.keys + 1, self.gestures + 1
        self.page.keyboard.press(key)

    def type(self, text: str) -> None:
        self.keys, self.gestures = self.keys + len(text), self.gestures + 1
        self.page.keyboard.type(text)

    def done(self, task: str) -> None:
        """Check the count of a task, and begin the next."""
        assert (self.clicks, self.keys) == TASKS[task][:2], task
        assert self.gestures <= MOST_GESTURES, task
        self.clicks = self.keys = self.gestures = 0


def fill(directory: Path) -> None:
    """Write ended runs: a sweep, ten that failed, one that overfits, and others."""
    with history(directory) as kept:

        def add(run: str, pushes: list[tuple[int, int, dict[str, float]]], state: str, **about: object) -> None:
            kept.writer.put([opened(run, **about), ingested(run, pushes), RunState(run, 0, state, "", BEGIN + 60)])  # type: ignore[arg-type]
            eventually(kept.writer.has_room)

        def curve(steps: int) -> list[tuple[int, int, dict[str, float]]]:
            return [(step, round((BEGIN + step) * 1e6), {"loss": 1 / (1 + step)}) for step in range(steps)]

        for number in range(OTHERS):
            add(f"other-{number}", curve(3), "finished")
        for number in range(FAILED):
            add(f"broken-{number}", curve(3), "failed", tags=("debug",))
        for number in range(SWEEP):
            add(
                f"sweep-{number}",
                curve(3),
                "finished",
                config={"lr": 10 ** -(3 + number % 8 / 8), "bs": 32 << number % 5},
            )
        add("sweep-wanted", curve(3), "finished", config={"lr": 3e-4, "bs": 64})
        losses = [
            (
                step,
                round((BEGIN + step) * 1e6),
                {"train/loss": 2 / (1 + step), "eval/loss": abs(step - 50) / 25, "lr": 1e-4},
            )
            for step in range(200)
        ]
        add("overfits", losses, "finished")
        kept.writer.call(lambda _: None).result(60)
        kept.wait_until_packed()


@pytest.fixture
def lab() -> Iterator[Daemon]:
    """A daemon with 1,100 runs, of which the last two have code that differs, and two simulated GPUs."""
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory:
        place = Path(directory)
        fill(place / "history")
        daemon = Daemon(place, "--collector.gpu.simulate=2")
        script = place / "train.py"
        for text in (TRAINING, TRAINING.replace("loss=1.0", "loss=0.5")):
            script.write_text(text)
            train(daemon, "-B", str(script), TRACKSIDE_CODE="1")
        eventually(lambda: [run["state"] for run in daemon.api("runs?name=code").json()["runs"]] == ["finished"] * 2)
        yield daemon
        daemon.stop()


def chart(page: Page, key: str) -> Locator:
    return page.locator("figure.chart").filter(has=page.get_by_role("heading", name=key, exact=True))


def on_runs(page: Page, lab: Daemon, hands: Hands) -> None:
    expect(page.get_by_text(re.compile(r"^1,09\d runs$"))).to_be_visible()
    hands.press("/")
    hands.type("lr=3e-4 bs=64")
    expect(page.locator(".all-runs tbody th.name")).to_have_text(["sweep-wanted"])
    hands.done("which of 40 runs used lr 3e-4 and bs 64")
    page.goto(f"{lab.url}/runs")
    expect(page.get_by_text(re.compile(r"^1,09\d runs$"))).to_be_visible()
    hands.press("/")
    hands.type("failed tag:debug")
    expect(page.get_by_text(re.compile(f"^{FAILED} of "))).to_be_visible()
    hands.click(page.get_by_role("checkbox", name="Select all listed runs"))
    hands.click(page.locator(".chosen").get_by_role("button", name="Delete"))
    expect(page.get_by_text(f"{FAILED} runs deleted")).to_be_visible()
    hands.done("delete ten failed runs")


def on_a_run(page: Page, lab: Daemon, hands: Hands) -> None:
    page.goto(f"{lab.url}/runs/overfits")
    both = chart(page, "train/loss and eval/loss")
    eventually(lambda: both.locator(".plot").evaluate("plot => plot.closest('.chart').chart.view.turn") == "less")
    hands.done("did validation diverge")
    with page.expect_download() as waiting:
        hands.click(both.get_by_role("button", name="Download as PNG"))
    assert waiting.value.suggested_filename.endswith(".png")
    hands.done("a chart as a picture")
    hands.click(both.get_by_role("button", name="Scale and range"))
    hands.choose(both.get_by_label("With"), "lr")
    two = "document.querySelectorAll('.chart .u-axis').length > 2 * document.querySelectorAll('.chart .uplot').length"
    eventually(lambda: page.evaluate(two))
    hands.done("two keys on two axes")
    hands.click(page.get_by_role("button", name="Hide lr"))
    expect(chart(page, "lr")).to_have_count(0)
    hands.done("hide a noisy key")
    hands.click(page.get_by_role("textbox", name="Notes"))
    hands.type("no usage")
    with page.expect_response("**/about"):
        hands.press("Control+Enter")
    hands.done("annotate a run")
    hands.click(page.get_by_role("button", name="Share"))
    hands.click(page.get_by_role("button", name="Copy link"))
    expect(page.get_by_label("To copy")).to_have_value(re.compile("/runs/overfits.*view="))
    hands.done("share with a colleague")


@pytest.mark.only_soak
def test_ten_tasks_take_at_most_four_gestures_each(lab: Daemon, open_page: Callable[..., Page], tmp_path: Path) -> None:
    newer, older = (run["id"] for run in lab.api("runs?name=code").json()["runs"])
    names = {"directory": str(tmp_path), "older": older, "newer": newer}
    for task in TASKS.values():
        if task.command and task.command[0] != "delete":
            command = [word.format(**names) for word in task.command]
            asked = [sys.executable, "-m", "trackside_daemon", *command, f"--storage.path={lab.history}"]
            ended = subprocess.run(asked, check=False, capture_output=True, text=True, cwd=tmp_path)
            assert ended.returncode == 0, ended.stderr
    page = open_page(lab, "/runs")
    hands = Hands(page)
    on_runs(page, lab, hands)
    on_a_run(page, lab, hands)

    page.goto(f"{lab.url}/compare")
    hands.click(page.get_by_role("button", name=re.compile("^Compare with code")).nth(1))
    hands.click(page.get_by_role("button", name="Difference of the code"))
    expect(page.get_by_role("region", name="Difference of the code")).to_contain_text(
        re.compile(r"[+-]run.push\(step=1, loss=0.5\)")
    )
    hands.done("what changed in the code")
    page.goto(f"{lab.url}/system")
    hands.choose(page.get_by_label("Last"), "86400")
    expect(page.get_by_text(re.compile(r"Hottest: GPU \d.*, [\d.]+ °C, "))).to_be_visible()
    hands.done("when was a GPU hottest")
