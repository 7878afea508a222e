"""A Trainer of Transformers seen from within: each step's own loss, its batch, and when it evaluates and saves.

Its callbacks are told none of that: what they get as the loss is a mean from which `logging_nan_inf_filter`, on by
default, has taken every NaN, and an evaluation or a checkpoint is told when it is over. So methods of the one Trainer that
trains are led through here, and given back afterwards. Nothing here needs the framework itself.
"""

from __future__ import annotations

from functools import partial, wraps
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from trackside.integrations.joined import tell
from trackside.log import warn

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from trackside.run import Run

_READABLE = frozenset(("cpu", "cuda"))
"""Devices whose tensors a push reads without waiting; on others, such as XLA's, each one would stop the training."""


class Seen:
    """One training of one Trainer.

    Args:
        run: Is told of phases and checkpoints.
        trainer: A `transformers.Trainer`.
    """

    def __init__(self, run: Run, trainer: Any) -> None:
        self._run, self._trainer = run, trainer
        self._values: dict[str, Any] = {}
        self._in_step = False
        self._source: Any = None
        self._waits: Any = None
        self._undo: list[Callable[[], None]] = []
        self._failed: set[str] = set()
        self._evaluation = run.phase("eval")
        self._forward, self._backward = run.phase("forward"), run.phase("backward")

    def begin(self) -> None:
        """Lead the methods through here; those that this version of Transformers does not have are left out."""
        trainer, accelerator = self._trainer, getattr(self._trainer, "accelerator", None)
        self._lead(trainer, "training_step", self._step)
        self._lead(trainer, "compute_loss", self._compute_loss)
        self._lead(trainer, "get_batch_samples", self._get_batches)
        self._lead(trainer, "evaluate", partial(_within, self._evaluation))
        self._lead(trainer, "predict", partial(_within, self._evaluation))
        self._lead(trainer, "_save_checkpoint", self._save)
        self._lead(accelerator, "backward", partial(_within, self._backward))
        self._lead(accelerator, "clip_grad_norm_", self._clip)

    def end(self) -> None:
        """Give the methods back."""
        while self._undo:
            self._undo.pop()()
        self._values, self._source, self._waits = {}, None, None

    def take(self) -> dict[str, Any]:
        """What the step that has ended has shown: ``loss`` and ``grad_norm``, on their device, ``samples``, ``tokens``."""
        values, self._values = self._values, {}
        return values

    def _lead(self, owner: Any, name: str, way: Callable[..., Any]) -> None:
        original = getattr(owner, name, None)
        if not callable(original):
            return
        before = vars(owner).get(name)
        led = wraps(original)(partial(way, original))
        setattr(owner, name, led)

        def undo() -> None:
            if vars(owner).get(name) is not led:  # another one has come on top, and goes on through ours
                return
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def _step(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """`training_step(model, inputs, …)`: forward and backward of one batch; its loss, as a part of the step's."""
        self._try("a batch", self._weigh, named.get("inputs", given[1] if len(given) > 1 else None))
        self._in_step = True
        try:
            loss = original(*given, **named)
        finally:
            self._in_step = False
        self._try("a step's loss", self._add, loss)
        return loss

    def _compute_loss(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if not self._in_step:  # an evaluation's
            return original(*given, **named)
        return _within(self._forward, original, *given, **named)

    def _get_batches(self, original: Callable[..., Any], batches: Any, *given: Any, **named: Any) -> Any:
        return original(self._timed(batches), *given, **named)

    def _clip(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Accelerate's `clip_grad_norm_`; of a DTensor's norm this rank has a part only, and Trainer logs the whole."""
        norm = original(*given, **named)
        if _is_readable(norm) and not hasattr(norm, "to_local"):
            self._values["grad_norm"] = norm
        return norm

    def _save(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with self._run.phase("checkpoint"):
            began = monotonic()
            result = original(*given, **named)
            seconds = monotonic() - began
            trial = named.get("trial", given[1] if len(given) > 1 else None)
            self._try("a checkpoint", self._tell, trial, seconds)
        return result

    def _tell(self, trial: Any, seconds: float) -> None:
        trainer = self._trainer
        if trainer.args.should_save:  # else another rank does
            folder = Path(trainer._get_output_dir(trial=trial)).absolute()  # noqa: SLF001
            tell(self._run, folder / f"checkpoint-{trainer.state.global_step}", seconds)

    def _timed(self, batches: Any) -> Any:
        """The same batches, with each wait timed; an epoch's are one and the same iterator."""
        if batches is not self._source:
            try:
                self._source, self._waits = batches, iter(self._run.data(batches))
            except Exception as error:  # noqa: BLE001  an iterator of the user's own may raise anything
                self._source, self._waits = batches, batches
                self._say("the waits for data", error)
        return self._waits

    def _weigh(self, inputs: Any) -> None:
        """Count a batch by the shapes of its tensors, which are known without waiting for a device."""
        if not hasattr(inputs, "items"):
            return
        rows = [value.shape[0] for value in inputs.values() if len(getattr(value, "shape", ()))]
        tokens = sum(value.numel() for key, value in inputs.items() if str(key).endswith("input_ids"))
        for key, amount in (("samples", rows[0] if rows else 0), ("tokens", tokens)):
            if amount:
                self._values[key] = self._values.get(key, 0) + amount

    def _add(self, loss: Any) -> None:
        """Sum the losses of a step, which are shares of its mean, as Trainer does."""
        if not _is_readable(loss):
            return
        before = self._values.get("loss")
        if before is not None:
            loss = before + loss
        elif self._trainer.args.gradient_accumulation_steps > 1:
            loss = loss.clone()  # a CUDA graph writes the next one into the same memory
        self._values["loss"] = loss

    def _try(self, what: str, look: Callable[..., None], *given: Any) -> None:
        try:
            look(*given)
        except Exception as error:  # noqa: BLE001  a Trainer of the user's own may hold anything, and training must go on
            self._say(what, error)

    def _say(self, what: str, error: Exception) -> None:
        if what not in self._failed:
            self._failed.add(what)
            warn(f"Transformers: {what} cannot be seen ({type(error).__name__}: {error}); training goes on")


def _within(phase: AbstractContextManager[Any], original: Callable[..., Any], *given: Any, **named: Any) -> Any:
    with phase:
        return original(*given, **named)


def _is_readable(value: Any) -> bool:
    device = getattr(value, "device", None)
    return isinstance(value, float | int) if device is None else getattr(device, "type", "") in _READABLE
