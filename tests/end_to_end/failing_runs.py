"""Trainings that fail, one after the other in one process, each as a separate run; with ``quiet`` none of them fails.

``python failing_runs.py NAME…`` runs those of `TROUBLES`, or all that take only a moment; the twin of each without a
failure is called ``quiet-…``.
"""

from __future__ import annotations

import random
import resource
import sys
import time
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUIET = "quiet" in sys.argv
LEAKED: list[bytes] = []
STARVED_SECONDS = 24.0
"""Two windows of 10 s, and some more."""


def around(level: float, count: int, noise: float = 0.01) -> list[float]:
    """Return *count* values near a level."""
    draw = random.Random(3)
    return [level * (1 + draw.gauss(0, noise)) for _ in range(count)]


def series(key: str, well: list[float], ill: list[float], **beside: float) -> Iterator[dict[str, Any]]:
    """Yield pushes: the good values, then the bad ones, or as many good values near the last if `QUIET`."""
    for value in [*well, *(around(well[-1], len(ill)) if QUIET else ill)]:
        yield {key: value, **beside}


def falling(start: float, end: float, count: int) -> list[float]:
    """Return a loss that falls with some noise."""
    drops = around(1.0, count, 0.005)
    return [(end + (start - end) * 0.98**step) * drops[step] for step in range(count)]


def gone_back() -> Iterator[dict[str, Any]]:
    """Yield pushes that continue from an earlier step, as after a restart from a checkpoint."""
    losses = falling(8.0, 2.0, 500)
    for step in [*range(400), *range(400 if QUIET else 300, 460)]:
        yield {"step": step, "loss": losses[step]}


def slow() -> Iterator[dict[str, Any]]:
    """Yield pushes with a single step of 1.5 s."""
    for step in range(80):
        time.sleep(1.5 if step == 60 and not QUIET else 0.005)
        yield {"reward": 1.0}


def overfitting() -> Iterator[dict[str, Any]]:
    """Yield losses that fall, with an evaluation at each 30 steps whose loss turns away from them."""
    for step, loss in enumerate(falling(4.0, 1.0, 300)):
        rises = 0.0 if QUIET else 0.005 * max(0, step - 120)
        yield {"loss": loss, **({"val/loss": loss + rises} if step % 30 == 29 else {})}


def slower() -> Iterator[dict[str, Any]]:
    """Yield pushes of steps that are ten times as slow from some step on, which loses seconds."""
    for step in range(480):
        time.sleep(0.03 if step > 360 and not QUIET else 0.003)
        yield {"reward": 1.0}


def leak() -> Iterator[dict[str, Any]]:
    """Leak memory, and yield the resident memory of the process."""
    for _ in range(200):
        if not QUIET:
            LEAKED.append(b"\xff" * 2**19)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        yield {"process_resident_bytes": float(pages * resource.getpagesize())}


def starved() -> Iterator[dict[str, Any]]:
    """Yield pushes of steps that spend most of their time on waiting for data."""
    until = time.monotonic() + STARVED_SECONDS
    while time.monotonic() < until:
        with trackside.phase("data"):
            time.sleep(0.0 if QUIET else 0.016)
        with trackside.phase("forward"):
            time.sleep(0.024 if QUIET else 0.008)
        yield {"reward": 1.0}


TROUBLES: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "NonFinite": lambda: series("loss", around(2.0, 40), [nan]),
    "LossSpike": lambda: series("loss", around(2.0, 80), around(6.0, 5)),
    "LossHardBatch": lambda: series("loss", around(2.0, 80), [2.9, *around(2.0, 20)]),
    "LossDiverging": lambda: series("loss", falling(4.0, 2.0, 300), [2.0 * 1.01**step for step in range(60)]),
    "LossPlateau": lambda: series("loss", falling(8.0, 2.0, 100), around(2.0, 8000, 0.001)),
    "Overfitting": overfitting,
    "LossRestart": gone_back,
    "GradientExplosion": lambda: series("grad_norm", around(1.0, 200, 0.1), around(6.0, 4)),
    "GradientVanishing": lambda: series("grad_norm", around(1.0, 800, 0.1), around(0.01, 60)),
    "LearningRateOutOfRange": lambda: series("lr", [1e-3] * 40, [-1e-3] * 4),
    "NoLearningSignal": lambda: series("frac_reward_zero_std", around(0.3, 60, 0.2), [0.9] * 30),
    "TruncationRising": lambda: series("completions/clipped_ratio", around(0.2, 60, 0.1), [0.7] * 20),
    "TrainInferenceMismatch": lambda: series(
        "sampling/sampling_logp_difference/mean", around(0.02, 90, 0.2), [0.2] * 20
    ),
    "KlBlowup": lambda: series(
        "actor/kl_loss", around(0.1, 90, 0.2), [0.1 * 1.1**step for step in range(60)], reward=1.0
    ),
    "RewardCollapse": lambda: series("reward", around(0.7, 120, 0.2), around(0.1, 60, 0.2)),
    "EntropyCollapse": lambda: series("entropy", around(0.6, 120, 0.1), around(0.05, 40, 0.1), reward=1.0),
    "SlowStep": slow,
    "ThroughputRegression": slower,
    "HostMemoryLeak": leak,
    "DataLoaderBottleneck": starved,
}


def main() -> None:
    """Run each training under the name of its alert; then wait for a line of standard input."""
    for alert in [one for one in sys.argv[1:] if one in TROUBLES] or TROUBLES.keys() - {"DataLoaderBottleneck"}:
        name = f"quiet-{alert}" if QUIET else alert
        trackside.init(name, id=name)
        for step, values in enumerate(TROUBLES[alert]()):
            trackside.push(
                {key: value for key, value in values.items() if key != "step"}, step=values.get("step", step)
            )
        trackside.finish()
    sys.stdout.write("done\n")
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    main()
