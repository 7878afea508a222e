"""Transformers: ``Trainer(…, callbacks=[TracksideCallback()])``, also for subclasses of `Trainer`.

Importing this module also registers ``report_to="trackside"`` with Transformers.
"""

from __future__ import annotations

import inspect
from threading import get_ident
from typing import TYPE_CHECKING, Any

from transformers import Trainer, TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK

from trackside.integrations.epoch_line import EpochLine, ResourceLine
from trackside.integrations.run_adapter import RunAdapter, begin_watch, guarded, never_raises, resume_by, warn_failed
from trackside.integrations.trainer_hooks import TrainerHooks
from trackside.packing import text_of
from trackside.pytorch.step_stages import StepStages
from trackside.training_log import warn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trackside.run import Run

# Keys of Trainer's log that are not pushed: trackside's counters have the rates, and its phases the times.
_NO_SERIES = frozenset(("train_runtime", "train_loss", "total_flos", "num_input_tokens_seen"))
_NO_SERIES_ENDS = ("_runtime", "_per_second", "_preparation_time", "_compilation_time")


class TracksideCallback(TrainerCallback):
    """Pushes what a `Trainer` does, on every rank.

    The callback joins the open run. Without one it opens a run, named by ``TrainingArguments(run_name=…)``, with the
    arguments and the model's configuration. Such a run ends with the process, so that it includes what follows the
    training. In a notebook and in a hyperparameter search it ends with the training.

    Each step pushes ``loss``, ``grad_norm``, ``samples`` and ``tokens`` of this rank. Each logging step pushes Trainer's
    log from rank 0: the mean loss as ``loss_logged``, ``eval_loss`` as ``eval/loss``.

    Args:
        watch: Also watch the model, as `trackside.watch` does; ``"distributions"`` with distributions of weights
            and gradients; a mapping has arguments of `trackside.observe`, such as ``{"activations": "*.mlp"}``.
        profile: Plan of profiles for a run that this opens, as for `trackside.init`.
        epoch_line: Write a line for each epoch to standard error, on rank 0, and push ``throughput_efficiency``.
        resource_line: Write a line of the use of GPU, CPU and memory after so many steps, on rank 0; 0 for none.

    Attributes:
        is_carried: Checkpoints carry the run, so that a resume continues it.
        yields: Another of these in the same Trainer pushes instead.
        adapter_kind: Opens the run.
    """

    is_carried = True
    yields = False
    adapter_kind = RunAdapter

    def __init__(
        self,
        *,
        watch: bool | str | Mapping[str, Any] = False,
        profile: Mapping[str, Any] | None = None,
        epoch_line: bool = False,
        resource_line: int = 0,
    ) -> None:
        self._line = EpochLine() if epoch_line else None
        self._resources = ResourceLine(resource_line) if resource_line else None
        self._watches = watch
        self._profile = profile
        self._adapter: RunAdapter | None = None
        self._run: Run | None = None
        self._hooks: TrainerHooks | None = None
        self._watcher: Any = None
        self._stages: StepStages | None = None
        self._pushed: dict[str, Any] = {}
        self._tokens: int | None = None

    @never_raises
    def on_train_begin(self, args: Any, state: Any, _control: Any, model: Any = None, **_: Any) -> None:
        """Open the run."""
        self._leave()
        trainer = _trainer()
        if trainer is not None and _first(trainer) is not self:  # registered by report_to and by callbacks
            return
        _end_failed()
        total = state.max_steps if state.max_steps > 0 else None
        self._adapter = self.adapter_kind(
            _name(args, state), {"config": _config(args, model), "total_steps": total, "profile": self._profile}
        )
        carried = state.stateful_callbacks  # saved with the state: of a resumed checkpoint it has the checkpoint's run
        if not state.is_hyper_param_search:  # a trial that continues another's checkpoint is a run of its own
            self._adapter.resume(carried.get("trackside"))
        run = self._adapter.open()
        if not run.is_open:
            return
        if self.is_carried:
            carried["trackside"] = self._adapter.state()
        _training[get_ident()] = self._adapter
        self._run, self._pushed = run, {}
        # Trainer's own count can exclude padding.
        counts = getattr(args, "include_num_input_tokens_seen", "no") not in {"no", False}
        self._tokens = state.num_input_tokens_seen if counts else None
        if state.global_step:
            run.event("resume", step=state.global_step)
        if trainer is None:
            warn("Transformers: no Trainer calls this callback, so that it pushes only what is logged")
            return
        self._hooks = TrainerHooks(run, trainer)
        self._hooks.begin()
        if self._watches and not getattr(trainer, "is_deepspeed_enabled", False):
            self._watcher = begin_watch(run, trainer.model_wrapped, trainer.optimizer, self._watches)
            return
        if self._watches:
            warn("Transformers: watch does not support DeepSpeed, and measures nothing")
        self._stages = StepStages(run.queue, trainer.model_wrapped, trainer.optimizer)
        run.queue.register(self._stages)

    @never_raises
    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Begin the epoch's line."""
        if self._line is not None:
            self._line.begin()

    @never_raises
    def on_epoch_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Write the epoch's line."""
        if self._line is not None and self._run is not None:
            self._run.push(throughput_efficiency=self._line.efficiency, step=state.global_step)
            if state.is_world_process_zero:
                self._line.write(round(state.epoch or 0, 2))

    # `never_raises` costs as much as what most of these do, so what each step calls goes without.
    def on_step_begin(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
        """End the wait for the batches of a step, and write the line of resources."""
        if self._resources is not None and self._run is not None and state.is_world_process_zero:
            guarded("the line of resources", self._resources.count)
        if self._line is not None:
            guarded("the epoch line", self._line.began)

    @never_raises
    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """Leave an evaluation out of the waits for data."""
        if self._line is not None:
            self._line.pause()

    on_save = on_evaluate

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """End the optimizer stage."""
        if self._stages is not None and self._stages.is_timing:
            self._stages.optimizer_stepped()

    def on_step_end(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Push one step's numbers, whether the step is logged or not."""
        if self._run is not None:
            try:
                values: dict[str, Any] = {}
                if (hooks := self._hooks) is not None:
                    values, hooks.values = hooks.values, values
                if self._tokens is not None:
                    values["tokens"] = (state.num_input_tokens_seen - self._tokens) / max(1, args.world_size)
                    self._tokens = state.num_input_tokens_seen
                if self._line is not None:
                    self._line.stepped(values.get("samples", 0))
                self._pushed = values
                self._run.queue.push(None, state.global_step, values)
                if self._stages is not None and state.global_step >= self._stages.next_step:
                    self._stages.step_finished(state.global_step)
            except Exception as error:  # noqa: BLE001  as `never_raises`
                warn_failed("TracksideCallback.on_step_end", error)

    @never_raises
    def on_log(self, _args: Any, state: Any, _control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Push what Trainer logs, from rank 0, since it is the same on all ranks."""
        if self._run is None or not logs or not state.is_world_process_zero:
            return
        values = {_key(key): value for key, value in logs.items() if _is_series(key)}
        if "loss" in self._pushed and "loss" in values:
            values["loss_logged"] = values.pop("loss")
        if "grad_norm" in self._pushed:
            values.pop("grad_norm", None)
        if values.keys() - {"epoch"}:
            self._run.push(values, step=state.global_step)

    @never_raises
    def on_train_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
        """End the training; later evaluations and checkpoints belong to the run, which ends with the process."""
        if self._adapter is None or self._run is None:
            return
        _training.pop(get_ident(), None)
        if state.is_hyper_param_search:
            self._adapter.end()
        else:
            self._adapter.rest()
        if not self._run.is_open:
            self._leave()
            return
        if self._hooks is not None:
            self._hooks.end_training()
        self._stop_watching()

    def __getstate__(self) -> dict[str, Any]:
        """Return the initial state: a search that spawns processes may pickle the Trainer with this callback."""
        return {**vars(self), "_adapter": None, "_run": None, "_hooks": None, "_watcher": None, "_stages": None}

    def _leave(self) -> None:
        self._stop_watching()
        if self._hooks is not None:
            self._hooks.end()
        self._adapter = self._run = self._hooks = None

    def _stop_watching(self) -> None:
        for part in (self._watcher, self._stages):
            if part is not None:
                part.stop()
        self._watcher = self._stages = None


def _trainer() -> Any:
    """Return the Trainer whose training begins, from the callers of the callback; None if there is none."""
    frame = inspect.currentframe()  # callbacks get everything but their Trainer
    while frame is not None:
        if isinstance(trainer := frame.f_locals.get("self"), Trainer):
            return trainer
        frame = frame.f_back
    return None


def _first(trainer: Any) -> TracksideCallback | None:
    ours = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, TracksideCallback)]
    return min(ours, key=lambda callback: callback.yields, default=None)


def _name(args: Any, state: Any) -> str | None:
    """Return the trial's name in a search, else the user's; older versions default to the output directory."""
    if state.trial_name:
        return str(state.trial_name)
    return None if args.run_name in {None, "", args.output_dir} else str(args.run_name)


def _config(args: Any, model: Any) -> dict[str, Any]:
    """Return the arguments that are set, without secrets, the model's configuration and its number of parameters."""
    config: dict[str, Any] = {}
    try:
        _describe(args, model, config)
    except Exception as error:  # noqa: BLE001  a model of the user's own may raise anything
        warn(f"Transformers: not all of the configuration can be read ({type(error).__name__}: {text_of(error)})")
    return config


def _describe(args: Any, model: Any, config: dict[str, Any]) -> None:
    config.update((key, value) for key, value in args.to_dict().items() if value is not None)
    of_model = getattr(model, "config", None)
    if of_model is not None and hasattr(of_model, "to_dict"):
        config["model"] = of_model.to_dict()
    if hasattr(model, "parameters"):
        # DeepSpeed's third stage leaves nothing of a parameter but ds_numel.
        config["parameters"] = sum(getattr(one, "ds_numel", 0) or one.numel() for one in model.parameters())


def _key(key: str) -> str:
    for prefix in ("eval", "test"):
        if key.startswith(f"{prefix}_"):
            return f"{prefix}/{key[len(prefix) + 1 :]}"
    return key


def _end_failed() -> None:
    """End the runs of trainings that ended by an exception, but not of those that go on beside this one."""
    for thread, last in [*_training.items()]:
        if last.is_of_thread(thread):
            _training.pop(thread, None)
            last.end(status="failed")


def _is_series(key: str) -> bool:
    return key not in _NO_SERIES and not key.endswith(_NO_SERIES_ENDS)


_training: dict[int, RunAdapter] = {}
"""The run of a training that has begun and has not ended, by thread."""

INTEGRATION_TO_CALLBACK.setdefault("trackside", TracksideCallback)


resume_by(Trainer, "train", "resume_from_checkpoint", lambda trainer: [trainer.args.output_dir])
