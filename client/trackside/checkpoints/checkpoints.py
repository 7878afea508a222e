"""Save, prune and load checkpoints in a directory, and report them to the run."""

import errno
import os
from builtins import list as list_  # the class has a method of this name
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import isfinite, nan
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from trackside import default_run
from trackside.checkpoints import folder, sharded, state
from trackside.checkpoints.folder import CheckpointFolder, CheckpointWriter, Saved
from trackside.checkpoints.state import random_states
from trackside.environment.identity import identify
from trackside.environment.restart import resume_path
from trackside.os_errors import os_error_text
from trackside.row_queue import whole_number
from trackside.training_log import warn

SPARE_BYTES = 1024 * 1024  # what stays free on the disk after a checkpoint


class Checkpoints:
    """The checkpoints in a directory. An intact one is there at any time, whenever the process is killed.

    A checkpoint is a folder such as ``step-00000400``, and the link ``latest`` points to the one that was saved last.
    Rank 0 writes it. A model that FSDP has sharded is written by all ranks, so all of them have to call `save` and
    `load`.

    Args:
        directory: The directory, which is made.
        keep: Number of newest checkpoints that stay. One that `load` has found damaged does not count.
        best: Name of a metric; the checkpoint with the best value of it stays as well.
        mode: Whether the lowest (``min``) or the highest (``max``) value is the best.

    Attributes:
        directory: The directory.
        step: The step that was loaded or saved last; 0 before.
        next_step: The step after it; 0 before, so that a loop that saves ``step`` itself begins there.

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
        self.step, self._has_step = 0, False
        self._keep, self._best, self._mode = keep, best, mode
        self._damaged: set[Path] = set()  # as `load` has found

    def save(self, state: Any, step: int, metrics: Mapping[str, float] | None = None) -> Path | None:
        """Save a checkpoint, and delete those that are too many.

        The random generators of Python, NumPy and PyTorch are saved too. A disk that is full or read-only raises nothing: one warning reports it, and the earlier checkpoints stay.

        Args:
            state: A mapping of objects with ``state_dict()``, of plain values, tensors and arrays; or one of these
                alone.
            step: The step.
            metrics: Numbers such as the evaluation loss, for ``best``.

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
                    saved, sequence = sharded.save(
                        self.directory, step, state, lambda writer: self._end(writer, encoded, numbers)
                    )
                else:
                    saved, sequence = self._write(step, encoded, numbers)
        except OSError as error:
            if first:
                self._warn_unsaved(step, os_error_text(error))
            return None
        self.step, self._has_step = step, True
        if first:
            fields = {"metrics": numbers} if numbers else {}
            seconds = round(monotonic() - began, 6)
            default_run.event(
                "checkpoint",
                path=str(saved.path.absolute()),
                bytes=saved.bytes,
                seconds=seconds,
                **fields,
                step=step,
                sequence=sequence,
            )
        return saved.path

    @property
    def next_step(self) -> int:
        """See the class."""
        return self.step + 1 if self._has_step else 0

    def load(self, into: Any = None, *, step: int | None = None, path: str | os.PathLike[str] | None = None) -> Any:
        """Load the checkpoint that was saved last and is intact; warnings name those that are skipped, and why.

        After `trackside run --restart` the first load takes none that is newer than `trackside.resume_path`.

        Args:
            into: The objects that were given to `save`, to be restored by ``load_state_dict()``, with the random
                generators. A checkpoint of a sharded model needs them.
            step: Load the newest checkpoint of this step and no other.
            path: Load this one of the directory and no other, such as ``checkpoints.best().path``.

        Returns:
            The state that `save` was given, with the ``state_dict()`` of its objects; of a sharded model without the
            model and its optimizers. None if there is no checkpoint.

        Raises:
            LookupError: There is no intact checkpoint of *step* or *path*.
            Exception: An object does not accept its state.
        """
        together = sharded.is_sharded(into)
        skipped: list_[str] = []
        name = None if path is None else Path(path).name
        candidates = self._intact(step, name, skipped)
        while True:
            one = sharded.from_first(lambda: next(candidates, None)) if together else next(candidates, None)
            if one is None:
                break
            try:
                if together:
                    sharded.load(one.path, into)
                kept = state.read_any(one.path)
            except Exception as error:  # noqa: BLE001  a damaged file makes PyTorch raise anything
                self._skip(skipped, one.path, f"{type(error).__name__}: {error}".split("\n", 1)[0])
                continue
            if into is not None:
                state.restore(kept, sharded.others(into) if together else into)
            self.step, self._has_step = one.step, True
            more = {"skipped": skipped} if skipped else {}
            default_run.event("resume", path=str(one.path.absolute()), step=one.step, **more)
            return kept["state"]
        if step is not None or name is not None:
            wanted = f"of step {step}" if name is None else name
            there = ", ".join(str(one.step) for one in self._there()) or "none"
            raise LookupError(f"{self.directory}: there is no intact checkpoint {wanted}; the steps there: {there}")
        return None

    def list(self) -> list_[Saved]:
        """Return the complete checkpoints in the order of saving, each with path, step, time, metrics and bytes.

        Raises:
            OSError: The directory cannot be read.
        """
        return [one.saved for one in folder.folders(self.directory) if one.saved is not None]

    def best(self, metric: str = "") -> Saved | None:
        """Return the checkpoint with the best value of a metric, by default the constructor's; None if none has it.

        One that is damaged does not count, if `load` has found that, or its files have other sizes.

        Raises:
            OSError: The directory cannot be read.
        """
        name = metric or self._best
        complete = {one.path: one for one in folder.folders(self.directory) if one.path not in self._damaged}
        rated = [one.saved for one in complete.values() if one.saved and isfinite(one.saved.metrics.get(name, nan))]
        ordered = sorted(rated, key=lambda one: one.metrics[name], reverse=self._mode == "max")
        return next((one for one in ordered if complete[one.path].is_whole), None)

    def _write(self, step: int, encoded: state.Encoded, metrics: Mapping[str, float]) -> tuple[Saved, int]:
        writer = folder.CheckpointWriter(self.directory, step)
        try:
            _require_room(self.directory, encoded.size)
            return self._end(writer, encoded, metrics)
        except BaseException:
            writer.discard()
            raise

    def _end(self, writer: CheckpointWriter, encoded: state.Encoded, metrics: Mapping[str, float]) -> tuple[Saved, int]:
        """Write the state, give the checkpoint its name, and delete those that are too many."""
        with writer.file(encoded.file) as file:
            state.write(file, encoded)
        saved, sequence = writer.publish(metrics)
        self._damaged.discard(saved.path)
        with suppress(OSError):  # it is saved, whatever becomes of the others
            best = self.best() if self._best else None
            stay = [saved.path] if best is None else [saved.path, best.path]
            folder.prune(self.directory, self._keep, stay, self._damaged)
        return saved, sequence

    def _intact(self, step: int | None, name: str | None, skipped: list_[str]) -> Iterator[Saved]:
        """Yield the intact checkpoints, of one step, of one name or all, the newest first."""
        seen: set[tuple[int, Path]] = set()
        resume = None if self._has_step or step is not None or name is not None else resume_path()
        while new := [one for one in self._folders(skipped) if one[:2] not in seen]:
            # Another process that saves here may delete all of these meanwhile, and leave a newer one.
            seen.update(one[:2] for one in new)
            for one in reversed(_until(new, resume)):
                if name not in {None, one.path.name} or (one.saved is not None and step not in {None, one.saved.step}):
                    continue
                problem = f"it has no {folder.MANIFEST}" if one.saved is None else folder.defect(one.path)
                if problem:
                    self._skip(skipped, one.path, problem)
                elif one.saved is not None:
                    yield one.saved

    def _folders(self, skipped: list_[str]) -> list_[CheckpointFolder]:
        try:
            return folder.folders(self.directory)
        except OSError as error:
            self._skip(skipped, self.directory, os_error_text(error))
            return []

    def _skip(self, skipped: list_[str], path: Path, problem: str) -> None:
        self._damaged.add(path)
        skipped.append(f"{path.name}: {problem}")
        warn(f"checkpoint {path} is skipped: {problem}")

    def _there(self) -> list_[Saved]:
        try:
            return self.list()
        except OSError:
            return []

    def _warn_unsaved(self, step: int, why: str) -> None:
        there = self._there()
        last = f"the last one is of step {there[-1].step}" if there else "there is none yet"
        warn(f"the checkpoint of step {step} is not saved: {self.directory}: {why}; {last}, and training goes on")


def _until(folders: Sequence[CheckpointFolder], last: Path | None) -> Sequence[CheckpointFolder]:
    """Return the folders up to *last*; all if it is not one of them."""
    names = [one.path.name for one in folders] if last is not None else []
    return folders[: names.index(last.name) + 1] if last is not None and last.name in names else folders


def _encode(live: Any, random: Mapping[str, Any]) -> state.Encoded:
    return state.Encoded({"state": state.state_dicts(live), "random": random})


def _rank() -> int:
    run = default_run.open_run()
    return identify().rank if run is None else run.rank


def _require_room(directory: Path, size: int) -> None:
    """Raise an OSError if a checkpoint of this size does not fit on the disk."""
    disk = os.statvfs(directory)
    needed = size + SPARE_BYTES
    if (free := disk.f_bavail * disk.f_frsize) < needed:
        raise OSError(
            errno.ENOSPC, f"it needs {needed / 2**20:,.1f} MiB, and {free / 2**20:,.1f} MiB are free", str(directory)
        )
