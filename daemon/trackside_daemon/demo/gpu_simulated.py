"""What the GPU of a simulated rank would tell if the model were watched: its time by phase, and PyTorch's memory."""

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
BUSY = 0.95
"""Of a phase's time on the host; the rest is launches."""

STATE_BYTES = 18
"""Of a parameter: it, its gradient and Adam's moments, in mixed precision."""

ACTIVATION_BYTES, HELD = 2**21, 1.15
"""Of a token; and how much more than all that PyTorch holds."""


class Gpu:
    """The one of a rank.

    Args:
        run: Is told.
        number: Which of the machine.
        model: Whose work it does.
    """

    def __init__(self, run: Run, number: int, model: Model) -> None:
        self._run, self._uuid, self._random = run, uuid(number), model.random
        self._state, self._activations = STATE_BYTES * model.size, ACTIVATION_BYTES * model.tokens
        self._peak = 0

    def step(self) -> None:
        """One step is done."""
        allocated = self._state + round(self._activations * self._random.uniform(0.9, 1.0))
        self._peak = max(self._peak, allocated)
        spent = {phase: BUSY * seconds * self._random.uniform(0.98, 1.02) for phase, seconds in PHASES.items()}
        memory = {self._uuid: Memory(self._state, round(HELD * self._peak), self._peak)}
        self._run._tell(monotonic_ns(), Device(phases=spent, memory=memory))  # noqa: SLF001  as a watched model does
