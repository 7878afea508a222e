"""Hooks inside a Trainer of Transformers: each step's own loss and batch, and its evaluations and checkpoints.

A Trainer's callbacks get none of that. Their loss is a mean from which `logging_nan_inf_filter`, on by default, has removed
every NaN, and they run after an evaluation or a checkpoint is over. So methods of the one Trainer that trains are patched:
until the training is over, those for evaluation until the next training begins. Nothing here imports the framework.
"""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trackside.integrations.method_patch import MethodPatch
from trackside.integrations.run_adapter import guarded, save_checkpoint, warn_failed

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from trackside.run import Run


_TOKENS = ("input_ids", "prompt_ids", "completion_ids")  # ends of the keys of a batch that have tokens


class TrainerHooks:
    """Hooks of one training of one Trainer.

    Args:
        run: Run that gets the phases and checkpoints.
        trainer: A `transformers.Trainer`. It is not kept alive.

    Attributes:
        values: Those of the step so far: ``loss`` and ``grad_norm``, on their device, ``samples``, ``tokens``.
    """

    def __init__(self, run: Run, trainer: Any) -> None:
        self._run = run
        self._trainer = weakref.proxy(trainer)
        self.values: dict[str, Any] = {}
        self._accumulates = trainer.args.gradient_accumulation_steps > 1
        self._is_unprepared = False
        self._source: Any = None
        self._timed_source: Any = None
        self._training: list[weakref.ref[MethodPatch]] = []
        self._evaluating: list[weakref.ref[MethodPatch]] = []
        self._evaluation = run.phase("eval")

    def begin(self) -> None:
        """Patch the methods; those that this version of Transformers does not have are left out."""
        trainer, accelerator = self._trainer, getattr(self._trainer, "accelerator", None)
        evaluates = partial(_within, self._evaluation)
        generates, rewards = (partial(_within, self._run.phase(name)) for name in ("generate", "reward"))
        self._training = [
            *_patch(trainer, "training_step", self._step),
            *_patch(trainer, "get_batch_samples", self._get_batches),
            *_patch(trainer, "_save_checkpoint", self._save),
            *_patch(accelerator, "clip_grad_norm_", self._clip),
            # TRL's GRPO and its kin. Its older versions compute the rewards where they generate.
            *_patch(trainer, "_generate_and_score_completions", generates),
            *_patch(trainer, "_calculate_rewards", rewards),
        ]
        if hasattr(trainer, "_generate_and_score_completions"):
            self._training += _patch(trainer, "_prepare_inputs", self._prepare)
        self._evaluating = [*_patch(trainer, "evaluate", evaluates), *_patch(trainer, "predict", evaluates)]

    def end_training(self) -> None:
        """Restore the methods of the training. Those for evaluation stay: a later evaluation still counts as one."""
        self._restore(self._training)
        self.values, self._source, self._timed_source = {}, None, None

    def end(self) -> None:
        """Restore all methods."""
        self.end_training()
        self._restore(self._evaluating)

    def _restore(self, patches: list[weakref.ref[MethodPatch]]) -> None:
        while patches:
            if (patch := patches.pop()()) is not None:
                guarded("Transformers: a method", patch.restore)

    def _step(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Run `training_step(model, inputs, …)`, the forward and backward of one batch, and add its loss."""
        inputs = named.get("inputs", given[1] if len(given) > 1 else None)
        self._is_unprepared = isinstance(inputs, list)
        loss = original(*given, **named)
        try:
            self._count_batch(inputs)
            if _is_readable(loss):
                values = self.values
                if "loss" in values:  # the losses of a step are shares of its mean, as Trainer has them
                    values["loss"] = values["loss"] + loss
                else:  # a CUDA graph writes the next one into the same memory
                    values["loss"] = loss.clone() if self._accumulates else loss
        except Exception as error:  # noqa: BLE001  as `guarded`, with a call less in each batch
            warn_failed("Transformers: a step", error)
        return loss

    def _prepare(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Run `_prepare_inputs(inputs)`, which makes the batch of a step from a list of prompts, and count that batch."""
        inputs = original(*given, **named)
        if self._is_unprepared:
            self._is_unprepared = False
            guarded("Transformers: a batch", self._count_batch, inputs)
        return inputs

    def _get_batches(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Run `get_batch_samples(epoch_iterator, …)` with a timed iterator; each epoch has one iterator."""
        if given and given[0] is not self._source and hasattr(given[0], "__next__"):
            guarded("Transformers: the waits for data", self._begin_epoch, given[0])
        if given and given[0] is self._source:
            given = (self._timed_source, *given[1:])
        return original(*given, **named)

    def _begin_epoch(self, batches: Any) -> None:
        self._timed_source = iter(self._run.data(batches))
        self._source = batches

    def _clip(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Run Accelerate's `clip_grad_norm_`; of a DTensor's norm a rank has only a part, so Trainer's log counts."""
        norm = original(*given, **named)
        if _is_readable(norm) and not hasattr(type(norm), "to_local"):
            self.values["grad_norm"] = norm
        return norm

    def _save(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        trial = named.get("trial", given[1] if len(given) > 1 else None)
        reports = bool(getattr(self._trainer.args, "should_save", False))  # else another rank does
        return save_checkpoint(
            self._run, lambda: original(*given, **named), lambda _: self._folder(trial), reports=reports
        )

    def _folder(self, trial: Any) -> Path:
        folder = Path(self._trainer._get_output_dir(trial=trial)).absolute()  # noqa: SLF001  a trial's has no public name
        return folder / f"checkpoint-{self._trainer.state.global_step}"

    def _count_batch(self, inputs: Any) -> None:
        """Count a batch by the shapes of its tensors, which are known without waiting for a device."""
        if not hasattr(inputs, "items"):
            return
        rows = tokens = 0
        for key, value in inputs.items():
            if not rows and (shape := getattr(value, "shape", ())):
                rows = shape[0]
            if str(key).endswith(_TOKENS):
                tokens += value.numel()
        values = self.values
        if rows:
            values["samples"] = values.get("samples", 0) + rows
        if tokens:
            values["tokens"] = values.get("tokens", 0) + tokens


def _patch(owner: Any, name: str, replacement: Callable[..., Any]) -> list[weakref.ref[MethodPatch]]:
    """Patch a method and return the patch, which its owner keeps alive; empty if there is no such method."""
    if not callable(getattr(owner, name, None)):
        return []
    patch = guarded(f"Transformers: {name}", MethodPatch, owner, name, replacement)
    return [] if patch is None else [weakref.ref(patch)]


def _within(phase: AbstractContextManager[Any], original: Callable[..., Any], *given: Any, **named: Any) -> Any:
    with phase:
        return original(*given, **named)


def _is_readable(value: Any) -> bool:
    is_cpu = getattr(value, "is_cpu", None)
    return isinstance(value, float | int) if is_cpu is None else bool(is_cpu or value.is_cuda)
