"""Measure how soon the dashboard shows a page and a pushed value, and its size, compared with TensorBoard.

All in one Chromium, with an empty cache each time, from the performance entries of the page. Run by ``make bench``.

"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import numpy as np
from end_to_end.dashboard.conftest import FLAGS
from playwright.sync_api import sync_playwright
from processes import Daemon, clean_environ, eventually

from bench.history import BEGIN, SECOND, Filling, floats
from bench.push import RIVALS
from bench.table import UNAVAILABLE, head, machine, row, verdict
from trackside.wire import Clock, Hello, Identity, Totals
from trackside_daemon.history.database import Database
from trackside_daemon.history.record.trimming import Bounds
from trackside_daemon.history.record.writer import Writer
from trackside_daemon.model.records import BatchIngested, RunState, SessionOpened
from trackside_daemon.model.session import SessionRef

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from playwright.sync_api import Browser, Page

    from trackside_daemon.model.columns import Columns

RUNS = 1000
STEPS = 60
SAMPLES = 10_000_000
LONG = "long"
SHOWN = {"Overview": 10, "Runs": 20}
"""Ended runs that the overview lists, and rows of the table of runs that a screen shows."""

PUSHES = 10
"""Number of pushed steps, at moments spread over the second between two events of the stream."""

PAINT_LIMIT = 0.3
SHOWN_LIMIT = 1.0
LIVE_LIMIT = 2.0
WEIGHT_LIMIT = 250.0
LOAD_SECONDS = 600.0

LISTED = "document.querySelectorAll('main tr a[href^=\"/runs/\"]').length >= {}"
CHART = "document.querySelector('.chart canvas')"
TENSORBOARD_CHART = "document.querySelector('line-chart .series-view canvas, line-chart .series-view svg path')"
WATCH = """
const look = new MutationObserver(() => {
  if (!(%s)) return;
  look.disconnect();
  requestAnimationFrame(() => setTimeout(() => {
    performance.mark("there");
    document.documentElement.classList.add("there");
  }));
});
look.observe(document, { childList: true, subtree: true });
"""
TOLD = """() => {
  const files = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const own = files.filter((one) => !["fetch", "xmlhttprequest"].includes(one.initiatorType));
  return [
    performance.getEntriesByName("first-contentful-paint")[0].startTime / 1000,
    performance.getEntriesByName("there")[0].startTime / 1000,
    own.reduce((sum, one) => sum + one.encodedBodySize, 0) / 1024,
  ];
}"""


LIVE = "live"
PUSHING = f"""
import sys, time, trackside
with trackside.init("{LIVE}") as run:
    for line in sys.stdin:
        begun = time.time()
        run.push(step=int(line), loss=1.0)
        print(begun, flush=True)
