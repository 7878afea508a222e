"""Save, prune and load checkpoints in a directory, and report them to the run."""

from __future__ import annotations

import errno
import os
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from trackside import default_run
from trackside.checkpoints import folder, sharded, state
from trackside.checkpoints.state import random_states
from trackside.environment.identity import identify
from trackside.row_queue import whole_number
from trackside.training_log import warn

if TYPE_CHECKING:
    from builtins import list as list_  # the class has a method of this name
    from collections.abc import Iterator, Mapping

    from trackside.checkpoints.folder import Saved, Writer

SPARE_BYTES = 1024 * 1024  # what stays free on the disk after a checkpoint


class Checkpoints:
    """The checkpoints in a directory. An intact one is there at any time, whenever the process is killed.

    A checkpoint is a folder such as ``step-00000400``, and the link ``latest`` points to the newest. Rank 0 writes it. A
    model that FSDP has sharded is written by all ranks, so all of them have to call `save` and `load`.

    Args:
        directory: The directory, which is made.
        keep: Number of newest checkpoints that stay.
        best: Name of a metric; the checkpoint with the best value of it stays as well.
        mode: Whether the lowest (``min``) or the highest (``max``) value is the best.

    Attributes:
        directory: The directory.
        step: The step that was loaded or saved last; 0 before.

    Raises:
        ValueError: ``keep`` is below 1, or ``mode`` is another word.

    Example:
        >>> checkpoints = trackside.Checkpoints("checkpoints", keep=3)
        >>> training = {"model": model, "optimizer": optimizer}
        >>> checkpoints.load(training)
        >>> for step in range(checkpoints.step, steps):
        ...     train(model)
        ...     checkpoints.save(training, step + 1)
    """

    def __init__(
        self, directory: str | os.PathLike[str], keep: int = 3, *, best: str = "", mode: Literal["min", "max"] = "min"
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 checkpoint has to stay")
        if mode not in {"min", "max"}:
            raise ValueError(f"mode is {mode!r}, which is neither min nor max")
        self.directory = Path(directory)
        self.step = 0
        self._keep, self._best, self._mode = keep, best, mode

    def save(self, state: Any, step: int, metrics: Mapping[str, float] | None = None) -> Path | None:
        """Save a checkpoint, and delete those that are too many.

        The states of the random generators of Python, NumPy and PyTorch are saved too. A disk that is full or read-only
        raises nothing: one warning reports it, and the earlier checkpoints stay.

        Args:
            state: A mapping of objects with ``state_dict()`` (models, optimizers, schedulers, scalers, data loaders), of
                plain values, tensors and arrays; or one of these alone.
            step: The step.
            metrics: Numbers such as the evaluation loss, for `best`.

        Returns:
            The folder; None if this rank writes none, or if it could not be written.

        Raises:
            TypeError: A value cannot be saved, or the step is not a whole number.
        """
        step, numbers = whole_number(step), {name: float(value) for name, value in (metrics or {}).items()}
        together = sharded.is_sharded(state)
        first = _rank() == 0
        if not (together or first):
            return None
        encoded = _encode(sharded.others(state), {}) if together else _encode(state, random_states())
        began = monotonic()
        try:
            with default_run.phase("checkpoint"):
                if together:
                    saved = sharded.save(
                        self.directory, step, state, lambda writer: self._end(writer, encoded, numbers)
                    )
                else:
                    saved = self._write(step, encoded, numbers)
        except OSError as error:
            if first:
                self._warn_unsaved(step, folder.reason(error))
            return None
        self.step = step
        if first:
            fields = {"metrics": numbers} if numbers else {}
            seconds = round(monotonic() - began, 6)
            default_run.event(
                "checkpoint", path=str(saved.path.absolute()), bytes=saved.bytes, seconds=seconds, **fields
            )
        return saved.path

    def load(self, into: Any = None, *, step: int | None = None) -> Any:
        """Load the newest checkpoint that is intact; warnings name those that are skipped, and why.

        Args:
            into: The objects that were given to `save`, to be restored by ``load_state_dict()``. With them, the random
                generators are restored too. A checkpoint of a sharded model needs them.
            step: Load the checkpoint of this step and no other.

        Returns:
            The state that `save` was given, with the ``state_dict()`` of its objects; of a sharded model without the
            model and its optimizers. None if there is no checkpoint.

        Raises:
            LookupError: There is no intact checkpoint of *step*.
            Exception: An object does not accept its state.
        """
        together = sharded.is_sharded(into)
        skipped: list_[str] = []
        candidates = self._intact(step, skipped)
        while True:
            one = sharded.from_first(lambda: next(candidates, None)) if together else next(candidates, None)
            if one is None:
                break
            try:
                if together:
                    sharded.load(one.path, into)
                kept = state.read_any(one.path)
            except Exception as error:  # noqa: BLE001  a damaged file makes PyTorch raise anything
                _skip(skipped, one.path, f"{type(error).__name__}: {error}".split("\n", 1)[0])
                continue
            if into is not None:
                state.restore(kept, sharded.others(into) if together else into)
            self.step = one.step
            more = {"skipped": skipped} if skipped else {}
            default_run.event("resume", path=str(one.path.absolute()), step=one.step, **more)
            return kept["state"]
        if step is not None:
            there = ", ".join(str(one.step) for one in self.list()) or "none"
            raise LookupError(
                f"{self.directory}: there is no intact checkpoint of step {step}; the steps there: {there}"
            )
        return None

    def list(self) -> list_[Saved]:
        """Return the complete checkpoints in the order of their steps, each with path, step, time, metrics and bytes."""
        return folder.saved(self.directory)

    def best(self, metric: str = "") -> Saved | None:
        """Return the checkpoint with the best value of a metric, by default the constructor's; None if none has it."""
        name = metric or self._best
        rated = [one for one in self.list() if isfinite(one.metrics.get(name, float("nan")))]
        choose = min if self._mode == "min" else max
        return choose(rated, key=lambda one: one.metrics[name], default=None)

    def _write(self, step: int, encoded: state.Encoded, metrics: Mapping[str, float]) -> Saved:
        self.directory.mkdir(parents=True, exist_ok=True)
        _require_room(self.directory, encoded.size)
        writer = folder.Writer(self.directory, step)
        try:
            return self._end(writer, encoded, metrics)
        except BaseException:
            writer.discard()
            raise

    def _end(self, writer: Writer, encoded: state.Encoded, metrics: Mapping[str, float]) -> Saved:
        """Write the state, give the checkpoint its name, and delete those that are too many."""
        with writer.file(encoded.file) as file:
            state.write(file, encoded)
        saved = writer.publish(metrics)
        best = self.best() if self._best else None
        folder.prune(self.directory, self._keep, () if best is None else (best.path,))
        return saved

    def _intact(self, step: int | None, skipped: list_[str]) -> Iterator[Saved]:
        """Yield the intact checkpoints, of one step or of all, the newest first."""
        complete = {one.path: one for one in self.list()}
        for path in folder.named(self.directory):
            one = complete.get(path)
            if one is not None and step not in {None, one.step}:
                continue
            problem = f"it has no {folder.MANIFEST}" if one is None else folder.defect(path)
            if problem:
                _skip(skipped, path, problem)
            elif one is not None:
                yield one

    def _warn_unsaved(self, step: int, why: str) -> None:
        try:
            there = self.list()
            last = f"the last one is of step {there[-1].step}" if there else "there is none yet"
        except OSError:  # without a file descriptor
            last = "those there cannot be listed"
        warn(f"the checkpoint of step {step} is not saved: {self.directory}: {why}; {last}, and training goes on")


def _encode(live: Any, random: Mapping[str, Any]) -> state.Encoded:
    return state.Encoded({"state": state.state_dicts(live), "random": random})


def _skip(skipped: list_[str], path: Path, problem: str) -> None:
    skipped.append(f"{path.name}: {problem}")
    warn(f"checkpoint {path} is skipped: {problem}")


def _rank() -> int:
    run = default_run.open_run()
    return identify().rank if run is None else run.rank


def _require_room(directory: Path, size: int) -> None:
    """Raise an OSError if a checkpoint of this size does not fit on the disk."""
    disk = os.statvfs(directory)
    if (free := disk.f_bavail * disk.f_frsize) < size + SPARE_BYTES:
        raise OSError(errno.ENOSPC, f"it needs {size / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free", str(directory))
