"""Generator of the dashboards' JSON files: python -m grafana.generate."""

from __future__ import annotations

from pathlib import Path

from grafana import daemons, fleet, gpus, training

DASHBOARDS = Path(__file__).parent / "dashboards"


def dashboards() -> dict[str, str]:
    """Return the text of each file by its name."""
    return {f"{module.UID}.json": module.dashboard() for module in (training, gpus, fleet, daemons)}


def main() -> None:
    """Write all files."""
    for name, text in dashboards().items():
        (DASHBOARDS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
