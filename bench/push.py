"""Measure what a push costs: per call compared with alternatives, per step in pairs, and with scalars on the GPU.

Run by ``make bench``; prints tables in Markdown, with a verdict for each limit. ``--full`` adds 10,000 pairs of steps of
10 ms, which takes seven minutes.

"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from processes import ROOT, clean_environ

from bench.daemons import fresh_daemon
from bench.table import UNAVAILABLE, at_most, head, interval, machine, row, verdict

RIVALS = ROOT / ".venv-bench" / "bin" / "python"
"""The interpreter of the alternatives, which are installed apart from what the tests need."""

ROUNDS = 3
OURS = ("run.push", "trackside.push")
GAUGES = "prometheus_client, 5 gauges"
"""Gauges without labels, or with labels bound in advance: the fastest way to use them, so the ratios refer to them."""

ALONE = "run.push, no daemon"
CHEAP = ("an empty call", "deque.append", *OURS, ALONE, GAUGES, f"{GAUGES} with labels(rank=…)")
BESIDE = ("wandb, offline", "tensorboard, 5 add_scalar", "mlflow, SQLite", "trackio")
BETWEEN = ("an empty call", *OURS, GAUGES)
SMALL, LARGE = 1, 8
"""MiB that the work of a step goes through: within a core's own caches, and beyond them as in most trainings."""

PAIRS = {(0.2, LARGE): 10_000, (1.0, SMALL): 10_000, (1.0, LARGE): 10_000, (10.0, LARGE): 1_500}
"""Number of pairs, by the ms and MiB of a step."""

SHARES = {1.0: 0.5, 10.0: 0.15}
"""Percent of a step that the call may take, by its ms."""

DRIFT = 0.1
"""Steps that turn out longer or shorter than intended by more than this share are measured once more. If they still do, no
limit applies."""

QUIET = {
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_ERROR_REPORTING": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
}

Figures = dict[str, float]


def main() -> None:
    """Print the tables."""
    machine()
    with fresh_daemon() as daemon:
        hot, cold = _calls(daemon.endpoint)
        steps = _steps(daemon.endpoint, full="--full" in sys.argv)
        device = _device(daemon.endpoint)
    _verdicts(hot, cold, steps, device)
    print()


def _calls(endpoint: str) -> tuple[dict[str, Figures], dict[int, dict[str, Figures]]]:
    """Measure back to back, and between steps of 1 ms, by the MiB of their work."""
    hot = _rounds(CHEAP, endpoint)
    hot |= {name: found for name in BESIDE if (found := call(name, endpoint)) is not None}
    head("back to back, µs per call", "p50", "p99", "max", "relative to `run.push`")
    for name in (*CHEAP, *BESIDE):
        _call_row(name, hot)
    cold = {}
    for mebibytes in (SMALL, LARGE):
        cold[mebibytes] = _rounds(BETWEEN, endpoint, 1.0, mebibytes)
        head(
            f"between steps of 1 ms through {mebibytes} MiB, µs per call",
            "p50",
            "p99",
            "max",
            "relative to `run.push`",
        )
        for name in BETWEEN:
            _call_row(name, cold[mebibytes])
    return hot, cold


def _call_row(name: str, found: dict[str, Figures]) -> None:
    if name in found:
        one = found[name]
        ratio = one["p50"] / found["run.push"]["p50"]
        row(
            f"`{name}`" if name in OURS else name,
            *(f"{one[each]:,.2f}" for each in ("p50", "p99", "max")),
            f"{ratio:,.2f}",
        )
    else:
        row(f"{name}: not available here", *[UNAVAILABLE] * 4)


