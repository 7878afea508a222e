"""Measure what the detectors of reinforcement learning find in labelled logs, and in real tiny runs with planted faults.

Run by ``make bench``; prints tables in Markdown, with a verdict for each limit. ``tests/tiny_policies.py`` has the runs: 46 with
a fault, 11 without, about a minute in all.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tiny_policies import GRPO_FAULTS, PPO_FAULTS, grpo, ppo

from bench.logs import PLACE, logs, scorer
from bench.replaying import as_row, replayed
from bench.table import head, machine, row, verdict

if TYPE_CHECKING:
    from types import ModuleType

TASKS = {
    "reward": "RewardCollapse",
    "kl": "KlBlowup",
    "length": "TruncationRising",
    "truncation": "TruncationRising",
    "signal": "NoLearningSignal",
}
"""The alert that finds the labelled events of each task."""

FAULTS: dict[str, tuple[str, ...]] = {
    "zero_variance": ("NoLearningSignal",),
    "limit": ("TruncationRising",),
    "no_kl": ("KlBlowup",),
    "rate": ("KlBlowup", "RewardCollapse", "LearningRateOutOfRange", "GradientExplosion"),
    "reward_model": ("RewardCollapse",),
    "stale": ("TrainInferenceMismatch",),
}
"""The alerts that name each planted fault."""

ABOVE_INFO = ("warning", "critical")
LEAST = {"zero_variance": 0.95, "limit": 0.95}
OTHERS = 0.8
FALSE = 10


def main() -> None:
    """Print the tables."""
    machine()
    if PLACE.is_dir():
        labelled(scorer())
    else:
        print(f"\nThere are no labelled logs at {PLACE}.")
    planted()


def labelled(score: ModuleType) -> None:
    """Print what is found in the labelled logs."""
    series = score.load_jsonl(PLACE / "dev" / "series.jsonl")
    healthy = {(one["dataset"], one["run"], one["key"]) for one in series if one.get("healthy")}
    figures = ("series", "samples", "events", "found", "false", "grey")
    head("dev", *figures, "above info on healthy series")
    every, wrong = [], 0
    for task, alert in TASKS.items():
        rows, loud = [], 0
        for log in logs(score, task):
            found = [one for one in replayed(log.lines) if one.key == log.key and one.state != "resolved"]
            rows.append(as_row(score, log, [log.places[one.place] for one in found if one.alert == alert]))
            if (log.dataset, log.run, log.column) in healthy:
                loud += sum(one.severity in ABOVE_INFO for one in found)
        scores = score.agg(rows)
        row(f"{task}: {alert}", *(f"{scores[one]:,}" for one in figures), f"{loud}")
        every += rows
        wrong += loud
    total = score.agg(every)
    found, events, false = total["found"], total["events"], total["fa_per_1M"]
    head("limit", "measured", "limit", "verdict")
    verdict("labelled events found", f"{found} of {events}", "all", met=found == events)
    verdict("false alerts in a million samples", f"{false:.1f}", f"{FALSE}", met=false <= FALSE)
    verdict("alerts above info on healthy series", f"{wrong}", "0", met=wrong == 0)


def planted() -> None:
    """Print what is found in the runs with planted faults, and in those without."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    runs = [(grpo, fault, seed) for fault in ("", *GRPO_FAULTS) for seed in range(6)]
    runs += [(ppo, fault, seed) for fault in ("", *PPO_FAULTS) for seed in range(5)]
    for train, fault, seed in runs:
        lines = [json.dumps({"step": step, "values": logs}).encode() for step, logs in enumerate(train(seed, fault))]
        found = {one.alert for one in replayed(lines) if one.state != "resolved" and one.severity in ABOVE_INFO}
        name = fault or "none"
        counts[name]["runs"] += 1
        counts[name]["found"] += bool(found & {*FAULTS.get(fault, ())})
        counts[name]["others"] += bool(found - {*FAULTS.get(fault, ())})
    head("planted faults", "runs", "found", "with other alerts above info")
    for fault, counted in counts.items():
        row(fault, *(f"{counted[one]}" for one in ("runs", "found", "others")))
    head("limit", "measured", "limit", "verdict")
    for fault in FAULTS.keys() & counts.keys():
        share, least = counts[fault]["found"] / counts[fault]["runs"], LEAST.get(fault, OTHERS)
        verdict(f"{fault}: found", f"{share:.0%}", f"{least:.0%}", met=share >= least)
    verdict("none: with an alert above info", f"{counts['none']['others']}", "0", met=counts["none"]["others"] == 0)


if __name__ == "__main__":
    main()
