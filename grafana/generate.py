"""Writes the dashboards: python -m grafana.generate."""

from __future__ import annotations

from pathlib import Path

from grafana import fleet, gpus, itself, training

DASHBOARDS = Path(__file__).parent / "dashboards"


def dashboards() -> dict[str, str]:
    """Each file's name and text."""
    return {f"{one.UID}.json": one.dashboard() for one in (training, gpus, fleet, itself)}


def main() -> None:
    """Write them."""
    for name, text in dashboards().items():
        (DASHBOARDS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