"""
AWAIT = """([selector, text]) => {
  window.shown = new Promise((resolve) => {
    const look = () => {
      if (document.querySelector(selector)?.textContent === text) requestAnimationFrame(() => resolve(Date.now() / 1000));
    };
    new MutationObserver(look).observe(document, { childList: true, subtree: true, characterData: true });
    look();
  });
}"""
STEP_SHOWN = {
    "Overview": ("/", "li.run .progress .value", "Step {}"),
    "Run": (f"/runs/{LIVE}", ".run-tiles .run-figure", "{}"),
}
"""By page: its address, the selector of the element that shows the step, and the text in it."""


class Seen(NamedTuple):
    """Seconds since the start of the navigation, and KiB of the files of the page as transferred."""

    paint: float
    there: float
    weight: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    asked = parser.parse_args()
    machine()
    with ExitStack() as ends:
        place = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp")))
        playwright = ends.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium-headless-shell", args=list(FLAGS))
        ends.callback(browser.close)
        fill(place / "history", asked.samples)
        with ExitStack() as served:
            daemon = Daemon(place, fresh=True)
            served.callback(daemon.stop)
            key = f"#token={(daemon.directory / 'push.token').read_text().strip()}"
            head(f"empty cache, medians of {asked.rounds}", "first contentful paint", "shown", "files, compressed")
            pages = {
                "Overview": ("/", LISTED.format(SHOWN["Overview"])),
                "Runs": ("/runs", LISTED.format(SHOWN["Runs"])),
            }
            seen = {
                name: shown(f"{name}, {RUNS + 1:,} runs", browser, f"{daemon.url}{path}{key}", ready, asked.rounds)
                for name, (path, ready) in pages.items()
            }
            run = f"Run, a key of {asked.samples:,} samples"
            seen["Run"] = shown(run, browser, f"{daemon.url}/runs/{LONG}{key}", CHART, asked.rounds)
            delays = live(browser, daemon, key)
        rival = beside(browser, place, asked.samples, asked.rounds)
    head("limit", "measured", "target", "")
    limits(seen, rival)
    head(f"{PUSHES} steps, from the push to the page", "median", "max", f"<= {LIVE_LIMIT:g} s")
    for name, seconds in delays.items():
        middle, longest = f"{statistics.median(seconds):.2f} s", f"{max(seconds):.2f} s"
        verdict(f"{name}: a pushed step", middle, longest, met=max(seconds) <= LIVE_LIMIT)
    print()


def limits(seen: dict[str, Seen], rival: Seen | None) -> None:
    """Print the targets, and whether each is met."""
    for name, one in seen.items():
        verdict(f"{name}: first paint", f"{one.paint:.2f} s", f"<= {PAINT_LIMIT:g} s", met=one.paint <= PAINT_LIMIT)
        verdict(f"{name}: shown", f"{one.there:.2f} s", f"<= {SHOWN_LIMIT:g} s", met=one.there <= SHOWN_LIMIT)
    weight = max(one.weight for one in seen.values())
    verdict("files of the heavier page", f"{weight:.0f} KiB", f"<= {WEIGHT_LIMIT:.0f} KiB", met=weight <= WEIGHT_LIMIT)
    if rival is not None:
        row("TensorBoard / Run: the chart is shown", f"{rival.there / seen['Run'].there:.1f}", "", "")
        row("TensorBoard / Run: files", f"{rival.weight / seen['Run'].weight:.1f}", "", "")


def shown(name: str, browser: Browser, url: str, ready: str, rounds: int) -> Seen:
    """Return medians of an address as a table row; *ready* is an expression that is true once the page is complete."""
    seen = [once(browser, url, ready) for _ in range(rounds)]
    middle = Seen(*(statistics.median(column) for column in zip(*seen, strict=True)))
    row(name, f"{middle.paint:.2f} s", f"{middle.there:.2f} s", f"{middle.weight:.0f} KiB")
    return middle


def live(browser: Browser, daemon: Daemon, key: str) -> dict[str, list[float]]:
    """Return seconds from each push until its step is on each page, with both pages open."""
    with ExitStack() as ends:
        training = subprocess.Popen(
            [sys.executable, "-c", PUSHING],
            env=clean_environ({"TRACKSIDE_ENDPOINT": daemon.endpoint}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        ends.enter_context(training)

        def push(step: int) -> float:
            assert training.stdin is not None
            assert training.stdout is not None
            training.stdin.write(f"{step}\n")
            training.stdin.flush()
            return float(training.stdout.readline())

        push(1)
        eventually(lambda: daemon.api(f"runs/{LIVE}").is_success)
        pages = {name: browser.new_context().new_page() for name in STEP_SHOWN}
        delays: dict[str, list[float]] = {name: [] for name in STEP_SHOWN}
        for name, page in pages.items():
            ends.callback(page.context.close)
            page.goto(f"{daemon.url}{STEP_SHOWN[name][0]}{key}")
        for step in range(1, PUSHES + 2):
            for name, page in pages.items():
                _, selector, text = STEP_SHOWN[name]
                page.evaluate(AWAIT, [selector, text.format(step)])
            begun = push(step) if step > 1 else 0.0  # the first has only to be there
            for name, page in pages.items():
                at = page.evaluate("shown")
                delays[name] += [at - begun] if begun else []
            time.sleep(step / PUSHES)
    return delays


def once(browser: Browser, url: str, ready: str) -> Seen:
    """Return the figures of one first visit."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page: Page = context.new_page()
    page.set_default_timeout(60_000)
    page.add_init_script(WATCH % ready)
    page.goto(url, wait_until="commit")
    page.wait_for_selector("html.there")
    seen = Seen(*page.evaluate(TOLD))
    context.close()
    return seen


def fill(history: Path, samples: int) -> None:
    """Write a history of many short runs, and of one run with a long key."""
    history.mkdir()
    database = Database(history)
    writer = Writer(database, Bounds(0))
    writer.start()
    filling = Filling(writer, LONG, ["loss"], floats())
    filling.fill(samples)
    filling.settle()
    writer.put([RunState(LONG, 0, "finished", "", time.time())])
    taken = Filling(writer, "short", ["loss"], floats()).push(STEPS)
    for number in range(RUNS):
        writer.put(_short(number, taken.columns[0]))
        eventually(writer.has_room)
    writer.call(lambda _: None).result()
    eventually(lambda: writer.call(lambda store: not store.due).result(), LOAD_SECONDS)
    writer.stop()
    database.close()


