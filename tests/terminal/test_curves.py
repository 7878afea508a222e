"""The curves of the terminal dashboard."""

from __future__ import annotations

from math import exp
from typing import Any

from trackside_daemon.terminal.plot import LEAST_POINTS, loss_curve


def series(values: list[float]) -> list[dict[str, Any]]:
    points = [[step, float(step), value, value, value] for step, value in enumerate(values)]
    return [{"key": "loss", "attempt": 0, "rank": 0, "points": points}]


def test_a_loss_that_has_fallen_much_is_drawn_on_its_last_half() -> None:
    fallen = loss_curve(series([2 + 9 * exp(-step / 8) for step in range(100)]), {})
    assert (fallen.points[0].step, fallen.points[-1].step) == (50, 99)
    assert "last half" in fallen.title
    for values in ([5.0 - step / 100 for step in range(100)], [9.0, *([2.0] * (LEAST_POINTS - 2))]):
        assert len(loss_curve(series(values), {}).points) == len(values)
