"""First trainings of newcomers: a small network that learns random linear data to near zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from trackside_daemon.detectors.base import Column
from trackside_daemon.detectors.rank_detectors import RankDetectors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trackside_daemon.detectors.base import Found

SECONDS = 0.005
"""Duration of a step."""


def losses(steps: int, seed: int, rate: float) -> list[float]:
    """Return the losses of a network of 64, 256 and 1 units, by Adam with clipped gradients, in batches of 32."""
    draw = np.random.default_rng(seed)
    data = draw.normal(size=(1024, 64))
    target = data @ draw.normal(size=64)
    weights = [draw.normal(size=(64, 256)) / 8, np.zeros(256), draw.normal(size=256) / 16]
    means, squares = ([np.zeros_like(one) for one in weights] for _ in range(2))
    found = []
    for step in range(1, steps + 1):
        batch = draw.integers(0, 1024, 32)
        hidden = np.maximum(data[batch] @ weights[0] + weights[1], 0)
        error = hidden @ weights[2] - target[batch]
        found.append(float(np.mean(error**2)))
        back = np.outer(error, weights[2]) * (hidden > 0) / 16
        gradients = [data[batch].T @ back, back.sum(0), hidden.T @ error / 16]
        norm = float(np.sqrt(sum(np.sum(one**2) for one in gradients)))
        for at, gradient in enumerate(one / max(1.0, norm) for one in gradients):
            means[at] = 0.9 * means[at] + 0.1 * gradient
            squares[at] = 0.999 * squares[at] + 0.001 * gradient**2
            size = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            weights[at] -= size * means[at] / (np.sqrt(squares[at]) + 1e-8)
    return found


def detect(values: Sequence[float]) -> list[Found]:
    """Return the detections in losses that notify people."""
    steps = range(len(values))
    found = RankDetectors().evaluate({"loss": Column(steps, [SECONDS * step for step in steps], values)})
    return [one for one in found if one.finding.severity != "info" and not one.finding.over]


@pytest.mark.parametrize("rate", [1e-3, 3e-3, 1e-2])
def test_healthy_ones_raise_no_notification(rate: float, count: Callable[[int, int], int]) -> None:
    for seed in range(count(2, 12)):
        assert detect(losses(1000, seed, rate)) == []


def test_a_fault_notifies_of_itself() -> None:
    values = losses(1200, 0, 1e-3)
    assert {one.finding.alert for one in detect([*values[:600], float("nan"), *values[600:]])} == {"NonFinite"}
    diverging = [*values, *(values[-1] + values[0] * 1.01**step / 200 for step in range(600))]
    assert [(one.finding.alert, one.finding.severity) for one in detect(diverging)] == [
        ("LossDiverging", "warning"),
        ("LossDiverging", "critical"),
    ]
