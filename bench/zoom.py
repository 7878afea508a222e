"""Measure how smoothly the page of a run with thirty long keys zooms: frames per second, and tasks that block the page.

All charts are on the screen at once, and a selection with the mouse in one zooms all of them. Run by ``make bench``.

"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from end_to_end.dashboard.conftest import FLAGS
from histories import history
from playwright.sync_api import sync_playwright
from processes import Daemon, eventually

from bench.history import Filling, floats
from bench.table import head, machine, verdict

if TYPE_CHECKING:
    from playwright.sync_api import Page

RUN = "thirty"
KEYS = [f"key{number:02}" for number in range(30)]
SAMPLES = 1_000_000
WINDOWS = ((0.2, 0.8), (0.3, 0.6), (0.1, 0.9))
"""Parts of the plot's width that are selected one after the other."""

WINDOW_SECONDS = 1.5
LEAST_FRAMES = 57.0  # of 60 a second, which an idle page has
LONGEST_TASK = 50.0  # ms
FIRST_LIMIT = 0.6  # s
CHARTS_LIMIT = 1.0  # s

WATCH = """
window.tasks = []; window.frames = []; window.drawn = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration))).observe({ type: "longtask" });
new MutationObserver(() => {
  const count = document.querySelectorAll(".chart canvas").length;
  while (drawn.length < count) drawn.push(performance.now() / 1000);
}).observe(document, { childList: true, subtree: true });
"""
BEGIN = "() => { tasks.length = frames.length = 0; (function frame(at) { frames.push(at); requestAnimationFrame(frame); })(performance.now()); }"
END = "() => ({ tasks, frames: (1000 * (frames.length - 1)) / (frames.at(-1) - frames[0]) })"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    asked = parser.parse_args()
    machine()
    with tempfile.TemporaryDirectory(prefix="ts-", dir="/tmp") as directory, sync_playwright() as playwright:
        place = Path(directory)
        fill(place / "history", asked.samples)
        daemon = Daemon(place, fresh=True)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium-headless-shell", args=list(FLAGS))
        url = f"{daemon.url}/runs/{RUN}#token={(daemon.directory / 'push.token').read_text().strip()}"
        seen = []
        for _ in range(asked.rounds):
            context = browser.new_context(viewport={"width": 1440, "height": 3400})
            seen.append(zoom(context.new_page(), url))
            context.close()
        browser.close()
        daemon.stop()
    show(seen, asked.samples)


def show(seen: list[dict[str, Any]], samples: int) -> None:
    """Print the medians of the rounds, and the longest task of all."""
    first, last, frames = (statistics.median(one[name] for one in seen) for name in ("first", "last", "frames"))
    tasks = [task for one in seen for task in one["tasks"]]
    longest = max(tasks, default=0.0)
    head(f"{len(KEYS)} keys of {samples:,} samples, {len(seen)} visits", "measured", "target", "")
    verdict("the first chart is drawn", f"{first:.2f} s", f"<= {FIRST_LIMIT:g} s", met=first <= FIRST_LIMIT)
    limit = f"<= {CHARTS_LIMIT:g} s"
    verdict(f"all {len(KEYS)} charts are drawn", f"{last:.2f} s", limit, met=last <= CHARTS_LIMIT)
    verdict("frames per second while they zoom", f"{frames:.0f}", f">= {LEAST_FRAMES:.0f}", met=frames >= LEAST_FRAMES)
    measured = f"{longest:.0f} ms, {len(tasks)} over {LONGEST_TASK:.0f} ms" if tasks else f"under {LONGEST_TASK:.0f} ms"
    verdict("the longest task while they zoom", measured, f"<= {LONGEST_TASK:.0f} ms", met=longest <= LONGEST_TASK)
    print()


def zoom(page: Page, url: str) -> dict[str, Any]:
    """Return when the charts were drawn, the frames per second, and the tasks over 50 ms of one visit."""
    page.add_init_script(WATCH)
    page.goto(url)
    eventually(lambda: page.evaluate("drawn.length") >= len(KEYS), 60)
    page.wait_for_timeout(1000 * WINDOW_SECONDS)  # for what the page loads last
    box = page.locator(".chart .u-over").first.bounding_box()
    assert box is not None
    page.evaluate(BEGIN)
    for begin, end in WINDOWS:
        page.mouse.move(box["x"] + begin * box["width"], box["y"] + 80)
        page.mouse.down()
        page.mouse.move(box["x"] + end * box["width"], box["y"] + 80, steps=8)
        page.mouse.up()
        page.wait_for_timeout(1000 * WINDOW_SECONDS)
    return {**page.evaluate(END), **page.evaluate("({ first: drawn[0], last: drawn.at(-1) })")}


def fill(directory: Path, samples: int) -> None:
    """Write a run with long keys."""
    with history(directory) as one:
        filling = Filling(one.writer, RUN, KEYS, floats())
        filling.fill(samples)
        filling.settle()


if __name__ == "__main__":
    main()
