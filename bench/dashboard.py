"""Measure how soon the dashboard shows a page and a pushed value, and its size.

All in one Chromium, with an empty cache each time, from the performance entries of the page. Run by ``make bench``.

"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from end_to_end.dashboard.conftest import FLAGS
from histories import history
from playwright.sync_api import sync_playwright
from processes import Daemon, clean_environ, eventually

from bench.history import BEGIN, SECOND, Filling, floats
from bench.table import head, machine, row, verdict
from trackside.wire import Clock, Hello, Identity, Totals
from trackside_daemon.model.records import BatchIngested, RunState, SessionOpened
from trackside_daemon.model.session import SessionRef

if TYPE_CHECKING:
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

LISTED = "document.querySelectorAll('main :is(tr, li) a[href^=\"/runs/\"]').length >= {}"
CHART = "document.querySelector('.chart canvas')"
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
READINGS = """() => {
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
    "Overview": ("/", "li.run .step", "{:,}"),
    "Run": (f"/runs/{LIVE}", ".run-tiles .run-figure", "{:,}"),
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
    head("limit", "measured", "target", "")
    limits(seen)
    head(f"{PUSHES} steps, from the push to the page", "median", "max", f"<= {LIVE_LIMIT:g} s")
    for name, seconds in delays.items():
        middle, longest = f"{statistics.median(seconds):.2f} s", f"{max(seconds):.2f} s"
        verdict(f"{name}: a pushed step", middle, longest, met=max(seconds) <= LIVE_LIMIT)
    print()


def limits(seen: dict[str, Seen]) -> None:
    """Print the targets, and whether each is met."""
    for name, one in seen.items():
        verdict(f"{name}: first paint", f"{one.paint:.2f} s", f"<= {PAINT_LIMIT:g} s", met=one.paint <= PAINT_LIMIT)
        verdict(f"{name}: shown", f"{one.there:.2f} s", f"<= {SHOWN_LIMIT:g} s", met=one.there <= SHOWN_LIMIT)
    weight = max(one.weight for one in seen.values())
    verdict("files of the heavier page", f"{weight:.0f} KiB", f"<= {WEIGHT_LIMIT:.0f} KiB", met=weight <= WEIGHT_LIMIT)


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
    seen = Seen(*page.evaluate(READINGS))
    context.close()
    return seen


def fill(directory: Path, samples: int) -> None:
    """Write a history of many short runs, and of one run with a long key."""
    with history(directory) as one:
        writer = one.writer
        filling = Filling(writer, LONG, ["loss"], floats())
        filling.fill(samples)
        filling.settle()
        writer.put([RunState(LONG, 0, "finished", "", time.time())])
        measured = Filling(writer, "short", ["loss"], floats()).push(STEPS)
        for number in range(RUNS):
            writer.put(_short(number, measured.columns[0]))
            eventually(writer.has_room)
        writer.call(lambda _: None).result()
        eventually(lambda: writer.call(lambda store: not store.due).result(), LOAD_SECONDS)


def _short(number: int, columns: Columns) -> list[Any]:
    name, began = f"sweep-{number:04}", BEGIN + number * 60 * SECOND
    session = SessionRef(name.encode().ljust(16), name, name)
    hello = Hello(Identity(run=name, name=name), Clock(began, 0), began, Totals(), tags=("sweep",))
    return [
        SessionOpened(session, hello, began / SECOND),
        BatchIngested(session, 1, [columns], began),
        RunState(name, 0, "finished", "", began / SECOND + STEPS),
    ]


if __name__ == "__main__":
    main()
