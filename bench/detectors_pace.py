"""Print by dataset what the detectors of step times and of memory find.

The step times of ``first_runs`` are read as a daemon reads them: slow steps count from a second that they lose.

"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from bench.logs import logs
from bench.replaying import TASKS, alarms, as_row, refuse
from bench.table import head, row
from trackside_daemon.cli.commands.replay_rows import Rows, read
from trackside_daemon.detectors.replay import Replay, Wanted
from trackside_daemon.detectors.step_durations import LOST

if TYPE_CHECKING:
    from types import ModuleType

SETS = ("dev", "first_runs")


def pace(score: ModuleType) -> None:
    """Print the tables."""
    for task in ("time", "leak"):
        for split in SETS:
            _by_dataset(score, task, split)


def _by_dataset(score: ModuleType, task: str, split: str) -> None:
    reading = ", as a daemon reads it" if split != "dev" and task == "time" else ""
    head(f"{task}, {split}{reading}", "series", "samples", "events", "found", "false")
    every = _rows(score, task, split)
    of: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in every:
        of[one["dataset"]].append(one)
    for name, rows in (*sorted(of.items()), ("all", every)):
        found = score.agg(rows)
        row(name, *(f"{found[figure]:,}" for figure in ("series", "samples", "events", "found", "false")))


def _rows(score: ModuleType, task: str, split: str) -> list[dict[str, Any]]:
    lost = LOST if split != "dev" else 0.0
    rows = []
    for log in logs(score, task, split):
        replay = Replay(Wanted(TASKS[task]), lost=lost)
        changes = [change for pushed in read(log.lines, Rows(), refuse) for change in replay.evaluate(pushed)]
        rows.append(as_row(score, log, alarms(log, changes, TASKS[task])))
    return rows
