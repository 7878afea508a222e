"""Time the stages of the steps of a training that watches no model, as `Run.watch` does it.

In: the outermost modules, the optimizer whose steps count. Out: the hooks of `StepStages` on those that have parameters of it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from trackside.auto.models import trained
from trackside.pytorch.hooks import remove_all
from trackside.pytorch.overhead_budget import NEVER
from trackside.pytorch.replicas import Replicas
from trackside.pytorch.step_stages import StepStages

if TYPE_CHECKING:
    from trackside.auto.models import Models
    from trackside.row_queue import RowQueue

DEPTH = 2  # how often the parts of modules that nobody calls are timed in their place, as of an agent with two networks


class AutoStages(StepStages):
    """Times the steps until the training code watches a model or marks phases of its own.

    Args:
        queue: Queue of the run.
        models: The outermost modules.
        optimizer: The optimizer whose steps count.
    """

    def __init__(self, queue: RowQueue, models: Models, optimizer: Any) -> None:
        super().__init__(queue, None, optimizer)
        self._left = DEPTH
        outermost = models.of(optimizer)
        self._replicas = Replicas(queue, outermost, lambda work: work())
        for model in outermost:
            self.add_model(model)

    @property
    def is_alive(self) -> bool:
        """This was not stopped."""
        return not self.stopped

    @property
    def polls(self) -> bool:
        """GPUs have done something at pushes; that a step is over is reported by its optimizer."""
        return self._uses_gpus and not self.stopped

    def accompany(self) -> bool:
        """Leave the timing to `Run.watch`."""
        self.stop()
        return False

    def finish_step(self, number: int, optimizer: Any) -> int:
        """Note that *number* steps are finished; return at how many this must be called again."""
        if not self.stopped:
            self.step_finished(number)
        if number >= self._replicas.next_step:
            self._replicas.step_finished(number, optimizer)
        return min(self._replicas.next_step, NEVER if self.stopped else self.next_step)

    def stop(self) -> None:
        """Stop timing, and comparing the ranks."""
        self._replicas.stop()
        super().stop()

    def step_finished(self, number: int) -> None:
        """Decide whether the next step is timed; stop if the code marks phases."""
        if self._queue.session.has_own_phases:
            super().stop()
        elif self._left and self.is_timing and not self._was_called and not _has_compiled():
            self._left -= 1
            self._time_parts()
        self.poll()
        super().step_finished(number)

    def _time_parts(self) -> None:
        models = [model for reference in self._models if (model := reference()) is not None]
        optimizer = self._optimizers[0]()
        parts = [part for model in models for part in model.children()]
        if parts and optimizer is not None:
            remove_all(self._model_handles)
            self._models.clear()
            for part in trained(parts, optimizer):
                self.add_model(part)


def _has_compiled() -> bool:
    """Return whether this process has compiled code, which may call a model and none of its hooks."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return compiler is not None and any(compiler.counters.values())
