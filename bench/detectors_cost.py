"""Measure the cost of a sample in each detector, alone and together."""

from __future__ import annotations

import json
import random
import statistics
import time
from functools import partial
from math import exp
from typing import TYPE_CHECKING

from bench.feeder import KEYS
from bench.replaying import BATCH
from bench.table import head, row
from trackside_daemon.detectors import rank_detectors
from trackside_daemon.detectors.base import Column, Context
from trackside_daemon.detectors.key_roles import role
from trackside_daemon.detectors.settings import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bench.logs import Log
    from trackside_daemon.detectors.base import Detector

REPEATS = 5
SAMPLES = 40_000
WATCHED = ("loss", "learning_rate", "grad_norm", "step_duration_seconds")
WIDE = (*WATCHED, *(f"other/{number}" for number in range(16)))


def costs(found: Sequence[Log]) -> None:
    """Print the tables, including real series if there are any."""
    head(
        "µs per sample, median of 5",
        "healthy series",
        "healthy series, one by one",
        "real series",
        "troubled series",
        "target",
        "",
    )
    for name, of in rank_detectors._DETECTORS.items():
        real = _real(found, name)
        for detector in (partial(made, DEFAULTS) for made in of):
            healthy, troubled = [_long(name)], [_troubled(_long(name))]
            figures = [_alone(detector, healthy, BATCH), _alone(detector, real, BATCH) if real else None]
            reported = [f"{figure:.2f}" if figure is not None else "-" for figure in figures]
            reported[1:1] = [f"{_alone(detector, healthy, 1):.2f}"]
            met = all(figure is None or figure <= 3 for figure in figures)
            row(
                *(f"{type(detector()).__name__}, {name}", *reported, f"{_alone(detector, troubled, BATCH):.2f}"),
                *("<= 3 in batches, healthy and real", "met" if met else "**MISSED**"),
            )
    head(f"all detectors, batches of {BATCH} steps", "samples/s", "µs per step", "target", "")
    _together("20 values, 4 watched", WIDE, ">= 500,000")
    watched = sum(bool(role(key)) for key in KEYS)
    _together(f"20 values as in bench/ingest.py, {watched} watched", KEYS, "")


def _together(what: str, keys: Sequence[str], target: str) -> None:
    """Time all detectors of a rank on columns as they arrive."""
    columns = {key: _long(role(key) or "rate", seed) for seed, key in enumerate(keys)}
    batches = list(_batches(columns))

    def once() -> None:
        every = rank_detectors.RankDetectors()
        for batch in batches:
            for _ in every.evaluate(batch):
                pass

    seconds = _median(once)
    rate = SAMPLES * len(keys) / seconds
    reported = (f"{rate:,.0f}", f"{seconds / SAMPLES * 1e6:.1f}")
    if target:
        row(what, *reported, target, "met" if rate >= 500_000 else "**MISSED**")
    else:
        row(what, *reported, "", "")


def _alone(detector: Callable[[], Detector], series: Iterable[Column], batch: int) -> float:
    """Return microseconds per sample of one detector; each series gets a new one."""
    pieces = [[column for part in _batches({"": one}, batch) for column in part.values()] for one in series]
    count = sum(len(column.values) for parts in pieces for column in parts)

    def once() -> None:
        for parts in pieces:
            one, context = detector(), Context()
            for column in parts:
                for _ in one.evaluate(column, context):
                    pass

    return _median(once) / count * 1e6


def _median(work: Callable[[], None]) -> float:
    seconds = []
    for _ in range(REPEATS):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return statistics.median(seconds)


def _batches(columns: Mapping[str, Column], size: int = BATCH) -> Iterable[dict[str, Column]]:
    length = max(len(column.values) for column in columns.values())
    for first in range(0, length, size):
        cut = slice(first, first + size)
        yield {key: Column(one.steps[cut], one.times[cut], one.values[cut]) for key, one in columns.items()}


def _real(found: Iterable[Log], name: str) -> list[Column]:
    """Return the real series of a role."""
    columns: dict[tuple[str, str, str], Column] = {}
    for log in found:
        gathered: dict[str, tuple[list[int], list[float], list[float]]] = {}
        for number, line in enumerate(log.lines):
            pushed = json.loads(line)
            for key, value in pushed["values"].items():
                if role(key) == name:
                    steps, times, values = gathered.setdefault(key, ([], [], []))
                    steps.append(pushed.get("step", number))
                    times.append(pushed.get("time", float(number)))
                    values.append(value)
        columns |= {(log.dataset, log.run, key): Column(*each) for key, each in gathered.items()}
    return list(columns.values())


def _long(name: str, seed: int = 0) -> Column:
    """Return a typical series of the role."""
    chance = random.Random(seed)
    makes: dict[str, Callable[[int], float]] = {
        "loss": lambda step: 2 + 8 * exp(-step / 3000) + chance.gauss(0, 0.05),
        "evaluation": lambda step: 2 + 8 * exp(-step / 3000) + chance.gauss(0, 0.05),
        "gradient": lambda step: exp(chance.gauss(0, 0.2)),  # noqa: ARG005  one kind of function
        "rate": lambda step: 3e-4 * max(0.1, 1 - step / SAMPLES),
        "duration": lambda step: 0.2 * exp(chance.gauss(0, 0.03)) * (5 if step % 1000 == 999 else 1),
        "memory": lambda step: 4e9 * (1 + 0.01 * chance.random()) + min(step, 2000) * 1e5,
    }
    make = makes.get(name, makes["gradient"])
    return Column(
        list(range(SAMPLES)), [0.2 * step for step in range(SAMPLES)], [make(step) for step in range(SAMPLES)]
    )


def _troubled(column: Column) -> Column:
    """Return the same series with one sample in eight raised, without a schedule."""
    chance = random.Random(1)
    values = [value * chance.uniform(1.5, 2.5) if chance.random() < 0.12 else value for value in column.values]
    return column._replace(values=values)
