"""Draws the dashboards from a running Prometheus: python -m grafana.pictures --prometheus http://127.0.0.1:9090 docs/pictures.

The queries are the dashboards' own, asked of that Prometheus; the drawing is ours, and Chromium's. Grafana draws more nicely.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

from grafana.generate import dashboards
from grafana.pictures.answers import Asked
from grafana.pictures.page import page

CHROMIUM = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
)


README = ("trackside-training.json", ("Is it going well?", "Ranks"))
"""Of which dashboard which rows the README shows."""


def main() -> None:
    """Draw them."""
    options = _parser().parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    end = options.end or time.time()
    for name, text in dashboards().items():
        board = json.loads(text)
        asked = Asked(options.prometheus, board, end - options.seconds, end, {})
        _shoot(page(board, asked), options.directory / f"{Path(name).stem}.png")
        if name == README[0]:
            _shoot(page(board, asked, README[1]), options.directory / "readme.png")


def _shoot(html: str, target: Path) -> None:
    height = float(html.partition('id="board" style="height:')[2].partition("px")[0]) + 60
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "page.html")
        file.write_text(html, encoding="utf-8")
        size = f"--window-size=1560,{height:.0f}"
        subprocess.run(
            [
                "chromium",
                *CHROMIUM,
                f"--user-data-dir={place}/profile",
                size,
                f"--screenshot={target.absolute()}",
                file.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grafana.pictures", description="Draws the dashboards from a running Prometheus."
    )
    parser.add_argument("directory", type=Path, help="where the pictures go")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL")
    parser.add_argument("--seconds", type=float, default=600, help="how much is shown (default: 600)")
    parser.add_argument("--end", type=float, help="Unix time of the right edge (default: now)")
    return parser


if __name__ == "__main__":
    main()
