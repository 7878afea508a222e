"""Lightning: `TracksideCallback` sees each step of a fit from within, `TracksideLogger` takes what ``self.log`` logs.

    from trackside.integrations.lightning import TracksideCallback

    trainer = Trainer(callbacks=[TracksideCallback()])

``lightning`` and ``pytorch_lightning`` are two packages with the same classes, and which one a training uses shows only
once it is imported: these derive from the one that is, from both if both are.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any

from trackside.integrations.method_patch import MethodPatch
from trackside.integrations.run_adapter import RunAdapter, harmless, saved, tell
from trackside.log import warn

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers import Logger

    from trackside.run import Run
else:

    def _base(module: str, name: str) -> type:
        packages = ("lightning.pytorch", "pytorch_lightning")
        found = [package for package in packages if package in sys.modules]
        found = found or [package for package in packages if find_spec(package.partition(".")[0]) is not None][:1]
        kinds = [getattr(import_module(f"{package}.{module}"), name) for package in found or packages[:1]]
        return kinds[0] if len(kinds) == 1 else types.new_class(name, tuple(kinds))

    Callback, Logger = _base("callbacks", "Callback"), _base("loggers", "Logger")

PARTS = 8
"""Among so many parts of a batch a tensor is looked for, which says how many samples there are."""

RATES = 16
"""Of an optimizer with more groups of parameters, the learning rates of so many are pushed."""


class TracksideLogger(Logger):
    """Pushes what ``self.log`` logs, on every rank, and keeps hyperparameters as the run's configuration.

    With a `TracksideCallback` beside it both push to one run, in which steps are counted as the callback does.

    Args:
        name: As of `trackside.init`, as are *arguments*: ``tags=["baseline"]``, ``config``, …
    """

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__()
        self._joined = RunAdapter(name, arguments)
        self._callback: TracksideCallback | None = None

    @property
    def experiment(self) -> Run:
        """The run, which this opens if the training code has not; each rank has its own part in it."""
        return self._joined.open()

    @property
    def name(self) -> str | None:
        """What people see; before the run is opened, what was given."""
        return self._joined.name if self._joined.run is None else self._joined.run.name

    @property
    def version(self) -> str | None:
        """The run's id, the same on all ranks; None before it is opened."""
        return None if self._joined.run is None else self._joined.run.id

    @harmless
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Push what was logged; beside a callback at its step, and without what it has pushed itself."""
        run, callback = self.experiment, self._callback
        if callback is None:
            run.push(metrics, step=step)
        else:
            step = step if callback.step is None else callback.step
            run.push({key: value for key, value in metrics.items() if key not in callback.pushed}, step=step)

    @harmless
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *_: Any, **__: Any) -> None:
        """Keep them as the run's configuration."""
        self._joined.describe(dict(params if hasattr(params, "keys") else vars(params)))

    @harmless
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Tell of a checkpoint, without a callback that sees it being written; Lightning calls this on rank 0."""
        path = getattr(checkpoint_callback, "_last_checkpoint_saved", "") or checkpoint_callback.best_model_path
        if self._callback is None and path:
            tell(self.experiment, path)

    @harmless
    def finalize(self, status: str) -> None:
        """A fit has ended (``success``), has failed, or is requeued by Slurm (``finished``)."""
        if status == "failed":
            self._joined.end(sys.exc_info()[1], "" if sys.exc_info()[1] else "failed")
        elif status == "success":
            self._joined.rest()
        else:
            self._joined.end(status="stopped")


class TracksideCallback(Callback):
    """Pushes each optimizer step of a fit, on every rank: loss, learning rates, samples, epoch; with evaluations and checkpoints.

    The loss is what ``training_step`` returned, averaged over accumulated batches, handed over without waiting for the
    device. Steps are ``trainer.global_step``. Metrics are those that validation and testing log, as they are named.
    Unless the training code has opened a run, one is opened here, which ends with the script; in a notebook with the fit.

    Args:
        name: As of `trackside.init`, as are *arguments*: ``tags=["baseline"]``, ``config``, …
        watch: Watch the model in each fit too, as `trackside.watch` does.

    Attributes:
        step: Of the last push; before the first, that of the first to come.
        pushed: The keys of the last push of a step.
    """

    def __init__(self, name: str | None = None, *, watch: bool = False, **arguments: Any) -> None:
        super().__init__()
        self._watches = watch
        self._watcher: Any = None
        self._joined = self._given = RunAdapter(name, arguments)
        self._loggers: list[TracksideLogger] = []
        self.step: int | None = None
        self._done = 0
        self.pushed: frozenset[str] = frozenset()
        self._rates: dict[str, Any] = {}
        self._loss: Any = None
        self._losses = self._samples = 0
        self._before: dict[str, Any] = {}
        self._phase: Any = None
        self._waits: Any = None
        self._led: MethodPatch | None = None

    @harmless
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if str(getattr(stage, "value", stage)) == "predict":
            return
        self._loggers = [one for one in trainer.loggers if isinstance(one, TracksideLogger)]
        self._joined = self._loggers[0]._joined if self._loggers else self._given  # noqa: SLF001
        for logger in self._loggers:
            logger._callback = self  # noqa: SLF001
        self.step = None
        self._joined.describe(
            {**_hyperparameters(trainer.datamodule), **_hyperparameters(pl_module), "trainer": _config(trainer)}
        )
        self._joined.begin()

    @harmless
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        run = self._joined.open()
        self._joined.describe(total_steps=_total(trainer, pl_module))
        self._done, self.step = trainer.global_step, trainer.global_step + 1
        if trainer.global_step:
            run.event("resume", step=trainer.global_step, path=str(trainer.ckpt_path or ""))
        self._lead(trainer)
        if self._watches:
            self._watcher = _watched(run, trainer)

    @harmless
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        fetcher: Any = getattr(trainer.fit_loop, "_data_fetcher", None)
        loader = getattr(fetcher, "_combined_loader", None)
        if loader is not None and loader is not self._waits:
            run = self._joined.open()
            fetcher.iterator = iter(run.data(fetcher.iterator))  # of this epoch; it makes those of the next itself
            self._waits = fetcher._combined_loader = run.data(loader)  # noqa: SLF001

    @harmless
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._rates = _rates(trainer.optimizers)

    @harmless
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._samples += _samples(batch)
        loss = outputs.get("loss") if hasattr(outputs, "get") else outputs
        if loss is not None:
            loss = loss.detach() if hasattr(loss, "detach") else loss
            parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            loss = loss * parts if parts > 1 else loss  # Lightning has divided it
            self._loss = loss if self._loss is None else self._loss + loss
            self._losses += 1
        if trainer.global_step != self._done:
            self._push(trainer)

    @harmless
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._before = dict(trainer.callback_metrics)
            self._phase = self._joined.open().phase("eval").__enter__()

    @harmless
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        phase, self._phase = self._phase, None
        if phase is None:
            return
        phase.__exit__()
        before, self._before = self._before, {}
        known = trainer.logged_metrics if self._loggers else {}
        metrics = {
            key: value
            for key, value in trainer.callback_metrics.items()
            if value is not before.get(key) and key not in known
        }
        if metrics:
            self._joined.open().push(metrics, step=trainer.global_step)

    on_test_start, on_test_end = on_validation_start, on_validation_end

    @harmless
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._leave()
        self._joined.end(exception)

    @harmless
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._leave()
        if not self._loggers:  # else it is the logger's to end
            self._joined.rest()

    def __getstate__(self) -> dict[str, Any]:
        """As it was made: a launcher that spawns processes pickles it."""
        live = ("_phase", "_waits", "_led", "_loss", "_watcher")
        return {**vars(self), "_loggers": [], "_rates": {}, **dict.fromkeys(live)}

    def _push(self, trainer: Any) -> None:
        values = {"epoch": trainer.current_epoch, **self._rates}
        if self._loss is not None:
            values["loss"] = self._loss if self._losses == 1 else self._loss / self._losses
        if self._samples:
            values["samples"] = self._samples
        self._loss, self._losses, self._samples = None, 0, 0
        self._done = self.step = trainer.global_step
        self.pushed = frozenset(values)
        self._joined.open().push(values, step=self.step)

    def _lead(self, trainer: Any) -> None:
        """Lead ``trainer.save_checkpoint``, which all checkpoints go through, through here: no hook tells when it is written."""
        run = self._joined.open()
        later = "AsyncCheckpointIO" in {kind.__name__ for kind in type(trainer.strategy.checkpoint_io).__mro__}

        def save_checkpoint(save: Callable[..., Any], filepath: Any, *given: Any, **named: Any) -> Any:
            tells = trainer.is_global_zero and not later
            return saved(run, lambda: save(filepath, *given, **named), lambda _: filepath, tells=tells)

        self._led = MethodPatch(trainer, "save_checkpoint", save_checkpoint)

    def _leave(self) -> None:
        """Give back what was led through here."""
        if self._led is not None:
            self._led.give_back()
        if self._watcher is not None:
            self._watcher.stop()
        self._watcher = None
        self._led = self._waits = self._loss = None
        self._losses = self._samples = 0
        self.pushed, self._rates = frozenset(), {}
        for logger in self._loggers:
            logger._callback = None  # noqa: SLF001


def _watched(run: Run, trainer: Any) -> Any:
    """A watcher of the model as the strategy has wrapped it; of several optimizers the first that steps counts."""
    if type(trainer.strategy).__name__ == "DeepSpeedStrategy":
        warn("Lightning: watch does not know DeepSpeed's parameters, and measures nothing")
        return None
    return run.watch(trainer.strategy.model, trainer.optimizers[0] if len(trainer.optimizers) == 1 else None)


def _total(trainer: Any, module: Any) -> int | None:
    """How many steps a fit will have, if that is known: one's own optimization may make any number in a batch."""
    total = trainer.estimated_stepping_batches if module.automatic_optimization else trainer.max_steps
    return int(total) if isfinite(total) and total > 0 else None


