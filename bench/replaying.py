"""Replay labelled logs and score the result: firing and repeated alerts of the scored key count."""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from processes import clean_environ, command

from bench.logs import logs
from trackside_daemon.cli.commands.replay_rows import RowConverter, read
from trackside_daemon.detectors.base import Column
from trackside_daemon.detectors.rank_detectors import RankDetectors
from trackside_daemon.detectors.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType

    from bench.logs import Log
    from trackside_daemon.detectors.base import Detection
    from trackside_daemon.detectors.replay import AlertChange

BATCH = 512
"""Rows that a daemon gets at once from a training that is fast."""

TASKS: dict[str, tuple[str, ...]] = {
    "loss": ("NonFinite", "LossSpike", "LossHardBatch", "LossDiverging", "LossRestart"),
    "time": ("SlowStep", "ThroughputRegression"),
    "leak": ("HostMemoryLeak",),
}
"""The alerts that are alarms of a task. LossPlateau is not scored, and what is found in gradients is of another key."""

TOLERANCE, COOLDOWN = 5, 10
"""In samples; as `score.py` has them."""

PREFIXES = 3
"""So many beginnings of each log are replayed too: they must tell what the whole log tells of them."""


class Scored(NamedTuple):
    """Score of a task: one line per series in the form of `score.py`, and further checks.

    Attributes:
        alone: The same with only the scored key, and without times.
        later: Prefixes of logs with other results than the whole log.
        batched: Logs with other results in batches, as a daemon gets them, than row by row.

    """

    rows: list[dict[str, Any]]
    alone: list[dict[str, Any]]
    later: int
    batched: int
    alerts: Counter[str]


def replayed(lines: Iterable[bytes]) -> list[AlertChange]:
    """Return the alert changes that `trackside replay` reports for a file."""
    replay = Replay()
    return [change for pushed in read(lines, RowConverter(), refuse) for change in replay.evaluate(pushed)]


def alarms(log: Log, changes: Iterable[AlertChange], names: Sequence[str]) -> list[int]:
    """Return the samples of the series with an alert."""
    return [
        log.places[one.place]
        for one in changes
        if one.key == log.key and one.alert in names and one.state != "resolved"
    ]


def refuse(number: int, why: str) -> None:
    """Fail: a log has no invalid lines."""
    raise AssertionError(f"line {number}: {why}")


def scored(score: ModuleType, task: str) -> Scored:
    """Replay the logs of a task in every way, and score them."""
    rows, alone, later, batched, alerts, longest = [], [], 0, 0, Counter[str](), None
    for log in logs(score, task):
        changes = replayed(log.lines)
        later += _later(log, changes)
        batched += _found(log, BATCH) != _found(log, 1)
        alerts.update(one.alert for one in changes if one.key == log.key and one.state != "resolved")
        rows.append(as_row(score, log, alarms(log, changes, TASKS[task])))
        alone.append(as_row(score, log, alarms(log, replayed(log.alone()), TASKS[task])))
        longest = max(longest or (log, changes), (log, changes), key=lambda pair: len(pair[1]))
    assert longest is not None
    _as_the_command(*longest)
    return Scored(rows, alone, later, batched, alerts)


def _found(log: Log, size: int) -> list[tuple[int, str, Detection]]:
    """Return the detections in batches of at most *size* rows with the same keys: row, key and detection."""
    every = RankDetectors()
    return sorted(
        (begin + one.at, key, one._replace(at=0))
        for begin, columns in batches(log, size)
        for key, one in every.evaluate(columns)
    )


def batches(log: Log, size: int = BATCH) -> Iterator[tuple[int, dict[str, Column]]]:
    """Yield batches of at most *size* rows with the same keys, as a daemon gets them: the place of the first row, and the columns."""
    rows, begin = list(read(log.lines, RowConverter(), refuse)), 0
    while begin < len(rows):
        keys, end = rows[begin].values.keys(), begin + 1
        while end < min(begin + size, len(rows)) and rows[end].values.keys() == keys:
            end += 1
        part = rows[begin:end]
        steps, times = [one.step for one in part], [one.time for one in part]
        yield begin, {key: Column(steps, times, [one.values[key] for one in part]) for key in keys}
        begin = end


def _as_the_command(log: Log, changes: Sequence[AlertChange]) -> None:
    """Return whether the real command reports the same for a log."""
    with tempfile.TemporaryDirectory(prefix="ts-") as directory:
        file = Path(directory) / "log.jsonl"
        file.write_bytes(b"".join(log.lines))
        arguments = command("replay", str(file))
        reported = subprocess.run(arguments, capture_output=True, check=True, env=clean_environ()).stdout
    assert [json.loads(line) for line in reported.splitlines()] == [one.fields() for one in changes]


def _later(log: Log, changes: Sequence[AlertChange]) -> int:
    """Return the prefixes with other results than the whole log."""
    count = len(log.lines)
    if count < 60:
        return 0
    cuts = random.Random(log.run).sample(range(40, count), PREFIXES)
    return sum(replayed(log.lines[:cut]) != [one for one in changes if one.place < cut] for cut in cuts)


def as_row(score: ModuleType, log: Log, found: Sequence[int]) -> dict[str, Any]:
    """Return the score of a series in the form of `score.py`."""
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
