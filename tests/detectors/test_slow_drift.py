"""Steps that become slower bit by bit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from detectors.losses import column, found, one_by_one

from trackside_daemon.detectors.throughput import SlowDrift

if TYPE_CHECKING:
    from collections.abc import Callable


def _seconds(level: Callable[[int], float], count: int) -> list[float]:
    draw = random.Random(1)
    return [level(i) * (1 + abs(draw.gauss(0, 0.05))) for i in range(count)]


def test_a_training_that_grows_warm_is_one_info() -> None:
    seconds = column(_seconds(lambda i: 0.2 * (1 + 0.4 * min(1, i / 6000)), 12000))
    findings = found(SlowDrift(lost=1.0), seconds)
    assert [(one.alert, one.severity, one.over) for one in findings] == [
        ("ThroughputRegression", "info", False),
        ("ThroughputRegression", "info", True),
    ]
    assert 2000 < findings[0].at < 5000
    assert "they became slower bit by bit" in findings[0].text
    assert one_by_one(lambda: SlowDrift(lost=1.0), seconds) == findings


@pytest.mark.parametrize("at", [950, 1005, 3000])
def test_a_leap_is_no_drift(at: int) -> None:
    assert not found(SlowDrift(), column(_seconds(lambda i: 0.2 if i < at else 0.3, 8000)))


def test_a_drift_that_loses_less_than_a_second_is_not_reported() -> None:
    drift = column(_seconds(lambda i: 1e-4 * (1 + i / 6000), 8000))
    assert found(SlowDrift(), drift)
    assert not found(SlowDrift(lost=1.0), drift)


def test_steady_steps_are_quiet() -> None:
    assert not found(SlowDrift(), column(_seconds(lambda _: 0.2, 20000)))
