"""Print what the detectors of a loss find in first trainings and in RL."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from bench.logs import PLACE, logs
from bench.replaying import refuse
from bench.table import head, row
from trackside_daemon.cli.commands.replay_rows import RowConverter, read
from trackside_daemon.detectors.base import Column
from trackside_daemon.detectors.rank_detectors import RankDetectors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

RISING = frozenset({"dqn", "gan_2d"})
"""The first trainings whose loss rises in a healthy run."""

NOTIFIED = ("NonFinite", "Loss", "Gradient", "LearningRate")
"""Prefixes of the alerts about the loss, the gradients and the rate."""


class Found(NamedTuple):
    """A detection in a run."""

    key: str
    row: int
    step: int
    alert: str
    severity: str


def losses(score: ModuleType) -> None:
    """Print the tables."""
    _first_runs(score)
    _rl(score)


def _found(lines: Iterable[bytes]) -> Iterator[Found]:
    """Yield the detections in pushed rows, one by one."""
    rank = RankDetectors()
    for number, pushed in enumerate(read(lines, RowConverter(), refuse)):
        columns = {key: Column([pushed.step], [pushed.time], [value]) for key, value in pushed.values.items()}
        for key, found in rank.evaluate(columns):
            if not found.over:
                yield Found(key, number, pushed.step, found.alert, found.severity)


def _first_runs(score: ModuleType) -> None:
    runs = {(one["dataset"], one["run"]): one for one in score.load_jsonl(PLACE / "first_runs" / "index.jsonl")}
    healthy: dict[str, Counter[str]] = defaultdict(Counter)
    faults: dict[str, Counter[str]] = defaultdict(Counter)
    for log in logs(score, "time", "first_runs"):  # each run has one such series; adversaries have no loss of that name
        key = log.dataset, log.run
        fault, onset = runs[key]["fault"], runs[key]["onset"]
        found = [one for one in _found(log.lines) if one.alert.startswith(NOTIFIED) and one.step >= (onset or 0)]
        worst = {one.severity for one in found}
        counted = faults[fault] if fault else healthy["rising" if key[0] in RISING else "ordinary"]
        counted["runs"] += 1
        counted["critical"] += "critical" in worst
        counted["warning"] += bool(worst & {"critical", "warning"})
        counted["info"] += bool(worst)
    head("first_runs, alerts of loss, gradients and rate", "runs", "critical", "warning or more", "any")
    for name, counts in (*sorted(healthy.items()), *sorted(faults.items())):
        row(name, *(f"{counts[one]}" for one in ("runs", "critical", "warning", "info")))


def _rl(score: ModuleType) -> None:
    series = score.load_jsonl(PLACE / "dev" / "series.jsonl")
    healthy = {(one["dataset"], one["run"], one["key"]) for one in series if one.get("healthy")}
    samples = sum(one["n"] for one in series if one.get("healthy"))
    head("rl_loss of healthy runs, dev", "samples of all healthy RL series", "critical", "warning", "info")
    for name in ("rl_loss", "loss"):
        counts: Counter[str] = Counter()
        for log in logs(score, "rl_loss"):
            if (log.dataset, log.run, log.column) in healthy:
                lines = [_renamed(line, name) for line in log.lines]
                counts.update(one.severity for one in _found(lines) if one.key == name)
        row(f"pushed as {name}", f"{samples:,}", *(f"{counts[one]}" for one in ("critical", "warning", "info")))


def _renamed(line: bytes, name: str) -> bytes:
    pushed = json.loads(line)
    pushed["values"] = {name if key == "rl_loss" else key: value for key, value in pushed["values"].items()}
    return f"{json.dumps(pushed)}\n".encode()
