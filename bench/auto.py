"""Measure what `--auto` costs: the start of a command without and with PyTorch, and a step. Run by ``make bench``."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from time import perf_counter
from typing import Any

from processes import ROOT, clean_environ

from bench.daemons import fresh_daemon
from bench.table import head, interval, machine, row, verdict
from trackside.auto.environment import variables

PAIRS = 600
STAGED_PAIRS = 3000
STARTS = 60
TORCH_STARTS = 12

PLAIN = "import json, threading, os; print(len(os.listdir('/proc/self/task')))"
TORCH = "import torch"
STEP = """
import torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
(weight * 2).sum().backward()
optimizer.step()
import os; os._exit(0)
"""


def main() -> None:
    """Print the tables."""
    machine()
    head("a start, ms", "without", "with", "longer by, median of pairs")
    with fresh_daemon() as daemon:
        starts = {
            "a command that imports no PyTorch": _starts(PLAIN, STARTS, daemon.endpoint),
            "`import torch`": _starts(TORCH, TORCH_STARTS, daemon.endpoint),
            "`import torch` and a first step, which opens the run": _starts(STEP, TORCH_STARTS, daemon.endpoint),
        }
        step = _step(daemon.endpoint, PAIRS)
        staged = _step(daemon.endpoint, STAGED_PAIRS, "stages")
    threads = _threads()
    head("a step", "pairs", "step", "longer by", "null pairs")
    microseconds = [part / 100 * step["step"] * 1e6 for part in step["longer"]]
    null = [part / 100 * step["step"] * 1e6 for part in step["null"]]
    row(
        "batch, backward, optimizer",
        f"{step['pairs']:,}",
        f"{step['step'] * 1e6:.0f} µs",
        interval(microseconds, "+.1f", " µs"),
        interval(null, "+.1f", " µs"),
    )
    row(
        f"with stages, {staged['step'] * 1e3:.1f} ms",
        f"{staged['pairs']:,}",
        "mean of CPU time",
        interval(staged["mean of cpu"], "+.2f", " %"),
        interval(staged["null mean of cpu"], "+.2f", " %"),
    )
    head("limit", "measured", "target", "")
    plain, torch, first = starts.values()
    verdict("a command that imports no PyTorch, longer by", f"{plain:.1f} ms", "<= 5 ms", met=plain <= 5)
    verdict("its threads", str(threads), "1", met=threads == 1)
    verdict("`import torch`, longer by", f"{torch:.1f} ms", "<= 30 ms", met=torch <= 30)
    verdict("the same with a first step", f"{first:.1f} ms", "<= 30 ms", met=first <= 30)
    calls = step["back to back"]
    verdict("the hooks of a step, back to back", f"{calls:.1f} µs", "<= 5 µs", met=calls <= 5)
    verdict("a step, longer by", f"{microseconds[0]:.1f} µs", "<= 5 µs", met=microseconds[0] <= 5)
    verdict(
        "a step of 10 ms with stages, longer by",
        f"{staged['mean of cpu'][0]:.2f} %",
        "<= 0.3 %",
        met=staged["mean of cpu"][0] <= 0.3,
    )


def _starts(code: str, count: int, endpoint: str) -> float:
    """Print a row, and return by how many milliseconds a start is longer."""
    plain = clean_environ({"TRACKSIDE_ENDPOINT": endpoint, "OMP_NUM_THREADS": "1"})
    arms = {False: plain, True: {**plain, **variables(plain)}}
    measured: dict[bool, list[float]] = {False: [], True: []}
    for number in range(count + 1):
        for on in (False, True) if number % 2 else (True, False):
            begun = perf_counter()
            subprocess.run([sys.executable, "-c", code], env=arms[on], check=True, stdout=subprocess.DEVNULL)
            if number:  # the first reads the files
                measured[on].append((perf_counter() - begun) * 1e3)
    longer = statistics.median(on - off for off, on in zip(measured[False], measured[True], strict=True))
    name = {PLAIN: "python, no PyTorch", TORCH: "import torch", STEP: "import torch, a step"}[code]
    row(name, *(f"{statistics.median(measured[on]):.1f}" for on in (False, True)), f"{longer:+.1f}")
    return longer


def _threads() -> int:
    environ = {**os.environ, **variables(os.environ)}
    done = subprocess.run([sys.executable, "-c", PLAIN], env=environ, check=True, capture_output=True, text=True)
    return int(done.stdout)


def _step(endpoint: str, pairs: int, *more: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "auto_steps.py"), endpoint, str(pairs), *more],
        env=clean_environ({"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}),
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
