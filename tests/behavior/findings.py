"""The findings of all detectors over the logs of real trainings that lie next to the repository."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

from bench.logs import PLACE, as_pushed, push_of
from trackside_daemon.cli.commands.replay_rows import RowConverter, read
from trackside_daemon.detectors.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPLITS = ("dev", "dev2")


def available() -> bool:
    """Return whether the logs are there."""
    return all((PLACE / split).is_dir() for split in SPLITS)


def findings(split: str) -> str:
    """Return a line for each change of an alert, below a line for each run with any; those that begin have their texts."""
    return "".join(
        f"{file.parent.name}/{file.stem}\n{''.join(found)}"
        for file in sorted((PLACE / split).glob("*/*.csv"))
        if (found := list(_changes(file)))
    )


def _changes(file: Path) -> Iterator[str]:
    replay = Replay()
    for row in read(_pushes(file), RowConverter(), _refuse):
        for change in replay.evaluate(row):
            where = f"{change.place}" if change.step == change.place else f"{change.place} (step {change.step})"
            text = f": {change.message}" if change.state == "firing" else ""
            yield f"  {where} {change.key} {change.alert} {change.severity} {change.state}{text}\n"


def _pushes(file: Path) -> Iterator[bytes]:
    with file.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            pushed = push_of(row)
            for column, text in row.items():
                if column not in {"step", "time"} and text:
                    key, value = as_pushed(column, float(text))
                    pushed["values"].setdefault(key, value)
            yield json.dumps(pushed).encode()


def _refuse(number: int, reason: str) -> None:
    raise AssertionError(f"line {number}: {reason}")
