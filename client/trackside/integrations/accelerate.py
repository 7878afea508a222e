"""Accelerate: `TracksideTracker` pushes what ``accelerator.log`` logs, on every rank, and reports ``save_state``.

    from trackside.integrations.accelerate import TracksideTracker

    accelerator = Accelerator(log_with=TracksideTracker())

Accelerate calls trackers on the main process alone, and gives a tracker that the user created neither the project's name
nor its checkpoints. So the first tracker patches methods of its `Accelerator`. Other trackers, and accelerators without
one, behave as before.
"""

from __future__ import annotations

import json
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
from accelerate.tracking import GeneralTracker

from trackside.default_run import open_by
from trackside.integrations.followed_loader import follow_loaders
from trackside.integrations.method_patch import MethodPatch
from trackside.integrations.run_adapter import RunCallback, guarded, never_raises, resume_by, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trackside.run import Run


STATE_FILE = "trackside.json"  # in the folder of a saved state, with the run's id
STATE_LENGTH = 1024  # limit of the characters that are read of it


class TracksideTracker(RunCallback, GeneralTracker):
    """A tracker for ``Accelerator(log_with=…)``: each rank pushes what it logs with ``accelerator.log``.

    The run is named as the project of ``init_trackers``. It ends with ``end_training``, unless the training code has
    opened the run.
    """

    name = "trackside"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self._begins = False
        self.is_started = False
        _patch_accelerator()

    @property
    def tracker(self) -> Run:
        """The run. Reading it opens a run if the training code has not."""
        if self._begins:
            self._begins = False
            return self.adapter.begin()
        return self.adapter.open()

    @never_raises
    def open(self) -> None:
        """Open the run, if it is not open."""
        _ = self.tracker

    @never_raises
    def start(self) -> None:
        """Open the run at its first use: by then, `load_state` has read the run of a checkpoint."""
        if not self.is_started:
            self._begins = self.is_started = True
            open_by(self.open)

    @never_raises
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Store *values* as the run's configuration."""
        self.adapter.describe(values)

    @never_raises
    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Push numbers, without waiting for tensors on a device."""
        self.tracker.queue.push(values, step, {})  # as `Run.push`, with a call less in each step

    @never_raises
    def finish(self) -> None:
        """End the run."""
        self.open()
        self.adapter.end()
        self.is_started = False


def _patch_accelerator() -> None:
    """Patch the methods of `Accelerator` and its loaders, once."""
    replacements = {"init_trackers": _init_trackers, "log": _log, "save_state": _save_state, "load_state": _load_state}
    for name, replacement in replacements.items():
        original = getattr(Accelerator, name)
        if not hasattr(original, "trackside"):
            setattr(Accelerator, name, _patched(original, replacement))
    for kind in (DataLoaderShard, DataLoaderDispatcher):
        follow_loaders(kind)


def _patched(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def patched(self: Any, *given: Any, **named: Any) -> Any:
        return replacement(original, self, *given, **named)

    patched.trackside = True  # type: ignore[attr-defined]
    return patched


def _ours(trackers: Any) -> list[TracksideTracker]:
    return [tracker for tracker in trackers if isinstance(tracker, TracksideTracker)]


def _init_trackers(
    original: Callable[..., Any], self: Any, project_name: str, config: Any = None, *given: Any, **named: Any
) -> None:
    trackers = _ours(self.log_with)
    for tracker in trackers:
        tracker.adapter.name = tracker.adapter.name or str(project_name)
    original(self, project_name, config, *given, **named)
    # On other ranks than the main one Accelerate calls no tracker, so `_log` does.
    self.trackside_alone = () if self.is_main_process else trackers
    for tracker in [tracker for tracker in trackers if tracker not in self.trackers]:
        self.trackers.append(tracker)  # ended with the others
        if config is not None:
            tracker.store_init_configuration(config)
    for tracker in trackers:
        tracker.start()  # older versions do not, and none does on other ranks than the main one
    if trackers:
        _open_at_backward(self, trackers)


def _open_at_backward(accelerator: Any, trackers: list[TracksideTracker]) -> None:
    """Open the runs at the first backward pass, which may come long before anything is logged."""

    def backward(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        patch.restore()
        for tracker in trackers:
            tracker.open()
        return original(*given, **named)

    patch = MethodPatch(accelerator, "backward", backward)


def _log(
    original: Callable[..., Any], self: Any, values: Any, step: int | None = None, *given: Any, **named: Any
) -> None:
    original(self, values, step, *given, **named)
    for tracker in getattr(self, "trackside_alone", ()):
        tracker.log(values, step)


def _save_state(original: Callable[..., Any], self: Any, *given: Any, **named: Any) -> Any:
    trackers = _ours(self.trackers)
    run = guarded("Accelerate: a checkpoint", lambda: trackers[0].tracker) if trackers else None
    if run is None:
        return original(self, *given, **named)

    def save() -> Any:
        folder = original(self, *given, **named)
        if self.is_local_main_process:  # of each node: its ranks load from its own disk
            guarded("Accelerate: the run of a checkpoint", _write_state, folder, trackers[0])
        return folder

    # `save_state` returns the folder.
    return save_checkpoint(run, save, lambda folder: folder, reports=self.is_main_process)


def _load_state(original: Callable[..., Any], self: Any, *given: Any, **named: Any) -> Any:
    def read(_: Any, folder: Any) -> None:
        for tracker in _ours(self.log_with):
            guarded("Accelerate: the run of a checkpoint", _read_state, folder, tracker)

    handle = self.register_load_state_pre_hook(read)  # it gets the folder, which the arguments need not name
    try:
        return original(self, *given, **named)
    finally:
        handle.remove()


def _write_state(folder: Any, tracker: TracksideTracker) -> None:
    Path(folder, STATE_FILE).write_text(json.dumps(tracker.adapter.state()), "utf-8")


def _read_state(folder: Any, tracker: TracksideTracker) -> None:
    path = Path(folder, STATE_FILE)
    if path.is_file():
        with path.open(encoding="utf-8") as file:
            tracker.adapter.resume(json.loads(file.read(STATE_LENGTH)))


resume_by(Accelerator, "load_state", "input_dir", lambda accelerator: [accelerator.project_dir])