def _short(number: int, columns: Columns) -> list[Any]:
    name, began = f"sweep-{number:04}", BEGIN + number * 60 * SECOND
    session = SessionRef(name.encode().ljust(16), name, name)
    hello = Hello(Identity(run=name, name=name), Clock(began, 0), began, Totals(), tags=("sweep",))
    return [
        SessionOpened(session, hello, began / SECOND),
        BatchIngested(session, 1, [columns], began),
        RunState(name, 0, "finished", "", began / SECOND + STEPS),
    ]


def beside(browser: Browser, directory: Path, samples: int, rounds: int) -> Seen | None:
    """Return the figures of TensorBoard with as many samples, once it has read them; None if it is not installed."""
    if not RIVALS.exists() or subprocess.run([RIVALS, "-c", "import tensorboard"], check=False).returncode:
        row(f"TensorBoard is not in {RIVALS.parents[1].name}", *(UNAVAILABLE,) * 3)
        return None
    logs = directory / "logs"
    write_events(logs, samples)
    begun = time.monotonic()
    with tensorboard(logs) as url:
        if not url:
            row("TensorBoard does not start", *(UNAVAILABLE,) * 3)
            return None
        eventually(lambda: last_step(url) == samples - 1, LOAD_SECONDS)
        took = time.monotonic() - begun
        name = f"TensorBoard, the same number of samples, {took:.0f} s after its start"
        return shown(name, browser, f"{url}#timeseries", TENSORBOARD_CHART, rounds)


@contextmanager
def tensorboard(logs: Path) -> Iterator[str]:
    """Start TensorBoard and return its address; empty if it does not start."""
    command = [str(RIVALS), "-m", "tensorboard.main", f"--logdir={logs}", "--host=127.0.0.1", "--port=0"]
    process = subprocess.Popen(command, env=clean_environ(), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        addresses = (re.search(r"http://127\.0\.0\.1:\d+/", line) for line in process.stderr)
        yield next((found[0] for found in addresses if found), "")
    finally:
        process.terminate()
        process.wait()


def last_step(url: str) -> int:
    """Return the step of the newest sample that TensorBoard has read; -1 if none."""
    try:
        answer = httpx.get(f"{url}data/plugin/scalars/scalars", params={"run": ".", "tag": "loss"}, trust_env=False)
    except httpx.HTTPError:
        return -1
    return int(answer.json()[-1][1]) if answer.is_success and answer.json() else -1


def write_events(logs: Path, samples: int) -> None:
    """Write a TensorBoard file with one scalar, as its own writer does, but with numbers of fixed length."""
    logs.mkdir()
    noise = floats()
    values = np.array([noise() for _ in range(8192)], np.float32)
    with (logs / f"events.out.tfevents.{BEGIN // SECOND}.bench").open("wb") as file:
        version = b"\x09" + np.float64(BEGIN / SECOND).tobytes() + b"\x1a\x0dbrain.Event:2"
        file.write(_records(np.frombuffer(version, np.uint8)[None, :]))
        for first in range(0, samples, 1_000_000):
            steps = np.arange(first, min(samples, first + 1_000_000))
            file.write(_records(_events(steps, values[steps % len(values)])))


def _events(steps: NDArray[Any], values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return Event messages of 29 bytes each: wall time, step, and a summary with one value."""
    found = np.empty((len(steps), 29), np.uint8)
    found[:, 0] = 0x09
    found[:, 1:9] = (BEGIN / SECOND + steps / 10)[:, None].view(np.uint8)
    found[:, 9] = 0x10
    for place in range(4):
        found[:, 10 + place] = (steps >> 7 * place & 0x7F) | (0x80 if place < 3 else 0)
    found[:, 14:25] = np.frombuffer(b"\x2a\x0d\x0a\x0b\x0a\x04loss\x15", np.uint8)
    found[:, 25:] = values[:, None].view(np.uint8)
    return found


def _records(messages: NDArray[np.uint8]) -> bytes:
    """Return the messages as TFRecords: length, its checksum, the message, its checksum."""
    count, size = messages.shape
    length = np.frombuffer(np.uint64(size).tobytes(), np.uint8)[None, :].repeat(count, 0)
    parts = (length, _checksum(length), messages, _checksum(messages))
    return np.concatenate(parts, axis=1).tobytes()


def _checksum(messages: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return CRC-32C, masked as TFRecord requires."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(0x82F63B78), table >> 1)
    crc = np.full(len(messages), 0xFFFFFFFF, np.uint32)
    for column in messages.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    masked = (crc >> 15 | crc << 17) + np.uint32(0xA282EAD8)
    found: NDArray[np.uint8] = masked[:, None].view(np.uint8)
    return found


if __name__ == "__main__":
    main()
