"""Lightning: `TracksideCallback` pushes each step of a fit, `TracksideLogger` pushes what ``self.log`` logs.

    from trackside.integrations.lightning import TracksideCallback

    trainer = Trainer(callbacks=[TracksideCallback()])

``lightning`` and ``pytorch_lightning`` are two packages with the same classes. The classes here derive from those of the
package that is imported, or from both if both are. The file is longer than others, since logger and callback open the same run
and have the same bases.
"""

from __future__ import annotations

import sys
import types
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from typing import TYPE_CHECKING, Any

from trackside.default_run import open_by
from trackside.drawn_batches import note_draws
from trackside.integrations.epoch_line import EpochLine, ResourceLine
from trackside.integrations.followed_loader import follow_loaders
from trackside.integrations.lightning_checkpoints import CARRIED, carried_run, starting_fit
from trackside.integrations.method_patch import MethodPatch
from trackside.integrations.run_adapter import (
    RunAdapter,
    RunCallback,
    begin_watch,
    guarded,
    never_raises,
    report_checkpoint,
    resume_by,
    save_checkpoint,
)
from trackside.pytorch.batches import samples
from trackside.training_log import warn

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping

    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers import Logger

    from trackside.run import Run
else:

    def _base(module: str, name: str) -> type:
        packages = ("lightning.pytorch", "pytorch_lightning")
        used = [package for package in packages if package in sys.modules]
        used = used or [package for package in packages if find_spec(package.partition(".")[0]) is not None][:1]
        bases = [getattr(import_module(f"{package}.{module}"), name) for package in used or packages[:1]]
        return bases[0] if len(bases) == 1 else types.new_class(name, tuple(bases))

    Callback, Logger = _base("callbacks", "Callback"), _base("loggers", "Logger")

RATES = 16  # limit of parameter groups of an optimizer whose learning rates are pushed

# Attribute of Lightning's data fetcher with the loader of an epoch. Lightning has no public name for it.
COMBINED_LOADER = "_combined_loader"
FABRIC = "lightning.fabric.wrappers", "lightning_fabric.wrappers"  # modules with the loaders of a Fabric


