"""Results of a benchmark that did not take place, of two variants at two batch sizes."""

from __future__ import annotations

import random
from typing import Any

from trackside.benchmark.messages import LATENCY, Failure, Load, ProcessAnswer
from trackside.benchmark.results import Measurements, results


def benchmark_results(calls: int, ended: str = "") -> dict[str, Any]:
    """Return what a benchmark of so many calls of each publishes; *ended* is why it ended early."""
    chance, measured = random.Random(1), Measurements(["fp32", "int8"])
    measured.begin()
    for batch in (1, 8):
        for _ in range(calls):
            times = {"fp32": 0.002 * batch, "int8": 0.001 * batch}
            rounds = {name: {LATENCY: [value * chance.uniform(0.9, 1.1)]} for name, value in times.items()}
            measured.add(ProcessAnswer(Load(batch), [rounds]))
    measured.facts = {"fp32": {"weights_bytes": 4e6}, "int8": {"weights_bytes": 1e6}}
    measured.agreement = {"int8": {"top1": {"value": 0.99, "low": 0.98, "high": 1.0, "reason": ""}}}
    measured.add(ProcessAnswer(failed=Failure("pruned", None, "no such layer")))
    return {**results(measured), "unfit": "a GPU was shared", "ended": ended}
