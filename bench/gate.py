"""Measure how often `trackside compare --fail-if` is right: real trainings of the same code, and of code that is 5 % slower.

Usage: PYTHONPATH=tests:. python bench/gate.py [ROUNDS] [STEPS...]
"""

from __future__ import annotations

import random
import statistics
import sys
from typing import TYPE_CHECKING

from gated_trainings import LAYERS, SLOWER, gate, train

from bench import table
from bench.daemons import fresh_daemon

if TYPE_CHECKING:
    from processes import Daemon

ROUNDS = 20
STEPS = (100, 300, 1000)
CONDITIONS = ("step_time > 1.025 * baseline", "step_time_p25 > 1.025 * baseline", "ratio_low(step_time_p25) > 1")


def main() -> None:
    """Print a row for each number of steps."""
    rounds, *steps = map(int, sys.argv[1:]) if sys.argv[1:] else (ROUNDS, *STEPS)
    table.machine()
    counts = (f"`{condition}` fails: {kind}" for condition in CONDITIONS for kind in ("same code", "5 % slower"))
    table.head(
        f"steps of a run ({rounds} rounds)",
        "ms per step",
        *counts,
        "ratio of step_time_p25 of the same code, 5th to 95th percentile",
    )
    with fresh_daemon() as daemon:
        for each in steps or STEPS:
            measure(daemon, rounds, each)


def measure(daemon: Daemon, rounds: int, steps: int) -> None:
    """Train and compare, the three trainings of a round in random order."""
    failed = dict.fromkeys([(condition, kind) for condition in CONDITIONS for kind in ("same", "slow")], 0)
    ratios, seconds = [], []
    for number in range(rounds):
        layers = {"base": LAYERS, "same": LAYERS, "slow": SLOWER}
        kinds = list(layers)
        random.shuffle(kinds)
        for kind in kinds:
            train(daemon, f"{kind}-{steps}-{number}", steps, layers[kind])
        for kind in ("same", "slow"):
            base, run = (f"{one}-{steps}-{number}" for one in ("base", kind))
            for condition in CONDITIONS:
                ended = gate(daemon, base, run, condition)
                failed[condition, kind] += ended.returncode == 3
            header, *rows = ended.stdout.splitlines()
            values = dict(zip(header.split(","), rows[1].split(","), strict=True))
            ratios += [float(values["step_time_p25.ratio"])] if kind == "same" else []
            seconds.append(float(values["step_time"]))
    ratios.sort()
    ends = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
    counts = [f"{failed[condition, kind]}" for condition in CONDITIONS for kind in ("same", "slow")]
    table.row(f"{steps:,}", f"{1e3 * statistics.median(seconds):.1f}", *counts, f"{ends[0]:.3f} to {ends[1]:.3f}")


if __name__ == "__main__":
    main()
