"""PyTorch: hooks on backward passes, optimizers, gradient scalers, data loaders and `torch.save`, for `TrainingWatch`."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from threading import Lock, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any

from trackside.auto.hooks import LibraryHook, auto_run, hooks, runs
from trackside.auto.method_wrapping import after
from trackside.auto.models import Models
from trackside.auto.training import TrainingWatch
from trackside.drawn_batches import note_draws
from trackside.totals.loader_workers import remember, timed_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOOKS_ON_MODULES = "trackside.pytorch.hooks"
CLIENT = "trackside.default_run"  # imported by all who open a run
EACH_STEP = 16  # most reports between two steps: a script may also save its results, in any number of files
PAUSE_SECONDS = 1.0  # after which the next reports are permitted: where others count the steps, none are found here


class SavedFiles:
    """The files that this process saves."""

    def __init__(self) -> None:
        self._step = -1
        self._since = 0.0
        self._reported: set[Path] = set()

    def report(self, target: Any) -> None:
        """Report a saved file as a checkpoint, or as a part of one, if a run is open.

        Args:
            target: Second argument of `torch.save`; only paths count, and none in a temporary directory.
        """
        if CLIENT not in sys.modules or not isinstance(target, str | os.PathLike):
            return  # its import would take longer than many a file
        run = auto_run()
        queue = run.queue
        if queue is None:
            return
        from trackside.checkpoints.file_names import (
            checkpoint_of,
            final_name,
            is_accessory,
        )  # its patterns take milliseconds

        path = Path(os.path.abspath(target))  # noqa: PTH100  `resolve` would follow links, which have the training's names
        file = final_name(path)
        checkpoint = checkpoint_of(file)
        if checkpoint is None or (checkpoint == file and is_accessory(file)) or _is_temporary(path):
            return
        now = monotonic()
        if run.step != self._step or now - self._since >= PAUSE_SECONDS:
            self._step, self._since = run.step, now
            self._reported.clear()
        if checkpoint in self._reported or len(self._reported) >= EACH_STEP:
            return
        self._reported.add(checkpoint)
        fields: dict[str, Any] = {"path": str(checkpoint), "auto": True}
        if checkpoint == file:
            with suppress(OSError):  # deleted already
                fields["bytes"] = path.stat().st_size
        queue.event("checkpoint", fields)


def _is_temporary(path: Path) -> bool:
    """Return whether a file is in a temporary directory. A training that works in one has its own files there."""
    here = Path.cwd()
    for place in map(Path, ("/tmp", "/var/tmp", tempfile.gettempdir())):  # noqa: S108  nothing is written there
        is_own = here != place and here.is_relative_to(place) and path.is_relative_to(here)
        if path.is_relative_to(place) and not is_own:
            return True
    return False


watches: list[TrainingWatch] = []
"""The watch of this process, once PyTorch is imported."""

_of_threads: dict[int, TrainingWatch] = {}
"""The watches of threads that train beside others, by thread."""

_steps: list[Any] = []  # the handle of the hook on the steps of optimizers, until threads have watches
_begins_threads = Lock()


def _watch() -> TrainingWatch:
    if not watches:
        watches.append(_new_watch(Models()))
        os.register_at_fork(after_in_child=watches[0].begin_anew)
        os.register_at_fork(after_in_child=_of_threads.clear)
    if (thread := get_ident()) not in runs:
        return watches[0]
    return _of_threads.get(thread) or _of_threads.setdefault(thread, _new_watch(watches[0].models))


def _new_watch(models: Models) -> TrainingWatch:
    import torch

    return TrainingWatch(torch.compiler.is_compiling, torch.is_grad_enabled, models)


@contextmanager
def own_watch() -> Iterator[None]:
    """Let a thread that has a run of its own have a watch of its own. From the first one on, each hook finds that of its thread."""
    with _begins_threads:
        if _steps and watches:
            for hook in [hook for hook in list(hooks.values()) if getattr(hook.work, "__self__", None) is watches[0]]:
                hook.work = _in_thread(hook.work.__name__)
            _steps.pop().remove()
            _register_step(_in_thread("after_step"))
    try:
        yield
    finally:
        if (watch := _of_threads.pop(get_ident(), None)) is not None:
            watch.pause(on=True)
            watch.begin_anew()


def _bound(name: str) -> Callable[..., Any]:
    """Return a method of the watch."""
    return _in_thread(name) if runs else getattr(_watch(), name)


def _in_thread(name: str) -> Callable[..., Any]:
    def hook(*given: Any, **named: Any) -> Any:
        return getattr(_watch(), name)(*given, **named)

    return hook


def pause(*, on: bool) -> None:
    """Leave a training to a framework's callback, or no longer."""
    if watches:
        _watch().pause(on=on)


