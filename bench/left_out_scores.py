"""Score the detectors with other constants, on all datasets that are labelled: of ``dev`` and of ``first_runs``.

The detectors of a loss, of step times and of memory count alarms, as `score.py` does. Warnings count runs: of a healthy run a
warning is false, and a run with a planted fault that its key shows must have one.

"""

from __future__ import annotations

import importlib
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from bench.bounded_memory import recorded
from bench.logs import MEMORY, PLACE, Log, as_pushed
from bench.replaying import as_row
from trackside_daemon.detectors import rank_detectors
from trackside_daemon.detectors.base import Column, Context
from trackside_daemon.detectors.step_durations import LOST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from trackside_daemon.detectors.settings import DetectorThresholds

Rows = list[dict[str, Any]]
Values = tuple[tuple[str, Any], ...]
"""Changed constants: names as in `CONSTANTS`, and values."""

MADE = {
    type(rank_detectors.made_with(*one, rank_detectors.DEFAULTS, 0.0)).__name__: partial(rank_detectors.made_with, *one)
    for every in rank_detectors._DETECTORS.values()
    for one in every.items()
}
"""The factories of the detectors by name."""

READS: dict[str, tuple[str, ...]] = {
    "NonFinite": (),
    "LossRestart": ("loss_restart",),
    "LossSpike": ("loss_spike", "outlier", "learnt"),
    "LossDiverging": ("loss_diverging", "learnt"),
    "Gradient": ("gradient",),
    "SlowStep": ("slow_step",),
    "Throughput": ("throughput",),
    "MemoryLeak": ("memory_leak",),
}
"""The modules with the constants of a detector, except for the settings."""

ALARMS: dict[str, tuple[str, ...]] = {
    "loss": ("NonFinite", "LossRestart", "LossSpike", "LossDiverging"),
    "warning": ("LossDiverging", "LossRestart"),
    "gradient": ("Gradient",),
    "time": ("SlowStep", "Throughput"),
    "leak": ("MemoryLeak",),
}
"""Detectors whose alarms a measure counts."""

FAULTS: dict[str, tuple[str, frozenset[str]]] = {
    "warning": ("loss", frozenset({"explode", "lr30", "corrupt", "restart"})),
    "gradient": ("grad_norm", frozenset({"explode", "vanish"})),
}
"""Key and planted faults of the measures that count runs."""


class Series(NamedTuple):
    """A series: the log without its lines, its samples, the least seconds that slow steps lose, and the losses beside a norm."""

    log: Log
    column: Column
    lost: float
    losses: dict[int, float]

    def context(self) -> Context:
        """Return what the detectors know besides the samples."""
        context = Context()
        context.losses = self.losses
        return context


@cache
def rows(score: ModuleType, measure: str, values: Values = ()) -> Rows:
    """Return the score of each series of a measure with changed constants."""
    modules = {module for name, _ in values for module in _parts(name)[0]}
    changed = [name for name in ALARMS[measure] if modules & {"settings", *READS[name]}]
    found = []
    with _changed(values) as thresholds:
        for at, one in enumerate(_series(score, measure)):
            alarms = {**_known(score, measure)[at], **_alarms(one, changed, thresholds)}
            every = [alarm for each in alarms.values() for alarm in each]
            found.append(
                _by_run(one.log, every) if measure in FAULTS else as_row(score, one.log, [at for at, _ in every])
            )
    return found


def value_of(name: str) -> Any:
    """Return the value of a constant."""
    modules, constant, index = _parts(name)
    if modules == ["settings"]:
        return getattr(rank_detectors.DEFAULTS, constant)
    whole = getattr(_module(modules[0]), constant)
    return whole if index is None else whole[index]


def _by_run(log: Log, alarms: list[tuple[int, str]]) -> dict[str, Any]:
    warned, bad = any(severity != "info" for _, severity in alarms), bool(log.labels)
    counts = {"events": bad, "found": bad and warned, "fp": warned and not bad, "grey": 0, "periodic": 0}
    return {"dataset": log.dataset, **counts}


@cache
def _known(score: ModuleType, measure: str) -> list[dict[str, list[tuple[int, str]]]]:
    """Return the alarms of each series by detector, with the constants as they are."""
    return [_alarms(one, ALARMS[measure], rank_detectors.DEFAULTS) for one in _series(score, measure)]


def _alarms(
    one: Series, detectors: list[str] | tuple[str, ...], thresholds: DetectorThresholds
) -> dict[str, list[tuple[int, str]]]:
    """Return sample and severity of the alarms of each detector."""
    return {
        name: [
            (found.at, found.severity)
            for found in MADE[name](thresholds, one.lost).evaluate(one.column, one.context())
            if not found.over
        ]
        for name in detectors
    }


