"""Trainer of Transformers, and its subclasses: ``Trainer(…, callbacks=[TracksideCallback()])``.

Importing this module also makes ``report_to="trackside"`` known to Transformers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from transformers import Trainer, TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK

from trackside.integrations.run_adapter import RunAdapter, harmless
from trackside.integrations.trainer_hooks import TrainerHooks
from trackside.log import warn
from trackside.pytorch.step_stages import StepStages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from trackside.run import Run

_NO_SERIES = frozenset(("train_runtime", "train_loss", "total_flos", "num_input_tokens_seen"))
_NO_SERIES_ENDS = ("_runtime", "_per_second", "_preparation_time", "_compilation_time")
"""What Trainer logs of itself: its rates are those of counters, and its times those of phases."""


class TracksideCallback(TrainerCallback):
    """Tells trackside what a `Trainer` does, on every rank.

    It joins the run that is open, or else opens one, named by ``TrainingArguments(run_name=…)``, with the arguments and
    the model's configuration. Such a run ends with the process, so that what comes after the training is a part of it;
    in a notebook, and in a search for hyperparameters, with the training.

    Each step brings ``loss``, ``grad_norm``, ``samples`` and ``tokens`` of this rank; each logging step what Trainer logs,
    from rank 0: the mean loss as ``loss_logged``, ``eval_loss`` as ``eval/loss``.

    Args:
        watch: Watch the model too, as `trackside.watch` does.
    """

    def __init__(self, *, watch: bool = False) -> None:
        self._watches = watch
        self._joined: RunAdapter | None = None
        self._run: Run | None = None
        self._seen: TrainerHooks | None = None
        self._watcher: Any = None
        self._stages: StepStages | None = None
        self._told: dict[str, Any] = {}
        self._tokens: int | None = None

    @harmless
    def on_train_begin(self, args: Any, state: Any, _control: Any, model: Any = None, **_: Any) -> None:
        """Open the run."""
        self._leave()
        trainer = _trainer()
        if trainer is not None and _first(trainer) is not self:  # by report_to and by callbacks
            return
        while _training:  # it has ended by an exception
            _training.pop().end(status="failed")
        total = state.max_steps if state.max_steps > 0 else None
        self._joined = RunAdapter(_name(args, state), {"config": _config(args, model), "total_steps": total})
        run = self._joined.open()
        if not run.is_open:
            return
        _training.append(self._joined)
        self._run, self._told = run, {}
        counts = getattr(args, "include_num_input_tokens_seen", "no") not in {"no", False}  # it knows of padding
        self._tokens = state.num_input_tokens_seen if counts else None
        if state.global_step:
            run.event("resume", step=state.global_step)
        if trainer is None:
            warn("Transformers: no Trainer calls this callback, so that it tells only what is logged")
            return
        self._seen = TrainerHooks(run, trainer)
        self._seen.begin()
        if self._watches and not getattr(trainer, "is_deepspeed_enabled", False):
            self._watcher = run.watch(trainer.model_wrapped, trainer.optimizer)
            return
        if self._watches:
            warn("Transformers: watch does not know DeepSpeed's parameters, and measures nothing")
        self._stages = StepStages(run, trainer.model_wrapped, trainer.optimizer)
        run._time(self._stages)  # noqa: SLF001  its own

    @harmless
    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """The parameters are written."""
        if self._stages is not None and self._stages.is_timing:
            self._stages.optimizer_is_over()

    @harmless
    def on_step_end(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """One step's numbers, whether it is logged or not."""
        if self._run is None:
            return
        values = self._seen.take() if self._seen is not None else {}
        if self._tokens is not None:
            values["tokens"] = (state.num_input_tokens_seen - self._tokens) / max(1, args.world_size)
            self._tokens = state.num_input_tokens_seen
        self._told = values
        self._run._push(None, state.global_step, values)  # noqa: SLF001  its own
        if self._stages is not None and state.global_step >= self._stages.next:
            self._stages.step(state.global_step)

    @harmless
    def on_log(self, _args: Any, state: Any, _control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """What Trainer logs, which is the same on all ranks."""
        if self._run is None or not logs or not state.is_world_process_zero:
            return
        values = {_key(key): value for key, value in logs.items() if _is_series(key)}
        if "loss" in self._told and "loss" in values:
            values["loss_logged"] = values.pop("loss")
        if "grad_norm" in self._told:
            values.pop("grad_norm", None)
        if values.keys() - {"epoch"}:
            self._run.push(values, step=state.global_step)

    @harmless
    def on_train_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
        """The training is over; what is evaluated and saved after it belongs to the run, which ends with the process."""
        if self._joined is None or self._run is None:
            return
        _training.clear()
        if state.is_hyper_param_search:
            self._joined.end()
        else:
            self._joined.rest()
        if not self._run.is_open:
            self._leave()
            return
        if self._seen is not None:
            self._seen.rest()
        self._stop_watching()

    def __getstate__(self) -> dict[str, Any]:
        """As it was made: a search that spawns processes may pickle the Trainer that holds it."""
        return {**vars(self), "_joined": None, "_run": None, "_seen": None, "_watcher": None, "_stages": None}

    def _leave(self) -> None:
        self._stop_watching()
        if self._seen is not None:
            self._seen.end()
        self._joined = self._run = self._seen = None

    def _stop_watching(self) -> None:
        for one in (self._watcher, self._stages):
            if one is not None:
                one.stop()
        self._watcher = self._stages = None


def _trainer() -> Any:
    """The Trainer whose training begins: it is among those who call; None when it is not."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  callbacks are given everything but their Trainer
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), Trainer):
            return found
        frame = frame.f_back
    return None


def _first(trainer: Any) -> TracksideCallback | None:
    found = (one for one in trainer.callback_handler.callbacks if isinstance(one, TracksideCallback))
    return next(found, None)


def _name(args: Any, state: Any) -> str | None:
    """The trial's in a search; else the user's, which older versions set to the output directory when there is none."""
    if state.trial_name:
        return str(state.trial_name)
    return None if args.run_name in {None, "", args.output_dir} else str(args.run_name)


def _config(args: Any, model: Any) -> dict[str, Any]:
    """The arguments that are set, without what is secret, and the model's configuration and number of parameters."""
    config: dict[str, Any] = {}
    try:
        _describe(args, model, config)
    except Exception as error:  # noqa: BLE001  a model of the user's own may raise anything
        warn(f"Transformers: not all of the configuration can be told ({type(error).__name__}: {error})")
    return config


def _describe(args: Any, model: Any, config: dict[str, Any]) -> None:
    config.update((key, value) for key, value in args.to_dict().items() if value is not None)
    of_model = getattr(model, "config", None)
    if of_model is not None and hasattr(of_model, "to_dict"):
        config["model"] = of_model.to_dict()
    if hasattr(model, "parameters"):
        # DeepSpeed's third stage leaves nothing of a parameter but ds_numel
        config["parameters"] = sum(getattr(one, "ds_numel", 0) or one.numel() for one in model.parameters())


def _key(key: str) -> str:
    for prefix in ("eval", "test"):
        if key.startswith(f"{prefix}_"):
            return f"{prefix}/{key[len(prefix) + 1 :]}"
    return key


def _is_series(key: str) -> bool:
    return key not in _NO_SERIES and not key.endswith(_NO_SERIES_ENDS)


_training: list[RunAdapter] = []
"""The run of a training that has begun and is not over."""

INTEGRATION_TO_CALLBACK.setdefault("trackside", TracksideCallback)