def exclude_hooks(add: Any, hook: str) -> Any:
    """Leave the hooks out of what `torch.compile` compiles: they would do nothing in compiled code.

    Those on modules may be within a graph, which a function that is left out would break.
    """
    root = Path(__file__).parents[1]
    kept = Path(sys.modules[HOOKS_ON_MODULES].__file__ or "")
    others = [*root.iterdir(), *kept.parent.iterdir()]
    skipped = [str(path) for path in others if path not in {kept, kept.parent} and path.name != "__pycache__"]
    vars(sys.modules[add.__module__])["SKIP_DIRS"] += skipped
    add("trackside.auto")  # it compiles the expression of all of them
    return add


def register_step_hook(optimizers: Any, name: str) -> Any:
    """Call a hook after each step of all optimizers."""
    _steps.append(_register_step(_bound("after_step")))
    return optimizers


def _register_step(hook: Callable[..., None]) -> Any:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    return register_optimizer_step_post_hook(hook)


def note_optimizer(original: Any, name: str) -> Any:
    """Call a hook with each new optimizer."""
    return after(_bound("made"))(original, name)


def register_module_hooks(hooks_of_all: Any, name: str) -> Any:
    """Call hooks for each parameter and each part that a module gets."""
    models = _watch().models
    hooks_of_all.register_module_parameter_registration_hook(
        LibraryHook(f"{name}: parameters", models.parameter_registered)
    )
    hooks_of_all.register_module_module_registration_hook(LibraryHook(f"{name}: modules", models.module_registered))
    return hooks_of_all


def wait_for_peers(original: Any, name: str) -> Any:
    """Call a hook before and after each wait for a collective, in steps that are timed."""

    def meets(*, begins: bool) -> None:
        watches[0].meets(begins=begins)

    hook = LibraryHook(name, meets)  # without a watch yet: PyTorch itself imports this

    @wraps(original)
    def wait(self: Any, *given: Any, **named: Any) -> Any:
        stages = watches[0].stages if watches else None
        if stages is None or not stages.is_timing:
            return original(self, *given, **named)
        hook(begins=True)
        try:
            return original(self, *given, **named)
        finally:
            hook(begins=False)

    return wait


def backward(original: Any, name: str) -> Any:
    """Call a hook before each backward pass."""
    hook = LibraryHook(name, _bound("backward"))

    @wraps(original)
    def backward(tensors: Any, grad_tensors: Any = None, *given: Any, **named: Any) -> Any:
        if hook.is_on and grad_tensors is None:
            try:
                hook.work(tensors)
            except Exception as error:  # noqa: BLE001  the same
                hook.fail(error)
        return original(tensors, grad_tensors, *given, **named)

    return backward


def scale(original: Any, name: str) -> Any:
    """Call a hook with each loss that a gradient scaler scales, and the product."""
    hook = LibraryHook(name, _bound("scaled"))

    @wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        product = original(self, outputs)
        hook(outputs, product)
        return product

    return scale


def scaler_step(original: Any, name: str) -> Any:
    """Call a hook after each step of a gradient scaler."""
    hook = LibraryHook(name, _bound("scaler_stepped"))

    @wraps(original)
    def step(self: Any, optimizer: Any, *given: Any, **named: Any) -> Any:
        before = _watch().scaler_begins()
        result = original(self, optimizer, *given, **named)
        hook(before, optimizer)
        return result

    return step


def save(original: Any, name: str) -> Any:
    """Call a hook after each call of `torch.save`."""
    import torch

    saved_files = SavedFiles()

    def saved(obj: Any, f: Any, *_: Any, **__: Any) -> None:
        if not _watch().is_paused:
            saved_files.report(f)

    replaced = after(saved)(original, name)
    if (
        torch.serialization.save is original
    ):  # by this name it is pickled, as for a process that saves in the background
        torch.serialization.save = replaced
    return replaced


def start_workers(original: Any, _: str) -> Any:
    """Time the workers that a data loader starts."""

    @wraps(original)
    def start_workers(self: Any, loader: Any) -> None:
        note_draws()
        with timed_workers(loader) as times:
            original(self, loader)
        remember(self, times)

    return start_workers


def next_batch(original: Any, name: str) -> Any:
    """Call hooks before and after each wait for a batch."""
    begins, ends = (
        LibraryHook("torch: begin of a wait for data", _bound("waits")),
        LibraryHook("torch: batch", _bound("waited")),
    )
    fails, notes = LibraryHook("torch: end of the data", _bound("ran_out")), False

    @wraps(original)
    def next_batch(self: Any) -> Any:
        nonlocal notes
        since = 0
        if not notes:
            notes = True
            note_draws()
        if begins.is_on:
            try:  # as `LibraryHook` does, with a result
                since = begins.work(self)
            except Exception as error:  # noqa: BLE001  the same
                begins.fail(error)
        try:
            batch = original(self)
        except BaseException:  # also at the end of the data, and for Ctrl-C
            fails()
            raise
        if ends.is_on:
            try:
                ends.work(since, self, batch)
            except Exception as error:  # noqa: BLE001  the same
                ends.fail(error)
        return batch

    return next_batch
