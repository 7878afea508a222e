"""Print what the loss detectors find in all labelled logs, and what each rule of them adds over the others.

The value of a row is a point for each event that is found, and for each that stays and is notified, by any alert of the run, less one for each
false alarm, and three for each healthy series that is warned. The last column leaves the logs of one dataset out at a time: the rule is
dropped if the others then have no less value, and the change on the dataset left out counts. A rule that adds nothing is to be deleted.

Usage: PYTHONPATH=tests:. python bench/detectors_rules.py [--limits]
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import defaultdict
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.detectors_loss import NOTIFIED
from bench.logs import PLACE, logs, scorer
from bench.replaying import COOLDOWN, TASKS, TOLERANCE, batches
from bench.table import head, row, verdict
from trackside_daemon.detectors.rank_detectors import RankDetectors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from bench.logs import Log
    from trackside_daemon.detectors.base import Column

# The module and the constant of each rule, and the value without it.
RULES: dict[str, tuple[str, str, object]] = {
    "jumps by many deviations": ("loss_spike", "LAW", ((1.0, 1.0),)),
    "jumps where the level crosses zero": ("loss_spike", "CROSSING", 0.0),
    "obvious jumps": ("loss_spike", "GREAT", (inf, 2.0)),
    "no jump that is usual": ("loss_spike", "UNLIKE", -inf),
    "noise that has grown": ("loss_spike", "GROWN", inf),
    "noise of samples": ("loss_diverging", "NOISE", 0.0),
    "noise of blocks": ("loss_diverging", "WANDERS", 0.0),
    "cost of a rise": ("loss_diverging", "COST", 0.0),
    "a rise undoes much": ("loss_diverging", "MUCH", 0.0),
    "no rise that is nearly back": ("loss_diverging", "BACK", 0.0),
    "a rise is sudden": ("loss_diverging", "FASTER", 0.0),
    "a new model": ("loss_restart", "LEAP", inf),
    "leaps at equal distances": ("loss_restart", "EQUAL", -1.0),
}
STAYING = ("divergence", "nan", "restart")
SOON = 200  # samples after its beginning within which an event is notified


class Outcome(NamedTuple):
    """Counts of a log; *grave* events are no hard batches, *lasting* ones no spikes either, and *wrong* alarms no hard batches.

    Of the lasting ones, *staying* are divergences, NaN, restarts, planted faults, and what lasts until the end of the log. The
    others came back by themselves in a real training: nobody needs to be called for them.
    """

    events: int = 0
    found: int = 0
    grave: int = 0
    grave_found: int = 0
    lasting: int = 0
    notified: int = 0
    staying: int = 0
    stay_notified: int = 0
    false: int = 0
    wrong: int = 0
    healthy: int = 0
    warned: int = 0
    critical: int = 0

    @property
    def value(self) -> int:
        """The points."""
        return self.found + self.notified - self.false - 3 * self.warned


class Alarm(NamedTuple):
    """A report of an alert at a sample; of another key, *place* is that of the row."""

    place: int
    alert: str
    severity: str


class Prepared(NamedTuple):
    """A log, and the columns of its pushes, each with the place of the first."""

    log: Log
    batches: list[tuple[int, dict[str, Column]]]


def outcome(score: ModuleType, log: Log, alarms: Sequence[Alarm], others: Sequence[Alarm] = ()) -> Outcome:
    """Return the counts of a log with alarms of its loss, and *others* of its gradients and rates."""

    def scored(found: Sequence[Alarm]) -> tuple[list[dict[str, Any]], dict[int, int], int, int, int]:
        places = [one.place for one in found]
        return score.score_series(places, log.labels, len(log.places), log.grace, TOLERANCE, COOLDOWN)  # type: ignore[no-any-return]

    events, found, false, *_ = scored(alarms)
    *_, wrong, grey, _ = scored([one for one in alarms if one.alert != "LossHardBatch"])
    rows = {sample: place for place, sample in log.places.items()}
    loud = [one for one in alarms if one.severity != "info"]
    outside = [one.place for one in others if one.severity != "info"]
    grave = [place for place, one in enumerate(events) if one["kind"] != "hard_batch"]
    lasting = [one for one in events if one["kind"] not in {"hard_batch", "spike"}]

    def is_notified(first: int, last: int) -> bool:
        here = any(first <= one.place <= last for one in loud)
        return here or any(rows[first] <= place <= rows[min(last, len(rows) - 1)] for place in outside)

    notified = [is_notified(one["start"], max(one["end"] + TOLERANCE, one["start"] + SOON)) for one in lasting]
    stays = [one["kind"] in STAYING or "fault" in one or one["end"] >= len(log.places) - 1 for one in lasting]
    both = sum(stays), sum(one and other for one, other in zip(stays, notified, strict=True))
    critical = any(one.severity == "critical" for one in loud)
    counts = len(grave), len(found.keys() & grave), len(lasting), sum(notified), *both, false, wrong + grey
    return Outcome(len(events), len(found), *counts, not grave, bool(loud) and not grave, critical and not grave)


def ours(score: ModuleType, one: Prepared) -> Outcome:
    """Return the counts of the detectors."""
    every, log = RankDetectors(), one.log
    alarms, others = [], []
    for begin, columns in one.batches:
        for key, each in every.evaluate(columns):
            if each.over:
                continue
            if key != log.key and each.alert.startswith(NOTIFIED):
                others.append(Alarm(begin + each.at, each.alert, each.severity))
            elif key == log.key and each.alert in TASKS["loss"]:
                alarms.append(Alarm(log.places[begin + each.at], each.alert, each.severity))
    return outcome(score, log, alarms, others)


def composite(score: ModuleType, log: Log) -> Outcome:
    """Return the counts of the composite baseline."""
    sys.path.insert(0, str(PLACE / "baselines"))
    pushes = [json.loads(line)["values"] for line in log.alone()]
    values = [pushed[log.key] for pushed in pushes if log.key in pushed]
    found = importlib.import_module("composite").detect(values)
    return outcome(score, log, [Alarm(place, "composite", "info") for place in found])


def main() -> None:
    """Print the tables."""
    score = scorer()
    every = [Prepared(log, list(batches(log))) for split in ("dev", "dev2") for log in logs(score, "loss", split)]
    base = [ours(score, one) for one in every]
    _limits(_sum(base), sum(len(one.log.places) for one in every))
    if "--limits" in sys.argv:
        return
    head(f"loss, dev and dev2: {len(every)} series", *Outcome._fields, "value", "left out")
    _row("composite", [composite(score, one.log) for one in every], "")
    _row("all rules", base, "")
    for name, (module, constant, without) in RULES.items():
        place = importlib.import_module(f"trackside_daemon.detectors.{module}")
        present = getattr(place, constant)
        setattr(place, constant, without)
        outcomes = [ours(score, one) for one in every]
        setattr(place, constant, present)
        gains: dict[str, int] = defaultdict(int)
        for one, with_it, other in zip(every, base, outcomes, strict=True):
            gains[one.log.dataset] += other.value - with_it.value
        total = sum(gains.values())
        left = sum(gain for gain in gains.values() if total - gain >= 0)
        _row(f"without: {name}", outcomes, f"{left:+}" if any(gains.values()) else "adds nothing")


def _limits(one: Outcome, samples: int) -> None:
    shares = (
        ("recall", one.found, one.events, 0.92),
        ("recall without hard batches", one.grave_found, one.grave, 0.90),
        ("P* without hard batches", one.grave_found, one.grave_found + one.wrong, 0.85),
        ("notified of what stays", one.stay_notified, one.staying, 0.90),
    )
    head("limits, dev and dev2", "measured", "target", "")
    for what, count, of, least in shares:
        verdict(what, f"{count} of {of}: {count / of:.3f}", f">= {least:.2f}", met=count >= least * of)
    row("notified of all but spikes", f"{one.notified} of {one.lasting}: {one.notified / one.lasting:.3f}", "", "")
    verdict("false per 1M", f"{1e6 * one.false / samples:.1f}", "<= 10", met=1e6 * one.false <= 10 * samples)
    verdict("healthy warned", f"{one.warned} of {one.healthy}", "<= 1 %", met=100 * one.warned <= one.healthy)
    verdict("healthy critical", f"{one.critical}", "0", met=not one.critical)


def _sum(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(*(sum(column) for column in zip(*outcomes, strict=True)))


def _row(name: str, outcomes: Sequence[Outcome], left: str) -> None:
    total = _sum(outcomes)
    row(name, *(f"{one}" for one in total), f"{total.value}", left)


if __name__ == "__main__":
    main()
