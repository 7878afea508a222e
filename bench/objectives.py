"""Count the alerts that objectives raise when they are pushed as a bare ``loss``: stated as a loss, and read by the data.

The objectives are those of the healthy runs of reinforcement learning among the logs, with what was pushed beside them and
alone, the first trainings whose loss rises, and synthetic ones. Losses that diverge must still be found.

"""

from __future__ import annotations

import random
from collections import Counter
from math import cos, exp
from typing import TYPE_CHECKING

from bench.detectors_loss import RISING
from bench.logs import PLACE, logs, scorer
from bench.replaying import refuse
from bench.table import head, machine, row
from trackside_daemon.cli.commands.replay_rows import Rows, read
from trackside_daemon.detectors.base import Column
from trackside_daemon.detectors.key_roles import BY_NAME, Roles
from trackside_daemon.detectors.rank_detectors import RankDetectors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType

    Pushes = Iterable[tuple[int, float, Mapping[str, float]]]

STATED = Roles([("loss", "loss")])
SEEDS, SAMPLES = 10, 4000
NOISE = 0.05
LEVELS: dict[str, Callable[[int], float]] = {
    "target that moves each 500 steps": lambda i: exp(-(i % 500) / 60) + 0.01,
    "sign that changes": lambda i: 0.3 * cos(i / 150),
    "rise of a value function": lambda i: 0.1 + i / 400,
    "curriculum of harder tasks": lambda i: 0.2 + 0.5 * (1 + i // 800) * exp(-(i % 800) / 200),
    "adversary that catches up": lambda i: 0.7 + 0.4 * (1 - exp(-i / 700)) + 0.2 * cos(i / 300),
    "a loss that falls": lambda i: 0.5 + 4 * exp(-i / 500),
    "a loss that diverges": lambda i: 0.5 + 4 * exp(-i / 500) + (i > 3000) * (i - 3000) / 250,
}


def main() -> None:
    """Print the table."""
    machine()
    head("pushed as loss", "series", "samples", *(f"{what}: {one}" for what in ("stated", "read") for one in _SHOWN))
    if PLACE.is_dir():
        score = scorer()
        for name, runs in _real(score).items():
            _row(name, runs)
    for name, level in LEVELS.items():
        _row(name, [_drawn([level(i) for i in range(SAMPLES)], seed) for seed in range(SEEDS)])
    print()


_SHOWN = ("critical", "warning", "info")


def _row(name: str, runs: list[list[tuple[int, float, Mapping[str, float]]]]) -> None:
    samples = sum("loss" in values for run in runs for *_, values in run)
    counts = []
    for roles in (STATED, BY_NAME):
        found = Counter(severity for run in runs for severity in _severities(run, roles))
        counts += [f"{found[severity]}" for severity in _SHOWN]
    row(name, f"{len(runs)}", f"{samples:,}", *counts)


def _severities(pushes: Pushes, roles: Roles) -> Iterator[str]:
    """Yield the severity of each alert about the loss, except for values that are not finite."""
    rank = RankDetectors(roles=roles)
    for step, time, values in pushes:
        for key, found in rank.evaluate({key: Column([step], [time], [value]) for key, value in values.items()}):
            if key == "loss" and not found.over and found.alert != "NonFinite":
                yield found.severity


def _drawn(levels: list[float], seed: int) -> list[tuple[int, float, Mapping[str, float]]]:
    draw, size = random.Random(seed), sum(map(abs, levels)) / len(levels)
    return [(i, float(i), {"loss": level + draw.gauss(0, NOISE * size)}) for i, level in enumerate(levels)]


def _real(score: ModuleType) -> dict[str, list[list[tuple[int, float, Mapping[str, float]]]]]:
    series = score.load_jsonl(PLACE / "dev" / "series.jsonl")
    healthy = {(one["dataset"], one["run"], one["key"]) for one in series if one.get("healthy")}
    runs = [one for one in logs(score, "rl_loss") if (one.dataset, one.run, one.column) in healthy]
    index = score.load_jsonl(PLACE / "first_runs" / "index.jsonl")
    sound = {(one["dataset"], one["run"]) for one in index if not one["fault"] and one["dataset"] in RISING}
    rising = [one for one in logs(score, "loss", "first_runs") if (one.dataset, one.run) in sound and one.key == "loss"]
    return {
        "reinforcement learning, dev": [_pushes(one.lines) for one in runs],
        "reinforcement learning, dev, that key alone": [_pushes(one.alone()) for one in runs],
        "rising first trainings, that key alone": [_pushes(one.alone()) for one in rising],
    }


def _pushes(lines: Iterable[bytes]) -> list[tuple[int, float, Mapping[str, float]]]:
    pushed = read(lines, Rows(), refuse)
    return [
        (one.step, one.time, {"loss" if key == "rl_loss" else key: value for key, value in one.values.items()})
        for one in pushed
    ]


if __name__ == "__main__":
    main()