def _parts(name: str) -> tuple[list[str], str, int | None]:
    """Return modules, constant and index of a name."""
    modules, _, constant = name.partition(".")
    constant, _, index = constant.partition("[")
    return modules.split("+"), constant, int(index[:-1]) if index else None


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"trackside_daemon.detectors.{name}")


@contextmanager
def _changed(values: Values) -> Iterator[DetectorThresholds]:
    """Change constants of the detectors, and return the thresholds."""
    thresholds = rank_detectors.DEFAULTS
    with ExitStack() as stack:
        for name, value in values:
            modules, constant, index = _parts(name)
            if modules == ["settings"]:
                thresholds = thresholds.model_copy(update={constant: value})
                continue
            for module in map(_module, modules):
                whole = getattr(module, constant)
                new = value if index is None else (*whole[:index], value, *whole[index + 1 :])
                stack.enter_context(mock.patch.object(module, constant, new))
        yield thresholds


@cache
def _series(score: ModuleType, measure: str) -> list[Series]:
    """Return the series of a measure."""
    found = []
    for split in ("dev", "first_runs"):
        lost = LOST if split != "dev" and measure == "time" else 0.0
        for dataset, run, key, grace, events in (_run_level if measure in FAULTS else _scored)(score, measure, split):
            column = _column(score, split, (dataset, run, key))
            if column.values:
                one = _one(dataset, run, key, column, grace=grace, events=events, lost=lost)
                if measure == "gradient":
                    steps, _, losses = _column(score, split, (dataset, run, "loss"))
                    one = one._replace(losses=dict(zip(steps, losses, strict=True)))
                found.append(one)
    if measure == "leak":
        for name, values in recorded().items():
            leak = {"start": 0, "end": len(values), "severity": "major", "kind": "leak"}
            column = Column(range(len(values)), [float(at) for at in range(len(values))], values)
            found.append(_one("recorded", name, MEMORY, column, events=[leak] if name.startswith("leak") else []))
    return found


def _one(
    dataset: str, run: str, key: str, column: Column, *, grace: int = 0, events: list[dict[str, Any]], lost: float = 0.0
) -> Series:
    places = {at: at for at in range(len(column.values))}
    return Series(Log(dataset, run, key, key, [], places, grace, events), column, lost, {})


def _scored(score: ModuleType, measure: str, split: str) -> Iterator[tuple[str, str, str, int, list[dict[str, Any]]]]:
    """Yield the series whose alarms count: dataset, run, key, grace and labels."""
    labels = _labels(score, split)
    for one in score.load_jsonl(PLACE / split / "series.jsonl"):
        if one["scored"] and score.TASK_KEYS[measure](one["key"]):
            whose = one["dataset"], one["run"], one["key"]
            yield *whose, one["grace"], labels[whose]


def _run_level(
    score: ModuleType, measure: str, split: str
) -> Iterator[tuple[str, str, str, int, list[dict[str, Any]]]]:
    """Yield the series of runs that are healthy, without labels, and of those with a planted fault, with one."""
    key, faults = FAULTS[measure]
    bad = {
        whose[:2]
        for whose, labels in _labels(score, split).items()
        if any(one["severity"] == "major" for one in labels)
    }
    planted = {
        (one["dataset"], one["run"]): one.get("fault") for one in score.load_jsonl(PLACE / split / "index.jsonl")
    }
    for one in score.load_jsonl(PLACE / split / "series.jsonl"):
        run = one["dataset"], one["run"]
        fault = planted[run]
        if one["key"] == "rl_loss" and measure == "warning" and one["healthy"]:
            yield *run, "rl_loss", 0, []
        elif one["key"] == "loss" and one["scored"] and fault in faults:
            yield *run, key, 0, [{}]
        elif one["key"] == "loss" and one["scored"] and not (fault or run in bad):
            yield *run, key, 0, []


def _labels(score: ModuleType, split: str) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    found = defaultdict(list)
    for one in score.load_jsonl(PLACE / split / "labels.jsonl"):
        found[one["dataset"], one["run"], one["key"]].append(one)
    return found


def _column(score: ModuleType, split: str, whose: tuple[str, str, str]) -> Column:
    """Return the samples of a series, empty if it was not logged; without a time, each comes a second after the last."""
    steps, times, values = score.load_series(split, *whose)
    kept = [time if isfinite(time) else float(at) for at, time in enumerate(times)]
    return Column(list(map(int, steps)), kept, [as_pushed(whose[2], value)[1] for value in values])