class TracksideLogger(RunCallback, Logger):
    """Pushes what ``self.log`` logs, on every rank, and stores hyperparameters as the run's configuration.

    A `TracksideCallback` in the same Trainer pushes to the same run, and its steps are used.
    """

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self._callback: TracksideCallback | None = None
        self.trains = True
        self._trained: int | None = None
        # The loop of a Fabric logs at the end of a step. By then, `trackside.data` or `watch` has used the run.
        open_by(self._open)
        for module in FABRIC:
            if module in sys.modules:
                follow_loaders(sys.modules[module]._FabricDataLoader)  # noqa: SLF001  there is no public name

    @never_raises
    def _open(self) -> None:
        self.adapter.open()

    def attach(self, callback: TracksideCallback | None) -> None:
        """Use the steps of a callback in the same Trainer, and leave out what it pushes; None to push alone."""
        self._callback = callback

    @property
    def experiment(self) -> Run:
        """The run of this rank. Reading it opens a run if the training code has not."""
        guarded("Lightning: the run of a checkpoint", self._resume)
        return self.adapter.open()

    def _resume(self) -> None:
        """Continue the run of the checkpoint that a fit loads. Lightning reads `experiment` first of all in a fit."""
        trainer, checkpoint = starting_fit()
        if trainer is None or any(isinstance(one, _RunState) for one in trainer.callbacks):
            return
        trainer.callbacks.append(_RunState(self))
        if checkpoint and self.adapter.run is None:
            self.adapter.resume({"run": carried_run(checkpoint)})

    @property
    def name(self) -> str | None:
        """Name of the run; before it is opened, the name that was given."""
        return self.adapter.name if self.adapter.run is None else self.adapter.run.name

    @property
    def version(self) -> str | None:
        """Identifier of the run, the same on all ranks; None before it is opened."""
        return None if self.adapter.run is None else self.adapter.run.id

    @never_raises
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Push what was logged; with a callback at its step, and without the keys that it has pushed."""
        run, callback = self.experiment, self._callback
        if callback is None:
            # A test after a fit has the numbers of a step and an epoch more than were trained.
            if self.trains or self._trained is None:
                self._trained = step
            else:
                metrics, step = {key: value for key, value in metrics.items() if key != "epoch"}, self._trained
            run.push(metrics, step=step)
        else:
            step = step if callback.step is None else callback.step
            run.push({key: value for key, value in metrics.items() if key not in callback.pushed}, step=step)

    @never_raises
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """Store hyperparameters as the run's configuration."""
        self.adapter.describe(dict(params if hasattr(params, "keys") else vars(params)))

    @never_raises
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Report a checkpoint, unless a callback times its writing; Lightning calls this on rank 0."""
        path = getattr(checkpoint_callback, "_last_checkpoint_saved", "") or checkpoint_callback.best_model_path
        if self._callback is None and path:
            report_checkpoint(self.experiment, path)

    @never_raises
    def finalize(self, status: str) -> None:
        """End or keep the run: a fit has ended (``success``), failed, or is requeued by Slurm (``finished``)."""
        if status == "failed":  # while Lightning handles the exception
            self.adapter.end(sys.exc_info()[1], "" if sys.exc_info()[1] else "failed")
        elif status == "success":
            self.adapter.rest()
        else:
            self.adapter.end(status="stopped")


class TracksideCallback(Callback):
    """Pushes each optimizer step of a fit, on every rank, and reports evaluations and checkpoints.

    A step has the loss, learning rates, samples and the epoch. The loss is what ``training_step`` returned, averaged over
    accumulated batches, without waiting for the device. Steps are ``trainer.global_step``. Metrics of validation and
    testing keep their names. Without a run of the training code the callback opens one, which ends with the script, or in
    a notebook with the fit.

    Args:
        name: As for `trackside.init`.
        watch: Also watch the model in each fit, as `trackside.watch` does; ``"distributions"`` with distributions of weights
            and gradients; a mapping has arguments of `trackside.observe`, such as ``{"activations": "*.mlp"}``.
        epoch_line: Write a line for each epoch to standard error, on rank 0, and push ``throughput_efficiency``.
        resource_line: Write a line of the use of GPU, CPU and memory after so many batches, on rank 0; 0 for none.
        arguments: Further arguments of `trackside.init`: ``tags=["baseline"]``, ``config``, …

    Attributes:
        step: Step of the last push; before the first push, the step of the first.
        pushed: Keys of the last push of a step.
        pushes_logged: `push_logged` gets what the trainer logs.
    """

    pushes_logged = False

    def __init__(
        self,
        name: str | None = None,
        *,
        watch: bool | str | Mapping[str, Any] = False,
        epoch_line: bool = False,
        resource_line: int = 0,
        **arguments: Any,
    ) -> None:
        super().__init__()
        self._line = EpochLine() if epoch_line else None
        self._resources = ResourceLine(resource_line) if resource_line else None
        self._watches = watch
        self._watcher: Any = None
        self._adapter = self._own_adapter = RunAdapter(name, arguments)
        self._loggers: list[TracksideLogger] = []
        self.step: int | None = None
        self._done = 0
        self.pushed: frozenset[str] = frozenset()
        self._rates: dict[str, Any] = {}
        self._loss: Any = None
        self._losses = 0
        self._samples = 0
        self._before: dict[str, Any] = {}
        self._phase: Any = None
        self._timed_loader: Any = None
        self._patch: MethodPatch | None = None
        self._resumes = False

    @never_raises
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if str(getattr(stage, "value", stage)) == "predict":
            return
        note_draws()  # before Lightning begins with the first epoch
        self._loggers = [logger for logger in trainer.loggers if isinstance(logger, TracksideLogger)]
        self._adapter = self._loggers[0].adapter if self._loggers else self._own_adapter
        for logger in self._loggers:
            logger.attach(self)
        is_fit = _is_fit(stage)
        # In a test after a fit, Lightning counts batches as steps, and one epoch more than were trained.
        self.step, self.pushed = (None, frozenset()) if is_fit else (trainer.global_step, frozenset({"epoch"}))
        self._adapter.describe(
            {**_hyperparameters(trainer.datamodule), **_hyperparameters(pl_module), "trainer": _config(trainer)}
        )
        # A checkpoint that carries its run is loaded after this. A logger's run is open by now: Lightning reads its version.
        self._resumes = not self._loggers and is_fit and bool(starting_fit()[1])
        if not self._resumes:
            self._adapter.begin()

    def state_dict(self) -> dict[str, Any]:
        return self._adapter.state()

    @never_raises
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._resumes:
            self._adapter.resume(state_dict)

    @never_raises
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin_resumed()  # not when the fit starts: some strategies, such as FSDP's, load the checkpoint after that
        run = self._adapter.open()
        self._adapter.describe(total_steps=_total(trainer, pl_module))
        self._done, self.step = trainer.global_step, trainer.global_step + 1
        if trainer.global_step:
            run.event("resume", step=trainer.global_step, path=str(trainer.ckpt_path or ""))
        self._patch_checkpoints(trainer)
        if self._watches:
            self._watcher = _watched(run, trainer, self._watches)

    @never_raises
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._line is not None:
            self._line.begin()
        fetcher: Any = getattr(trainer.fit_loop, "_data_fetcher", None)
        loader = getattr(fetcher, COMBINED_LOADER, None)
        if loader is not None and loader is not self._timed_loader:
            run = self._adapter.open()
            # Of this epoch; Lightning makes those of later epochs.
            fetcher.iterator = iter(run.data(_Begun(fetcher.iterator)))
            self._timed_loader = run.data(loader)
            setattr(fetcher, COMBINED_LOADER, self._timed_loader)

    @never_raises
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._line is not None:
            self._line.began()
        self._rates = _rates(trainer.optimizers)  # now, since the schedulers step before `on_train_batch_end`

    @never_raises
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._samples += samples(batch)
        if self._resources is not None and trainer.is_global_zero:
            self._resources.count()
        if self._line is not None:
            self._line.stepped(samples(batch))
        loss = outputs.get("loss") if hasattr(outputs, "get") else outputs
        if loss is not None:
            loss = loss.detach() if hasattr(loss, "detach") else loss
            parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            loss = loss * parts if parts > 1 else loss  # Lightning has divided it
            self._loss = loss if self._loss is None else self._loss + loss
            self._losses += 1
        if (step := trainer.global_step) != self._done:  # each reading goes through six objects of Lightning's
            values = {"epoch": trainer.current_epoch, **self._rates}
            if self._loss is not None:
                values["loss"] = self._loss if self._losses == 1 else self._loss / self._losses
            if self._samples:
                values["samples"] = self._samples
            self._loss, self._losses, self._samples = None, 0, 0
            self._done = self.step = step
            self.pushed = frozenset(values)
            self._adapter.open().queue.push(None, step, values)

    @never_raises
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._line is not None:
            self._adapter.open().push(throughput_efficiency=self._line.efficiency, step=trainer.global_step)
            if trainer.is_global_zero:
                self._line.write(trainer.current_epoch)

    @never_raises
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._before = dict(trainer.callback_metrics)  # it has the training's metrics as well
            self._phase = self._adapter.open().phase("eval").__enter__()

    @never_raises
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._line is not None:
            self._line.pause()
        phase, self._phase = self._phase, None
        if phase is None:
            return
        phase.__exit__()
        before, self._before = self._before, {}
        logged = trainer.logged_metrics if self._loggers or self.pushes_logged else {}
        metrics = {
            key: value
            for key, value in trainer.callback_metrics.items()
            if value is not before.get(key) and key not in logged
        }
        if metrics:
            self._adapter.open().push(metrics, step=trainer.global_step)

    on_test_start, on_test_end = on_validation_start, on_validation_end

    @never_raises
    def push_logged(self, metrics: Mapping[str, Any]) -> None:
        """Push what the trainer logs at the present step, unless a `TracksideLogger` does."""
        if not self._loggers and (values := {key: metrics[key] for key in metrics.keys() - self.pushed - {"step"}}):
            self._adapter.open().push(values, step=self.step)

    @never_raises
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._begin_resumed()
        self._leave()
        self._adapter.end(exception)

    @never_raises
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._leave()
        if not self._loggers:  # else the logger ends the run
            self._adapter.rest()

    def __getstate__(self) -> dict[str, Any]:
        """Return the initial state: a launcher that spawns processes pickles the callback."""
        live = ("_phase", "_timed_loader", "_patch", "_loss", "_watcher")
        return {**vars(self), "_loggers": [], "_rates": {}, **dict.fromkeys(live)}

    def _begin_resumed(self) -> None:
        if self._resumes:
            self._resumes = False
            self._adapter.begin()

    def _patch_checkpoints(self, trainer: Any) -> None:
        """Patch ``trainer.save_checkpoint``, which writes all checkpoints: no hook runs when one is written."""
        run = self._adapter.open()
        is_async = "AsyncCheckpointIO" in {kind.__name__ for kind in type(trainer.strategy.checkpoint_io).__mro__}

        def save(original: Callable[..., Any], filepath: Any, *given: Any, **named: Any) -> Any:
            # An asynchronous writer returns before the file is complete, so that its size and time are unknown.
            reports = trainer.is_global_zero and not is_async
            return save_checkpoint(
                run, lambda: original(filepath, *given, **named), lambda _: filepath, reports=reports
            )

        self._patch = MethodPatch(trainer, "save_checkpoint", save)

    def _leave(self) -> None:
        """Restore the patched method, and stop watching."""
        if self._patch is not None:
            self._patch.restore()
        if self._watcher is not None:
            self._watcher.stop()
        self._watcher = None
        self._patch = self._timed_loader = self._loss = None
        self._losses = self._samples = 0
        self.pushed, self._rates = frozenset(), {}
        for logger in self._loggers:
            logger.attach(None)


def _is_fit(stage: Any) -> bool:
    """Return whether a stage, which older versions give as an enumeration, is a fit."""
    return str(getattr(stage, "value", stage)) == "fit"


class _RunState(Callback):
    """Saves the run's id in checkpoints, for a fit with a `TracksideLogger`."""

    def __init__(self, logger: TracksideLogger) -> None:
        self._logger = logger

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._logger.trains = _is_fit(stage)

    def state_dict(self) -> dict[str, Any]:
        return {key: f"{CARRIED}{run}" for key, run in self._logger.adapter.state().items()}


