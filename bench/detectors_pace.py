"""Print by dataset what the detectors of step times and of memory find, and what they find when a dataset is left out.

The step times of ``first_runs`` are read as a daemon reads them: slow steps count from a second that they lose.

"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.logs import logs
from bench.replaying import TASKS, alarms, as_row, refuse
from bench.table import head, row
from trackside_daemon.cli.commands.replay_rows import Rows, read
from trackside_daemon.detectors.rank_detectors import DEFAULTS
from trackside_daemon.detectors.replay import Replay, Wanted
from trackside_daemon.detectors.step_durations import LOST

if TYPE_CHECKING:
    from types import ModuleType

SETS = ("dev", "first_runs")
RATIOS = (1.08, 1.1, 1.15, 1.2, 1.3)
"""Candidates of ``throughput-ratio``."""

MOST_FALSE = 12
"""Per million samples: the smallest ratio with so few false alarms on the other datasets is chosen."""


def pace(score: ModuleType) -> None:
    """Print the tables."""
    for task in ("time", "leak"):
        for split in SETS:
            _by_dataset(score, task, split)
    _left_out(score)


def _by_dataset(score: ModuleType, task: str, split: str) -> None:
    reading = ", as a daemon reads it" if split != "dev" and task == "time" else ""
    head(f"{task}, {split}{reading}", "series", "samples", "events", "found", "false")
    every = _rows(score, task, split, DEFAULTS.throughput_ratio)
    of: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in every:
        of[one["dataset"]].append(one)
    for name, rows in (*sorted(of.items()), ("all", every)):
        found = score.agg(rows)
        row(name, *(f"{found[figure]:,}" for figure in ("series", "samples", "events", "found", "false")))


def _left_out(score: ModuleType) -> None:
    head("time, dev: the dataset that is left out", "ratio that the others choose", "found", "of", "false there")
    names = sorted({one["dataset"] for one in _rows(score, "time", "dev", RATIOS[0])})
    for name in names:
        chosen = next((ratio for ratio in RATIOS if _is_good(score, ratio, name)), RATIOS[-1])
        there = score.agg([one for one in _rows(score, "time", "dev", chosen) if one["dataset"] == name])
        row(name, f"{chosen}", f"{there['found']}", f"{there['events']}", f"{there['false']}")


def _is_good(score: ModuleType, ratio: float, left_out: str) -> bool:
    """Return whether a ratio raises few false alarms on all datasets but one."""
    others = [one for one in _rows(score, "time", "dev", ratio) if one["dataset"] != left_out]
    return float(score.agg(others)["fa_per_1M"]) <= MOST_FALSE


@cache
def _rows(score: ModuleType, task: str, split: str, ratio: float) -> list[dict[str, Any]]:
    lost = LOST if split != "dev" else 0.0
    thresholds = DEFAULTS.model_copy(update={"throughput_ratio": ratio})
    rows = []
    for log in logs(score, task, split):
        replay = Replay(Wanted(TASKS[task]), thresholds, lost=lost)
        changes = [change for pushed in read(log.lines, Rows(), refuse) for change in replay.evaluate(pushed)]
        rows.append(as_row(score, log, alarms(log, changes, TASKS[task])))
    return rows
