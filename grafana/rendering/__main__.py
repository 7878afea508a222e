"""Render the dashboards as images: python -m grafana.rendering --prometheus http://127.0.0.1:9090 docs/pictures.

The dashboards' queries are sent to that Prometheus, and Chromium renders the results. Grafana itself looks better.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

from grafana.generate import dashboards
from grafana.rendering.page import page
from grafana.rendering.queries import DashboardQueries

CHROMIUM = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
)


def main() -> None:
    """Render all dashboards."""
    options = _parser().parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    end = options.end or time.time()
    for name, text in dashboards().items():
        board = json.loads(text)
        results = DashboardQueries(options.prometheus, board, end - options.seconds, end, {})
        _screenshot(page(board, results), options.directory / f"{Path(name).stem}.png")


def _screenshot(html: str, target: Path) -> None:
    height = float(html.partition('id="board" style="height:')[2].partition("px")[0]) + 60
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "page.html")
        file.write_text(html, encoding="utf-8")
        size = f"--window-size=1560,{height:.0f}"
        subprocess.run(
            [
                "chromium",
                *CHROMIUM,
                f"--user-data-dir={directory}/profile",
                size,
                f"--screenshot={target.absolute()}",
                file.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grafana.rendering", description="Render the dashboards from a running Prometheus."
    )
    parser.add_argument("directory", type=Path, help="directory for the images")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL")
    parser.add_argument("--seconds", type=float, default=600, help="length of the time range (default: 600)")
    parser.add_argument("--end", type=float, help="Unix time of the right edge (default: now)")
    return parser


if __name__ == "__main__":
    main()