class _Begun:
    """Lightning's iterator of an epoch, which `iter` would begin again: with another order, and other workers."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)


def _watched(run: Run, trainer: Any, wanted: bool | str | Mapping[str, Any]) -> Any:
    """Watch the model as the strategy has wrapped it; of several optimizers the first that steps counts."""
    if type(trainer.strategy).__name__ == "DeepSpeedStrategy":
        warn("Lightning: watch does not support DeepSpeed, and measures nothing")
        return None
    optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
    return begin_watch(run, trainer.strategy.model, optimizer, wanted)


def _total(trainer: Any, module: Any) -> int | None:
    """Return the number of steps of a fit; None if it is unknown: manual optimization makes any number in a batch."""
    total = trainer.estimated_stepping_batches if module.automatic_optimization else trainer.max_steps
    return int(total) if isfinite(total) and total > 0 else None


def _rates(optimizers: Any) -> dict[str, Any]:
    """Return the learning rate of each optimizer's groups; the first one has the key ``learning_rate``."""
    groups = optimizers[0].param_groups if len(optimizers) == 1 else []
    if len(groups) == 1 and "lr" in groups[0]:  # the usual case, at each step
        return {"learning_rate": groups[0]["lr"]}
    named = [
        (f"learning_rate/{number}.{place}", group["lr"])
        for number, optimizer in enumerate(optimizers)
        for place, group in enumerate(optimizer.param_groups[:RATES])
        if "lr" in group
    ]
    return {"learning_rate" if place == 0 else name: rate for place, (name, rate) in enumerate(named)}


def _hyperparameters(owner: Any) -> dict[str, Any]:
    return dict(getattr(owner, "hparams", None) or {})


def _config(trainer: Any) -> dict[str, Any]:
    names = ("max_epochs", "max_steps", "accumulate_grad_batches", "gradient_clip_val", "precision", "world_size")
    return {**{name: getattr(trainer, name, None) for name in names}, "strategy": type(trainer.strategy).__name__}


def _directories(trainer: Any) -> list[Any]:
    """Return the directories of a trainer's checkpoints; the default of its callbacks is below the first."""
    return [trainer.default_root_dir, *(getattr(one, "dirpath", None) for one in trainer.checkpoint_callbacks)]


for _package in ("lightning.pytorch", "pytorch_lightning"):
    if (_trainer := sys.modules.get(f"{_package}.trainer.trainer")) is not None:  # --auto imports this before the rest
        resume_by(_trainer.Trainer, "fit", "ckpt_path", _directories)