def _samples(batch: Any, depth: int = 3) -> int:
    """The first length of the first tensor in a batch; 0 when none is found among its first parts."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((found for part in islice(parts, PARTS) if depth and (found := _samples(part, depth - 1))), 0)


def _rates(optimizers: Any) -> dict[str, Any]:
    """The learning rate of each optimizer's groups; that of the very first under its own name."""
    if (
        len(optimizers) == 1 and len(only := optimizers[0].param_groups) == 1 and "lr" in only[0]
    ):  # as most, at each step
        return {"learning_rate": only[0]["lr"]}
    groups = [
        (f"learning_rate/{number}.{place}", group["lr"])
        for number, optimizer in enumerate(optimizers)
        for place, group in enumerate(optimizer.param_groups[:RATES])
        if "lr" in group
    ]
    return {"learning_rate" if place == 0 else name: rate for place, (name, rate) in enumerate(groups)}


def _hyperparameters(owner: Any) -> dict[str, Any]:
    return dict(getattr(owner, "hparams", None) or {})


def _config(trainer: Any) -> dict[str, Any]:
    names = ("max_epochs", "max_steps", "accumulate_grad_batches", "gradient_clip_val", "precision", "world_size")
    return {**{name: getattr(trainer, name, None) for name in names}, "strategy": type(trainer.strategy).__name__}
