"""A simulated GPU at a moment: how busy it is and has been, its power, its clocks; what all its values follow from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.nvml.simulation.boards import Board

BUSY = 0.88
#: What makes the utilisation waver around BUSY: amplitude (their sum keeps it below 1) and period in seconds.
WAVES = ((0.06, 90.0), (0.04, 17.0), (0.015, 4.1))

THERMAL_LAG = 15.0
"""Seconds by which the temperature follows the power."""

RISE = 38.0
"""Degrees by which full use warms a GPU."""

SPEED = {"hot": 0.62, "throttled": 0.45}
"""Share of its clocks that a trouble leaves."""

CLOCK_STEP = 15
"""Megahertz."""


@dataclass(frozen=True)
class Moment:
    """One GPU at *now* seconds of a clock that only goes forward.

    Attributes:
        ails: Its troubles.
        begun: When the worker began that reads it.
    """

    board: Board
    index: int
    now: float
    ails: frozenset[str]
    begun: float = 0.0

    @cached_property
    def busy(self) -> float:
        """Its utilisation, from 0 to 1."""
        return utilization(self.index, self.now)

    @cached_property
    def worked(self) -> float:
        """Seconds of work from 0 to *now*: the integral of `busy`."""
        return busy_seconds(self.index, self.now)

    @property
    def seen(self) -> float:
        """Of these, those that the worker has seen: it sums them up itself, and each goes on where the last was left."""
        return self.worked - busy_seconds(self.index, self.begun)

    @cached_property
    def speed(self) -> float:
        """Share of the highest clocks."""
        return min((SPEED[trouble] for trouble in self.ails if trouble in SPEED), default=0.985)

    @property
    def power(self) -> float:
        """Watts."""
        return self.board.idle + self._work_power * self.busy

    @property
    def energy(self) -> float:
        """Joules from 0 to *now*: the integral of `power`."""
        return self.board.idle * self.now + self._work_power * self.worked

    @property
    def average_power(self) -> float:
        """Mean of `power` over the second before, in watts."""
        worked = self.worked - busy_seconds(self.index, self.now - 1.0)
        return self.board.idle + self._work_power * worked

    @cached_property
    def temperature(self) -> float:
        """Degrees Celsius."""
        before = utilization(self.index, self.now - THERMAL_LAG)
        if "hot" in self.ails:
            return self.board.slowdown + 8.0 * (before - BUSY)
        return self.board.cool + RISE * before + self.index % 4

    def clock(self, domain: str) -> float:
        """Hertz, in the steps that boards have; no trouble slows the memory."""
        highest = self.board.clocks[domain]
        return 1e6 * (highest if domain == "memory" else CLOCK_STEP * math.floor(highest * self.speed / CLOCK_STEP))

    @property
    def _work_power(self) -> float:
        return (self.board.busy - self.board.idle) * self.speed


def utilization(index: int, now: float) -> float:
    """Share of time in which the GPU works, from 0 to 1."""
    return BUSY + sum(size * math.sin(math.tau * now / period + index) for size, period in WAVES)


def busy_seconds(index: int, now: float) -> float:
    """The integral of `utilization` from 0 to *now*."""
    waves = (
        size * period / math.tau * (math.cos(index) - math.cos(math.tau * now / period + index))
        for size, period in WAVES
    )
    return BUSY * now + sum(waves)
