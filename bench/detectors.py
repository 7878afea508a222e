"""What the detectors find in labelled logs of real trainings, beside plain rules, and what they cost.

Run by ``make bench``; prints tables in Markdown, with a verdict for each limit. ``--quick`` leaves the costs out.

The logs lie beside the repository; where they do not, only the costs are measured. All of a run's columns are replayed
together, as `trackside replay` does, and the alarms of the key that is scored count: firing and repeated.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from bench.detectors_cost import costs
from bench.logs import PLACE, logs, scorer
from bench.table import head, machine, row, verdict
from processes import clean_environ, command

from trackside_daemon.commands.rows import Rows, read
from trackside_daemon.detectors.replaying import Replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

    from bench.logs import Log

    from trackside_daemon.detectors.replaying import Change

TASKS: dict[str, tuple[str, ...]] = {
    "loss": ("NonFinite", "LossSpike", "LossHardBatch", "LossDiverging", "LossRestart"),
    "time": ("SlowStep", "ThroughputRegression"),
    "leak": ("HostMemoryLeak",),
}
"""The alerts that are alarms of a task. LossPlateau is not scored, and what is found in gradients is of another key."""

BASELINES: dict[str, tuple[str, ...]] = {
    "loss": ("seed_z2", "olmo_core", "olmo2_spike_score", "zclip", "page_hinkley", "robust_mad", "composite"),
    "time": ("seed_z2", "time_ratio", "time_3x", "composite"),
    "leak": ("seed_z2", "composite"),
}
TOLERANCE, COOLDOWN = 5, 10
"""In samples; as `score.py` has them."""

PREFIXES = 3
"""So many beginnings of each log are replayed too: they must tell what the whole log tells of them."""


class Scored(NamedTuple):
    """A task's score: a line a series, as `score.py` has it, and what else was seen.

    Attributes:
        alone: The same where nothing but the key is pushed, and no time.
        later: Beginnings of logs of which something else was told than of the whole.
    """

    rows: list[dict[str, Any]]
    alone: list[dict[str, Any]]
    later: int
    alerts: Counter[str]


def main() -> None:
    """Print the tables."""
    machine()
    if PLACE.is_dir():
        score = scorer()
        for task in TASKS:
            _task(score, task)
    else:
        print(f"\nThere are no labelled logs at {PLACE}: what the detectors find is not measured.")
    if "--quick" not in sys.argv:
        costs(list(chain.from_iterable(logs(scorer(), task) for task in TASKS)) if PLACE.is_dir() else [])
    print()


def replayed(lines: Iterable[bytes]) -> list[Change]:
    """What `trackside replay` tells of a file."""
    replay = Replay()
    return [change for pushed in read(lines, Rows(), _refuse) for change in replay.take(pushed)]


def alarms(log: Log, changes: Iterable[Change], names: Sequence[str]) -> list[int]:
    """The samples of the log's series at which there is an alarm."""
    return [
        log.places[one.place]
        for one in changes
        if one.key == log.key and one.alert in names and one.state != "resolved"
    ]


def _refuse(number: int, why: str) -> None:
    raise AssertionError(f"line {number}: {why}")


def _task(score: ModuleType, task: str) -> None:
    ours = _scored(score, task)
    all_, without = score.agg(ours.rows), score.agg(_without_hard_batches(ours.rows))
    head(
        f"{task}: {all_['series']} series, {all_['samples']:,} samples, {all_['events']} events",
        *("P", "P*", "R", "false per 1M", "delay: median", "most", "on scheduled pauses"),
    )
    for name in BASELINES[task]:
        rows, _, _ = score.run(str(PLACE / "baselines" / f"{name}.py"), task, ["dev"], TOLERANCE, COOLDOWN)
        _figures(score, name, rows, hard=task == "loss")
    _figures(score, "**trackside**", ours.rows, hard=task == "loss")
    _figures(score, "trackside, that key alone", ours.alone, hard=task == "loss")
    print(f"\nAlerts: {', '.join(f'{name} {count}' for name, count in sorted(ours.alerts.items())) or 'none'}.")
    _kinds(ours.rows)
    head(f"limits, {task}", "measured", "wanted", "")
    for what, measured, limit, met in _LIMITS[task](all_, without, ours.rows):
        verdict(what, measured, limit, met=met)
    verdict(
        f"{PREFIXES} beginnings of each log told otherwise than the whole", f"{ours.later}", "0", met=not ours.later
    )


