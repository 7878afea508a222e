"""Print what each rule of the loss detectors adds over the others: the figures of the labelled logs without it.

The value is a point for each event that is found, and for each but spikes that is told, less one for each false alarm, and three for each healthy series
that is warned. The last column leaves the logs of one dataset out at a time: the rule is dropped if the others then have no less
value, and the change on the dataset left out counts. A rule that has none there adds nothing, and is to be deleted.

Usage: PYTHONPATH=tests:. python bench/detectors_rules.py
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import defaultdict
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from bench.logs import PLACE, logs, scorer
from bench.replaying import COOLDOWN, TASKS, TOLERANCE, batches
from bench.table import head, row
from trackside_daemon.detectors.rank_detectors import RankDetectors

if TYPE_CHECKING:
    from types import ModuleType

    from bench.logs import Log
    from trackside_daemon.detectors.base import Column

# The module and the constant of each rule, and the value without it.
RULES: dict[str, tuple[str, str, object]] = {
    "all": ("outlier", "NEAR", 7),
    "jumps by many deviations": ("outlier", "LAW", ((1.0, 1.0),)),
    "jumps where the level crosses zero": ("outlier", "CROSSING", inf),
    "obvious jumps": ("outlier", "GREAT", (inf, 2.0)),
    "no jump that is usual": ("outlier", "UNLIKE", -inf),
    "no jump of noise in proportion": ("outlier", "LOGS", -inf),
    "noise that has grown": ("outlier", "GROWN", inf),
    "a spike undoes much": ("loss_spike", "MUCH", -inf),
    "noise of samples": ("loss_diverging", "NOISE", 0.0),
    "noise of blocks": ("loss_diverging", "WANDERS", 0.0),
    "cost of a rise": ("loss_diverging", "COST", 0.0),
    "a rise undoes much": ("loss_diverging", "MUCH", 0.0),
    "more from below zero": ("loss_diverging", "BELOW_ZERO", 0.05),
    "no rise that is nearly back": ("loss_diverging", "BACK", 0.0),
    "a rise is sudden": ("learnt", "FASTER", 0.0),
    "a schedule begins again": ("loss_diverging", "RAISED", inf),
    "a new model": ("loss_restart", "LEAP", inf),
    "leaps at equal distances": ("loss_restart", "EQUAL", -1.0),
}


class Outcome(NamedTuple):
    """Counts of a log."""

    found: int
    told: int
    false: int
    warned: int

    @property
    def value(self) -> int:
        """The points."""
        return self.found + self.told - self.false - 3 * self.warned


def outcome(score: ModuleType, log: Log, alarms: list[int], loud: list[int]) -> Outcome:
    """Return the counts of a log with alarms at some samples, and those above information."""
    events, found, false, _, _ = score.score_series(alarms, log.labels, len(log.places), log.grace, TOLERANCE, COOLDOWN)
    grave = [one for one in events if one["kind"] != "hard_batch"]
    lasting = [one for one in grave if one["kind"] != "spike"]
    told = sum(
        any(one["start"] <= at <= max(one["end"] + TOLERANCE, one["start"] + 200) for at in loud) for one in lasting
    )
    return Outcome(len(found), told, false, bool(loud) and not grave)


class Prepared(NamedTuple):
    """A log, and the columns of its pushes, each with the place of the first."""

    log: Log
    batches: list[tuple[int, dict[str, Column]]]


def prepared(log: Log) -> Prepared:
    """Return a log with its columns, as a daemon gets them."""
    return Prepared(log, list(batches(log)))


def ours(score: ModuleType, one: Prepared) -> Outcome:
    """Return the counts of the detectors."""
    every, log = RankDetectors(), one.log
    found = [
        (log.places[begin + each.at], each.severity)
        for begin, columns in one.batches
        for key, each in every.evaluate(columns)
        if key == log.key and each.alert in TASKS["loss"] and not each.over
    ]
    return outcome(score, log, [at for at, _ in found], [at for at, severity in found if severity != "info"])


def composite(score: ModuleType, log: Log) -> Outcome:
    """Return the counts of the composite baseline."""
    sys.path.insert(0, str(PLACE / "baselines"))
    pushes = [json.loads(line)["values"] for line in log.alone()]
    values = [pushed[log.key] for pushed in pushes if log.key in pushed]
    return outcome(score, log, importlib.import_module("composite").detect(values), [])


def main() -> None:
    """Print the table."""
    score = scorer()
    every = [prepared(log) for split in ("dev", "dev2") for log in logs(score, "loss", split)]
    head(f"loss, dev and dev2: {len(every)} series", "found", "told", "false", "healthy warned", "value", "left out")
    base = [ours(score, one) for one in every]
    _row("composite", [composite(score, one.log) for one in every], "")
    for name, (module, constant, without) in RULES.items():
        place = importlib.import_module(f"trackside_daemon.detectors.{module}")
        present = getattr(place, constant)
        if name != "all":
            setattr(place, constant, without)
        outcomes = [ours(score, one) for one in every]
        setattr(place, constant, present)
        gains: dict[str, int] = defaultdict(int)
        for one, with_it, other in zip(every, base, outcomes, strict=True):
            gains[one.log.dataset] += other.value - with_it.value
        total = sum(gains.values())
        left = sum(gain for gain in gains.values() if total - gain >= 0)
        nothing = name != "all" and not any(gains.values())
        _row(name if name == "all" else f"without: {name}", outcomes, "adds nothing" if nothing else f"{left:+}")


def _row(name: str, outcomes: list[Outcome], left: str) -> None:
    sums = [sum(column) for column in zip(*outcomes, strict=True)]
    row(name, *(f"{one}" for one in sums), f"{sum(one.value for one in outcomes)}", left)


if __name__ == "__main__":
    main()
