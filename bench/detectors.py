"""Measure what the detectors find in labelled logs of real trainings, compared with plain rules, and their cost.

Run by ``make bench``; prints tables in Markdown, with a verdict for each limit. ``--quick`` leaves out the costs.

The logs are in a directory next to the repository; without them, only the costs are measured. All columns of a run are
replayed together, as `trackside replay` does. Firing and repeated alerts of the scored key count.

"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.detectors_cost import costs
from bench.detectors_loss import losses
from bench.logs import PLACE, logs, scorer
from bench.replaying import BATCH, COOLDOWN, PREFIXES, TASKS, TOLERANCE, scored
from bench.table import head, machine, row, verdict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType


BASELINES: dict[str, tuple[str, ...]] = {
    "loss": ("seed_z2", "olmo_core", "olmo2_spike_score", "zclip", "page_hinkley", "robust_mad", "composite"),
    "time": ("seed_z2", "time_ratio", "time_3x", "composite"),
    "leak": ("seed_z2", "composite"),
}


FIRST_SET = frozenset(
    {"algoperf", "megatron_golden", "modded_nanogpt"}
    | {f"mlperf_{name}" for name in ("gnmt", "maskrcnn", "nemo", "rgat", "rnnt")}
)
"""The datasets whose grey zone was labelled most carefully."""


def main() -> None:
    """Print the tables."""
    machine()
    if PLACE.is_dir():
        score = scorer()
        for task in TASKS:
            _task(score, task)
        losses(score)
    else:
        print(f"\nThere are no labelled logs at {PLACE}: the accuracy of the detectors is not measured.")
    if "--quick" in sys.argv:
        return
    costs(list(chain.from_iterable(logs(scorer(), task) for task in TASKS)) if PLACE.is_dir() else [])


def _task(score: ModuleType, task: str) -> None:
    ours = scored(score, task)
    all_, without = score.agg(ours.rows), score.agg(_without_hard_batches(ours.rows))
    head(
        f"{task}: {all_['series']} series, {all_['samples']:,} samples, {all_['events']} events",
        *("P", "P*", "R", "false per 1M", "delay: median", "max", "on scheduled pauses"),
    )
    for name in BASELINES[task]:
        rows, _, _ = score.run(str(PLACE / "baselines" / f"{name}.py"), task, ["dev"], TOLERANCE, COOLDOWN)
        _figures(score, name, rows, hard=task == "loss")
    _figures(score, "**trackside**", ours.rows, hard=task == "loss")
    _figures(score, "trackside, that key alone", ours.alone, hard=task == "loss")
    print(f"\nAlerts: {', '.join(f'{name} {count}' for name, count in sorted(ours.alerts.items())) or 'none'}.")
    _kinds(ours.rows)
    head(f"limits, {task}", "measured", "target", "")
    for what, measured, limit, met in _LIMITS[task](all_, without, ours.rows):
        verdict(what, measured, limit, met=met)
    what = f"logs in which batches of {BATCH} rows give other alarms than single rows"
    verdict(what, f"{ours.batched}", "0", met=not ours.batched)
    verdict(
        f"of {PREFIXES} first parts of each log, with other alarms than the whole log",
        f"{ours.later}",
        "0",
        met=not ours.later,
    )


def _without_hard_batches(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            **one,
            "events": sum(kind != "hard_batch" for kind in one["kinds"]),
            "found": sum(kind != "hard_batch" for kind in one["found_kinds"]),
            "delays": [delay for kind, delay in one["delay_kinds"] if kind != "hard_batch"],
        }
        for one in rows
    ]


def _figures(score: ModuleType, name: str, rows: list[dict[str, Any]], *, hard: bool) -> None:
    _line(name, score.agg(rows), rows)
    if hard:
        _line(f"{name}, without hard batches", score.agg(_without_hard_batches(rows)), _without_hard_batches(rows))


def _line(name: str, one: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
    delays = [delay for each in rows for delay in each["delays"]]
    row(
        name,
        *(f"{one[figure]:.2f}" for figure in ("precision", "precision_strict", "recall")),
        f"{one['fa_per_1M']:,.0f}",
        *((f"{statistics.median(delays):g}", f"{max(delays)}") if delays else ("-", "-")),
        f"{one['periodic']:,}",
    )


def _kinds(rows: Iterable[dict[str, Any]]) -> None:
    kinds = Counter(kind for one in rows for kind in one["kinds"])
    found: dict[str, list[int]] = {kind: [] for kind in kinds}
    for kind, delay in chain.from_iterable(one["delay_kinds"] for one in rows):
        found[kind].append(delay)
    head("events by kind", "found", "of", "delay: median", "max")
    for kind, delays in sorted(found.items()):
        reported = (f"{np.median(delays):g}", f"{max(delays)}") if delays else ("-", "-")
        row(kind, f"{len(delays)}", f"{kinds[kind]}", *reported)


Limit = tuple[str, str, str, bool]


def _loss(all_: dict[str, Any], without: dict[str, Any], rows: list[dict[str, Any]]) -> list[Limit]:
    first = [one for one in rows if one["dataset"] in FIRST_SET]
    found = sum(one["found"] for one in first)
    right = found / (found + sum(one["fp"] + one["grey"] for one in first))
    return [
        _at_least("recall, all events", all_["recall"], 0.95),
        _at_least("P*, all events of the first set of logs", right, 0.80),
        _at_most("false per 1M", all_["fa_per_1M"], 10),
        _at_least("recall without hard batches", without["recall"], 0.92),
        _at_least("P* without hard batches", without["precision_strict"], 0.60),
        _all_within("NaN", "nan", 0, rows),
        _all_within("restart", "restart", 1, rows),
    ]


def _time(all_: dict[str, Any], _: dict[str, Any], __: list[dict[str, Any]]) -> list[Limit]:
    return [
        _at_least("recall", all_["recall"], 0.93),
        _at_most("false per 1M", all_["fa_per_1M"], 12),
        _at_most("alarms on scheduled pauses", all_["periodic"], 120),
    ]


def _leak(all_: dict[str, Any], _: dict[str, Any], rows: list[dict[str, Any]]) -> list[Limit]:
    return [
        _all_within("leak", "leak", 200, rows),
        _at_most("false", all_["false"], 0),
    ]


_LIMITS = {"loss": _loss, "time": _time, "leak": _leak}


def _at_least(what: str, measured: float, limit: float) -> Limit:
    return what, f"{measured:.3f}", f">= {limit:.2f}", measured >= limit


def _at_most(what: str, measured: float, limit: float) -> Limit:
    return what, f"{measured:.3g}", f"<= {limit:g}", measured <= limit


def _all_within(what: str, kind: str, limit: int, rows: list[dict[str, Any]]) -> Limit:
    """Return whether all events of a kind are found, with at most *most* samples of delay."""
    events = sum(one["kinds"].count(kind) for one in rows)
    delays = [delay for one in rows for found, delay in one["delay_kinds"] if found == kind]
    met = len(delays) == events and max(delays, default=0) <= limit
    reported = f"{len(delays)} of {events}, after {max(delays)} samples at most" if delays else f"0 of {events}"
    return f"{what}: found, and with what delay", reported, f"all, <= {limit}", met


if __name__ == "__main__":
    main()