def _scored(score: ModuleType, task: str) -> Scored:
    rows, alone, later, alerts, longest = [], [], 0, Counter[str](), None
    for log in logs(score, task):
        changes = replayed(log.lines)
        later += _later(log, changes)
        alerts.update(one.alert for one in changes if one.key == log.key and one.state != "resolved")
        rows.append(_row(score, log, alarms(log, changes, TASKS[task])))
        alone.append(_row(score, log, alarms(log, replayed(log.alone()), TASKS[task])))
        longest = max(longest or (log, changes), (log, changes), key=lambda pair: len(pair[1]))
    assert longest is not None
    _as_the_command(*longest)
    return Scored(rows, alone, later, alerts)


def _as_the_command(log: Log, changes: Sequence[Change]) -> None:
    """The real command tells the same of a log."""
    with tempfile.TemporaryDirectory(prefix="ts-") as directory:
        file = Path(directory) / "log.jsonl"
        file.write_bytes(b"".join(log.lines))
        said = _run(command("replay", str(file)))
    assert [json.loads(line) for line in said.splitlines()] == [one.fields() for one in changes]


def _run(arguments: Sequence[str]) -> bytes:
    import subprocess

    return subprocess.run(arguments, capture_output=True, check=True, env=clean_environ()).stdout


def _later(log: Log, changes: Sequence[Change]) -> int:
    """Beginnings of which something else is told than of the whole."""
    count = len(log.lines)
    if count < 60:
        return 0
    cuts = random.Random(log.run).sample(range(40, count), PREFIXES)
    return sum(replayed(log.lines[:cut]) != [one for one in changes if one.place < cut] for cut in cuts)


def _row(score: ModuleType, log: Log, found: Sequence[int]) -> dict[str, Any]:
    """A series' score, as `score.py` has it."""
    major, hits, false, grey, periodic = score.score_series(
        found, log.labels, len(log.places), log.grace, TOLERANCE, COOLDOWN
    )
    delays = [(major[place]["kind"], delay) for place, delay in hits.items()]
    return {
        "dataset": log.dataset,
        "run": log.run,
        "key": log.column,
        "n": len(log.places),
        "events": len(major),
        "kinds": [one["kind"] for one in major],
        "found": len(hits),
        "found_kinds": [kind for kind, _ in delays],
        "delays": [delay for _, delay in delays],
        "delay_kinds": delays,
        "fp": false,
        "grey": grey,
        "periodic": periodic,
    }


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
    head("events by kind", "found", "of", "delay: median", "most")
    for kind, delays in sorted(found.items()):
        told = (f"{np.median(delays):g}", f"{max(delays)}") if delays else ("-", "-")
        row(kind, f"{len(delays)}", f"{kinds[kind]}", *told)


Limit = tuple[str, str, str, bool]


def _loss(all_: dict[str, Any], without: dict[str, Any], rows: list[dict[str, Any]]) -> list[Limit]:
    return [
        _at_least("recall, all events", all_["recall"], 0.95),
        _at_least("P*, all events", all_["precision_strict"], 0.80),
        _at_most("false per 1M", all_["fa_per_1M"], 15),
        _at_least("recall without hard batches", without["recall"], 0.92),
        _at_least("P* without hard batches", without["precision_strict"], 0.60),
        _all_within("NaN", "nan", 0, rows),
        _all_within("restart", "restart", 1, rows),
    ]


def _time(all_: dict[str, Any], _: dict[str, Any], __: list[dict[str, Any]]) -> list[Limit]:
    return [
        _at_least("recall", all_["recall"], 0.93),
        _at_most("false per 1M", all_["fa_per_1M"], 15),
        _at_most("alarms on scheduled pauses", all_["periodic"], 60),
    ]


def _leak(all_: dict[str, Any], _: dict[str, Any], rows: list[dict[str, Any]]) -> list[Limit]:
    return [
        _all_within("leak", "leak", 100, rows),
        _at_most("false", all_["false"], 0),
    ]


_LIMITS = {"loss": _loss, "time": _time, "leak": _leak}


def _at_least(what: str, measured: float, limit: float) -> Limit:
    return what, f"{measured:.3f}", f">= {limit:.2f}", measured >= limit


def _at_most(what: str, measured: float, limit: float) -> Limit:
    return what, f"{measured:.3g}", f"<= {limit:g}", measured <= limit


def _all_within(what: str, kind: str, limit: int, rows: list[dict[str, Any]]) -> Limit:
    """All events of a kind are found, and with at most so many samples of delay."""
    events = sum(one["kinds"].count(kind) for one in rows)
    delays = [delay for one in rows for found, delay in one["delay_kinds"] if found == kind]
    met = len(delays) == events and max(delays, default=0) <= limit
    told = f"{len(delays)} of {events}, after {max(delays)} samples at most" if delays else f"0 of {events}"
    return f"{what}: found, and with what delay", told, f"all, <= {limit}", met


if __name__ == "__main__":
    main()
