"""Measurements of a simulated rank's GPU, as PyTorch would give them for a watched model: time by phase, and memory."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from trackside.wire import Device, Memory
from trackside_daemon.demo.model_simulated import BACKWARD, FORWARD, OPTIMIZER
from trackside_daemon.nvml.simulation.simulate import uuid

if TYPE_CHECKING:
    from trackside.run import Run
    from trackside_daemon.demo.model_simulated import Model

PHASES = {"forward": FORWARD, "backward": BACKWARD, "optimizer": OPTIMIZER}
BUSY = 0.95  # fraction of a phase's time on the host; the rest is kernel launches
STATE_BYTES = 18  # bytes per parameter in mixed precision: the parameter, its gradient and Adam's moments
ACTIVATION_BYTES = 2**21  # bytes per token
RESERVED = 1.15  # memory that PyTorch reserves, divided by the peak of allocated memory


class SimulatedRankGpu:
    """Simulated GPU of one rank.

    Args:
        run: Run to report the measurements to.
        index: Index of the GPU on this machine.
        model: Model that it trains.
    """

    def __init__(self, run: Run, index: int, model: Model) -> None:
        self._run = run
        self._uuid = uuid(index)
        self._random = model.random
        self._state = STATE_BYTES * model.size
        self._activations = ACTIVATION_BYTES * model.tokens
        self._peak = 0

    def step(self) -> None:
        """Report the measurements of one step."""
        allocated = self._state + round(self._activations * self._random.uniform(0.9, 1.0))
        self._peak = max(self._peak, allocated)
        phases = {phase: BUSY * seconds * self._random.uniform(0.98, 1.02) for phase, seconds in PHASES.items()}
        memory = {self._uuid: Memory(self._state, round(RESERVED * self._peak), self._peak)}
        if self._run.is_open:
            self._run.queue.append(monotonic_ns(), Device(phases=phases, memory=memory))  # as a watched model does