def _rounds(names: tuple[str, ...], endpoint: str, *step: float) -> dict[str, Figures]:
    """Return the median of each figure over rounds that alternate the ways, since the speed of a machine changes within seconds."""
    found: dict[str, list[Figures]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in names:
            one = call(name, endpoint, *step)
            assert one is not None, name
            found[name].append(one)
    return {
        name: {figure: statistics.median(one[figure] for one in rounds) for figure in rounds[0]}
        for name, rounds in found.items()
    }


def call(name: str, endpoint: str, *step: float) -> Figures | None:
    """Return what a separate process measures; None if it cannot, with the reason on stderr."""
    python = str(RIVALS) if name in BESIDE else sys.executable
    try:
        found: Figures = _process("calls.py", name, endpoint, *map(str, step), python=python)
    except (OSError, subprocess.SubprocessError) as error:
        reported = getattr(error, "stderr", None) or str(error)
        print(f"{name}: {reported.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return found


def _process(script: str, *arguments: str, python: str = sys.executable) -> Any:
    """Return what a script of this directory prints, run in an empty directory without prompts or network access."""
    with tempfile.TemporaryDirectory(prefix="ts-") as place:
        done = subprocess.run(
            [python, str(ROOT / "bench" / script), *arguments],
            cwd=place,
            env=clean_environ({**QUIET, "HOME": place, "TRACKIO_DIR": place, "PYTHONPATH": _path()}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=900,
        )
    assert "is dropped" not in done.stderr, done.stderr  # else it was measured how a full queue drops
    return json.loads(done.stdout.strip().splitlines()[-1])


def _path() -> str:
    """Return the PYTHONPATH for scripts of this directory."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def _steps(endpoint: str, *, full: bool) -> dict[tuple[float, int], Any]:
    head(
        "step",
        "pairs",
        "longer by",
        "null pairs",
        "share of the call",
    )
    found = {}
    for (milliseconds, mebibytes), pairs in PAIRS.items():
        arguments = tuple(map(str, (milliseconds, mebibytes, 10_000 if full else pairs)))
        one = _process("steps.py", endpoint, *arguments)
        if not _is_steady(one, milliseconds):
            one = _process("steps.py", endpoint, *arguments)
        found[milliseconds, mebibytes] = one
        row(
            f"{one['step'] / 1000:.2f} ms through {mebibytes} MiB",
            f"{one['pairs']:,}",
            interval(one["push"], "+.3f"),
            interval(one["null"], "+.3f"),
            f"{one['share']:.3f} %",
        )
    return found


def _is_steady(found: dict[str, Any], milliseconds: float) -> bool:
    """Return whether the machine kept the speed at which the steps were calibrated."""
    return bool(abs(found["step"] / 1000 / milliseconds - 1) <= DRIFT)


def _device(endpoint: str) -> dict[str, Any]:
    """Return the figures by way of pushing; empty without a GPU."""
    found: dict[str, Any] = _process("device.py", endpoint)
    head("host time of a push of 2 values, µs", "p50", "p99")
    for name in [one for one in found if one != "device"]:
        row(f"{name}, {found['device']}", f"{found[name]['p50']:,.2f}", f"{found[name]['p99']:,.2f}")
    if not found:
        row("device scalars: no GPU here", UNAVAILABLE, UNAVAILABLE)
    return found


def _verdicts(
    hot: dict[str, Figures],
    cold: dict[int, dict[str, Figures]],
    steps: dict[tuple[float, int], Any],
    device: dict[str, Any],
) -> None:
    head("limit", "measured", "target", "")
    for name in OURS:
        at_most(f"`{name}` back to back, p50", hot[name]["p50"], 0.8, "µs")
        at_most(f"`{name}` back to back, p99", hot[name]["p99"], 6, "µs")
    at_most("`run.push` without a daemon / with one, p50", hot[ALONE]["p50"] / hot["run.push"]["p50"], 1.1)
    at_most("`run.push` / gauges back to back", hot["run.push"]["p50"] / hot[GAUGES]["p50"], 0.5)
    for mebibytes, one in cold.items():
        ratio = one["run.push"]["p50"] / one[GAUGES]["p50"]
        at_most(f"`run.push` / gauges between steps of 1 ms through {mebibytes} MiB", ratio, 0.5)
    wandb = hot["wandb, offline"]["p50"] / hot["run.push"]["p50"] if "wandb, offline" in hot else None
    verdict(
        *("wandb / `run.push` back to back", UNAVAILABLE if wandb is None else f"{wandb:.0f}", ">= 100"),
        met=None if wandb is None else wandb >= 100,
    )
    for (milliseconds, mebibytes), one in steps.items():
        if milliseconds in SHARES:
            what = f"share of a {milliseconds:g} ms step through {mebibytes} MiB in the call"
            limit = SHARES[milliseconds]
            if _is_steady(one, milliseconds):
                at_most(what, one["share"], limit, "%")
            else:
                verdict(what, f"{one['share']:.3g} % of {one['step'] / 1000:.1f} ms", f"<= {limit:g} %", met=None)
    at_most("the sender's CPU, a push each ms, of a core", cold[LARGE]["run.push"]["background"] * 100, 1, "%")
    if device:
        at_most("device scalars, host time, p50", device["device scalars"]["p50"], 25, "µs")
    else:
        verdict("device scalars, host time, p50", "no GPU here", "<= 25 µs", met=None)


if __name__ == "__main__":
    main()
