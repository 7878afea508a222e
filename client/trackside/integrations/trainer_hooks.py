"""A Trainer of Transformers seen from within: each step's own loss, its batch, and when it evaluates and saves.

Its callbacks are told none of that: what they get as the loss is a mean from which `logging_nan_inf_filter`, on by
default, has taken every NaN, and an evaluation or a checkpoint is told when it is over. So methods of the one Trainer that
trains are led through here: until the training is over, evaluation until another one begins. Nothing here needs the
framework itself.
"""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackside.integrations.method_patch import MethodPatch
from trackside.integrations.run_adapter import failed, saved, told

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from trackside.run import Run


class TrainerHooks:
    """One training of one Trainer.

    Args:
        run: Is told of phases and checkpoints.
        trainer: A `transformers.Trainer`; it is not kept alive.
    """

    def __init__(self, run: Run, trainer: Any) -> None:
        self._run, self._trainer = run, weakref.proxy(trainer)
        self._values: dict[str, Any] = {}
        self._accumulates = trainer.args.gradient_accumulation_steps > 1
        self._source: Any = None
        self._waits: Any = None
        self._led: list[weakref.ref[MethodPatch]] = []
        self._evaluating: list[weakref.ref[MethodPatch]] = []
        self._evaluation = run.phase("eval")

    def begin(self) -> None:
        """Lead the methods through here; those that this version of Transformers does not have are left out."""
        trainer, accelerator = self._trainer, getattr(self._trainer, "accelerator", None)
        evaluates = partial(_within, self._evaluation)
        self._led = [
            *_led(trainer, "training_step", self._step),
            *_led(trainer, "get_batch_samples", self._get_batches),
            *_led(trainer, "_save_checkpoint", self._save),
            *_led(accelerator, "clip_grad_norm_", self._clip),
        ]
        self._evaluating = [*_led(trainer, "evaluate", evaluates), *_led(trainer, "predict", evaluates)]

    def rest(self) -> None:
        """The training is over: give its methods back. What is evaluated after it is still an evaluation."""
        self._give_back(self._led)
        self._values, self._source, self._waits = {}, None, None

    def end(self) -> None:
        """Give all methods back."""
        self.rest()
        self._give_back(self._evaluating)

    def take(self) -> dict[str, Any]:
        """What the step that has ended has shown: ``loss`` and ``grad_norm``, on their device, ``samples``, ``tokens``."""
        values, self._values = self._values, {}
        return values

    def _give_back(self, led: list[weakref.ref[MethodPatch]]) -> None:
        while led:
            if (one := led.pop()()) is not None:
                told("Transformers: a method", one.give_back)

    def _step(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """`training_step(model, inputs, …)`: forward and backward of one batch; its loss, as a part of the step's."""
        loss = original(*given, **named)
        try:
            self._weigh(named.get("inputs", given[1] if len(given) > 1 else None))
            self._add(loss)
        except Exception as error:  # noqa: BLE001  as `told`, with a call less in each batch
            failed("Transformers: a step", error)
        return loss

    def _get_batches(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """`get_batch_samples(epoch_iterator, …)`: an epoch's batches come from one iterator, whose waits are timed."""
        if given and given[0] is not self._source and hasattr(given[0], "__next__"):
            told("Transformers: the waits for data", self._begin_epoch, given[0])
        if given and given[0] is self._source:
            given = (self._waits, *given[1:])
        return original(*given, **named)

    def _begin_epoch(self, batches: Any) -> None:
        self._waits = iter(self._run.data(batches))
        self._source = batches

    def _clip(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Accelerate's `clip_grad_norm_`; of a DTensor's norm this rank has a part only, and Trainer logs the whole."""
        norm = original(*given, **named)
        if _is_readable(norm) and not hasattr(norm, "to_local"):
            self._values["grad_norm"] = norm
        return norm

    def _save(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        trial = named.get("trial", given[1] if len(given) > 1 else None)
        tells = bool(getattr(self._trainer.args, "should_save", False))  # else another rank does
        return saved(self._run, lambda: original(*given, **named), lambda _: self._folder(trial), tells=tells)

    def _folder(self, trial: Any) -> Path:
        folder = Path(self._trainer._get_output_dir(trial=trial)).absolute()  # noqa: SLF001
        return folder / f"checkpoint-{self._trainer.state.global_step}"

    def _weigh(self, inputs: Any) -> None:
        """Count a batch by the shapes of its tensors, which are known without waiting for a device."""
        if not hasattr(inputs, "items"):
            return
        rows = tokens = 0
        for key, value in inputs.items():
            rows = rows or next(iter(getattr(value, "shape", ())), 0)
            if str(key).endswith("input_ids"):
                tokens += value.numel()
        values = self._values
        if rows:
            values["samples"] = values.get("samples", 0) + rows
        if tokens:
            values["tokens"] = values.get("tokens", 0) + tokens

    def _add(self, loss: Any) -> None:
        """Sum the losses of a step, which are shares of its mean, as Trainer does."""
        if not _is_readable(loss):
            return
        before = self._values.get("loss")
        if before is not None:
            loss = before + loss
        elif self._accumulates:
            loss = loss.clone()  # a CUDA graph writes the next one into the same memory
        self._values["loss"] = loss


def _led(owner: Any, name: str, way: Callable[..., Any]) -> list[weakref.ref[MethodPatch]]:
    """Lead a method, which its owner holds then; empty when there is none."""
    if not callable(getattr(owner, name, None)):
        return []
    led = told(f"Transformers: {name}", MethodPatch, owner, name, way)
    return [] if led is None else [weakref.ref(led)]


def _within(phase: AbstractContextManager[Any], original: Callable[..., Any], *given: Any, **named: Any) -> Any:
    with phase:
        return original(*given, **named)


def _is_readable(value: Any) -> bool:
    is_cpu = getattr(value, "is_cpu", None)
    return isinstance(value, float | int) if is_cpu is None else bool(is_cpu or value.is_cuda)
