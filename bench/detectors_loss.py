"""Print what the detectors of a loss find by dataset, when a dataset is left out, in first trainings and in RL.

The law of a jump is chosen on all datasets but one: the largest factor on its deviations and fractions with which 95 % of the
events there are found.

"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.logs import PLACE, Log, logs
from bench.replaying import TASKS, as_row, refuse
from bench.table import head, row
from trackside_daemon.cli.commands.replay_rows import Rows, read
from trackside_daemon.detectors.base import Column
from trackside_daemon.detectors.rank_detectors import DEFAULTS, RankDetectors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from trackside_daemon.detectors.settings import DetectorThresholds

FACTORS = (1.25, 1.1, 1.0, 0.9, 0.8)
"""Candidates for the factor on ``loss-spike-scales`` and ``loss-spike-ratio``."""

RECALL = 0.95

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
    _by_dataset(score)
    _first_runs(score)
    _rl(score)


def _by_dataset(score: ModuleType) -> None:
    of: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in _rows(score, 1.0):
        of[one["dataset"]].append(one)
    left = {name: next((one for one in FACTORS if _recall(score, one, name) >= RECALL), FACTORS[-1]) for name in of}
    head(
        "loss, dev",
        *("series", "samples", "events", "found", "false", "grey"),
        *("factor that the others choose", "found", "false", "grey"),
    )
    figures = ("series", "samples", "events", "found", "false", "grey")
    there = {name: [one for one in _rows(score, left[name]) if one["dataset"] == name] for name in of}
    every = [(name, rows, there[name], f"{left[name]:g}") for name, rows in sorted(of.items())]
    every.append(("all", _rows(score, 1.0), [one for rows in there.values() for one in rows], ""))
    for name, rows, without, factor in every:
        ours, others = score.agg(rows), score.agg(without)
        row(name, *(f"{ours[figure]:,}" for figure in figures), factor, *(f"{others[one]:,}" for one in figures[3:]))


def _recall(score: ModuleType, factor: float, left_out: str) -> float:
    return float(score.agg([one for one in _rows(score, factor) if one["dataset"] != left_out])["recall"])


@cache
def _rows(score: ModuleType, factor: float) -> list[dict[str, Any]]:
    thresholds = DEFAULTS.model_copy(
        update={
            "loss_spike_scales": factor * DEFAULTS.loss_spike_scales,
            "loss_spike_ratio": factor * DEFAULTS.loss_spike_ratio,
        }
    )
    rows = []
    for log in logs(score, "loss"):
        of_key = [one for one in _found(log.lines, thresholds) if one.key == log.key and one.alert in TASKS["loss"]]
        rows.append(as_row(score, log, [log.places[one.row] for one in of_key]))
    return rows


def _found(lines: Iterable[bytes], thresholds: DetectorThresholds = DEFAULTS) -> Iterator[Found]:
    """Yield the detections in pushed rows, one by one."""
    rank = RankDetectors(thresholds)
    for number, pushed in enumerate(read(lines, Rows(), refuse)):
        columns = {key: Column([pushed.step], [pushed.time], [value]) for key, value in pushed.values.items()}
        for key, found in rank.evaluate(columns):
            if not found.over:
                yield Found(key, number, pushed.step, found.alert, found.severity)


def _first_runs(score: ModuleType) -> None:
    runs = {(one["dataset"], one["run"]): one for one in score.load_jsonl(PLACE / "first_runs" / "index.jsonl")}
    healthy: dict[str, Counter[str]] = defaultdict(Counter)
    faults: dict[str, Counter[str]] = defaultdict(Counter)
    logged: dict[tuple[str, str], Log] = {(one.dataset, one.run): one for one in logs(score, "loss", "first_runs")}
    for key, log in logged.items():
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
