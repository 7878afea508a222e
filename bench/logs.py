"""Read the labelled logs of real trainings, if they are in the directory next to the repository. Nothing is copied.

The columns of a run become one file of JSON lines with all its keys, as the training would have pushed them.

"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
PLACE = Path(os.environ.get("TRACKSIDE_SHARED_DATA") or ROOT.parent / "shared" / "data")

DURATION, MEMORY = "step_duration_seconds", "process_resident_bytes"

KEYS: dict[str, tuple[str, float]] = {
    "step_time": (DURATION, 1.0),
    "wall_per_step": (DURATION, 1.0),
    "tick_sec": (DURATION, 1.0),
    "rss_mb": (MEMORY, 2.0**20),
    "total_uss_mb": (MEMORY, 2.0**20),
    "host.proc_memory_rssMB": (MEMORY, 2.0**20),
    "cpu_mem_gb": (MEMORY, 2.0**30),
    "lr": ("learning_rate", 1.0),
}
"""What a column is pushed as, and its unit; throughput is one over a duration, and all others keep their names."""


class Log(NamedTuple):
    """A series of a run that is scored.

    Attributes:
        key: The key as pushed.
        lines: Pushes of the run, one JSON line each.
        places: The index of the sample of the series, by line number.
        grace: Samples whose alerts are not scored.
        labels: The events in it.

    """

    dataset: str
    run: str
    column: str
    key: str
    lines: list[bytes]
    places: dict[int, int]
    grace: int
    labels: list[dict[str, Any]]

    def alone(self) -> list[bytes]:
        """Return the pushes with that key only, and without times."""
        found = []
        for pushed in map(json.loads, self.lines):
            pushed["values"] = {key: value for key, value in pushed["values"].items() if key == self.key}
            pushed.pop("time", None)
            found.append(f"{json.dumps(pushed)}\n".encode())
        return found


def scorer() -> ModuleType:
    """Return the module that scores alerts, which is stored with the logs."""
    spec = importlib.util.spec_from_file_location("score", PLACE / "score.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def logs(score: ModuleType, task: str, split: str = "dev") -> Iterator[Log]:
    """Return the series of a task: ``loss``, ``time`` or ``leak``."""
    labels = defaultdict(list)
    for one in score.load_jsonl(PLACE / split / "labels.jsonl"):
        labels[one["dataset"], one["run"], one["key"]].append(one)
    for one in score.load_jsonl(PLACE / split / "series.jsonl"):
        if one["scored"] and score.TASK_KEYS[task](one["key"]):
            source = (one["dataset"], one["run"], one["key"])
            yield _log(PLACE / split / one["dataset"] / f"{one['run']}.csv", source, one["grace"], labels[source])


def _log(file: Path, source: tuple[str, str, str], grace: int, labels: list[dict[str, Any]]) -> Log:
    column = source[2]
    lines: list[bytes] = []
    places: dict[int, int] = {}
    with file.open(encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.DictReader(stream)):
            if row[column]:
                places[number] = len(places)
            lines.append(_line(row, column))
    return Log(*source, as_pushed(column, 1.0)[0], lines, places, grace, labels)


def _line(row: dict[str, str], scored: str) -> bytes:
    pushed = push_of(row)
    for column, text in row.items():
        if column not in {"step", "time"} and text:
            key, value = as_pushed(column, float(text))
            if key not in {DURATION, MEMORY} or column == scored or not _times(scored, key):
                pushed["values"][key] = value
    return f"{json.dumps(pushed)}\n".encode()


def push_of(row: dict[str, str]) -> dict[str, Any]:
    """Return a push at the step and the time of a row, still without values."""
    pushed: dict[str, Any] = {"values": {}}
    if row["step"]:
        pushed["step"] = int(float(row["step"]))
    if row["time"]:
        pushed["time"] = float(row["time"])
    return pushed


def _times(scored: str, key: str) -> bool:
    """Return whether the scored series uses this key, which no other column may then use."""
    return as_pushed(scored, 1.0)[0] == key


def as_pushed(column: str, value: float) -> tuple[str, float]:
    """Return the key and the value that a column is pushed as."""
    if column == "throughput":
        return DURATION, 1 / value if value else float("inf")
    key, unit = KEYS.get(column, (column, 1.0))
    return key, value * unit
