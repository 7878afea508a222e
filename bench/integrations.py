"""Measure what an integration costs per step: loops of frameworks with and without it, in pairs. Run by ``make bench``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

from processes import ROOT, clean_environ

from bench.daemons import fresh_daemon
from bench.push import QUIET, RIVALS, _path
from bench.table import UNAVAILABLE, head, interval, machine, row, verdict


class Way(NamedTuple):
    """A way to track a step.

    Attributes:
        script: Script in this directory that prints the figures.
        arguments: Its first arguments; the endpoint and the number of pairs follow.
        ours: Whether a limit applies.
        limit: Percent of a step of so many milliseconds.
        pairs: Number of pairs.

    """

    script: str
    arguments: tuple[str, ...]
    ours: bool = True
    limit: tuple[float, float] = (0.5, 10.0)
    pairs: int = 1000


WAYS = {
    "`run.watch`": Way("watch.py", ("trackside",)),
    "wandb.watch, gradients and parameters every 100 steps": Way("watch.py", ("wandb",), ours=False),
    "traceml, `trace_step`": Way("watch.py", ("traceml",), ours=False),
    "Transformers, `TracksideCallback(watch=True)`, every step": Way("trainer_steps.py", ("trackside",)),
    "Transformers, wandb's callback, every tenth step": Way("trainer_steps.py", ("wandb",), ours=False),
    "JAX, `push` of each loss": Way("jax_steps.py", (), limit=(2.0, 6.0), pairs=100),
}


def main() -> None:
    """Print the tables."""
    machine()
    head(
        "integration",
        "pairs",
        "step",
        "longer by",
        "null pairs",
        "in its calls",
        "CPU time of its thread, µs",
    )
    with fresh_daemon() as daemon:
        found = {name: _row(name, way, daemon.endpoint) for name, way in WAYS.items()}
    head("limit", "measured", "target", "")
    for name, way in WAYS.items():
        if way.ours and (one := found[name]) is not None:
            middle = one["mean"][0]
            reported = f"{middle:+.2f} % of {one['step'] * 1e3:.1f} ms"
            percent, step = way.limit
            target = f"<= {percent:g} % of {step:g} ms"
            verdict(f"{name}, of a step", reported, target, met=middle * one["step"] * 1e3 <= percent * step)


def _row(name: str, way: Way, endpoint: str) -> dict[str, Any] | None:
    try:
        one = _process(way, endpoint)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{name}: {getattr(error, 'stderr', None) or error}", file=sys.stderr)
        row(f"{name}: not available here", *[UNAVAILABLE] * 6)
        return None
    step = f"{one['step'] * 1e3:.1f} ms"
    more = interval(one["cpu"], "+.0f", "")
    calls = f"{one['calls']:.2f} %" if one["calls"] else UNAVAILABLE
    row(name, f"{one['pairs']:,}", step, interval(one["mean"]), interval(one["null mean"]), calls, more)
    return one


def _process(way: Way, endpoint: str) -> dict[str, Any]:
    """Return what the script prints, run in an empty directory without network access."""
    with tempfile.TemporaryDirectory(prefix="ts-") as place:
        done = subprocess.run(
            [
                sys.executable if way.ours else str(RIVALS),
                str(ROOT / "bench" / way.script),
                *way.arguments,
                endpoint,
                str(way.pairs),
            ],
            cwd=place,
            env=clean_environ({**QUIET, "HOME": place, "PYTHONPATH": _path()}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=900,
        )
    assert "training goes on" not in done.stderr, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
