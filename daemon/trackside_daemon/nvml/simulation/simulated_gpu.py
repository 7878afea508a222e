"""State of a simulated GPU at one moment, from which all its values follow: its work, power, temperature and clocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trackside_daemon.nvml.simulation.boards import Board

MEAN_UTILIZATION = 0.88
# Waves of the utilization around its mean: amplitudes, whose sum keeps it below 1, and periods in seconds.
WAVES = ((0.06, 90.0), (0.04, 17.0), (0.015, 4.1))

THERMAL_LAG = 15.0  # seconds by which the temperature follows the power
TEMPERATURE_RISE = 38.0  # degrees by which full utilization warms a GPU
FAULT_SPEED = {"hot": 0.62, "throttled": 0.45}  # fraction of its clocks that a GPU keeps with a fault
HEALTHY_SPEED = 0.985

CLOCK_STEP = 15  # megahertz


@dataclass(frozen=True)
class SimulatedGpu:
    """One GPU at *now* seconds of a monotonic clock.

    Attributes:
        faults: Faults of the GPU.
        worker_start: Start of the worker that reads it, by the same clock.
    """

    board: Board
    index: int
    now: float
    faults: frozenset[str]
    worker_start: float = 0.0

    @cached_property
    def utilization(self) -> float:
        """Utilization, from 0 to 1."""
        return utilization(self.index, self.now)

    @cached_property
    def busy_seconds(self) -> float:
        """Seconds of work from 0 to *now*: the integral of `utilization`."""
        return busy_seconds(self.index, self.now)

    @property
    def worker_busy_seconds(self) -> float:
        """Seconds of work since the worker's start, from which a worker sums them up."""
        return self.busy_seconds - busy_seconds(self.index, self.worker_start)

    @cached_property
    def speed(self) -> float:
        """Fraction of the maximum clocks."""
        return min((FAULT_SPEED[fault] for fault in self.faults if fault in FAULT_SPEED), default=HEALTHY_SPEED)

    @property
    def power(self) -> float:
        """Power draw in watts."""
        return self.board.idle + self._work_power * self.utilization

    @property
    def energy(self) -> float:
        """Joules from 0 to *now*: the integral of `power`."""
        return self.board.idle * self.now + self._work_power * self.busy_seconds

    @property
    def average_power(self) -> float:
        """Mean of `power` over the last second, in watts."""
        busy = self.busy_seconds - busy_seconds(self.index, self.now - 1.0)
        return self.board.idle + self._work_power * busy

    @cached_property
    def temperature(self) -> float:
        """Temperature in degrees Celsius."""
        lagged = utilization(self.index, self.now - THERMAL_LAG)
        if "hot" in self.faults:
            return self.board.slowdown + 8.0 * (lagged - MEAN_UTILIZATION)
        return self.board.cool + TEMPERATURE_RISE * lagged + self.index % 4

    def clock(self, domain: str) -> float:
        """Return a clock in hertz, in the steps that boards have; faults do not slow down the memory."""
        maximum = self.board.clocks[domain]
        return 1e6 * (maximum if domain == "memory" else CLOCK_STEP * math.floor(maximum * self.speed / CLOCK_STEP))

    @property
    def _work_power(self) -> float:
        return (self.board.busy - self.board.idle) * self.speed


def utilization(index: int, now: float) -> float:
    """Return the fraction of time in which the GPU works, from 0 to 1."""
    return MEAN_UTILIZATION + sum(size * math.sin(math.tau * now / period + index) for size, period in WAVES)


def busy_seconds(index: int, now: float) -> float:
    """Return the integral of `utilization` from 0 to *now*."""
    waves = (
        size * period / math.tau * (math.cos(index) - math.cos(math.tau * now / period + index))
        for size, period in WAVES
    )
    return MEAN_UTILIZATION * now + sum(waves)
