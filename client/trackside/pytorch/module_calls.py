"""Record each call of a model's modules for some steps: its time on the host and on a GPU, and the memory of its outputs."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from msgspec.structs import replace

from trackside.pytorch.hooks import ModuleHook, remove_all
from trackside.pytorch.observer import uncompiled_modules
from trackside.pytorch.parameters import local_values
from trackside.wire import ModuleCall, ModuleCalls

MODULES = 1000  # those at the top of the model come first
CALLS = 20_000  # with which a recording ends: some 1.5 MiB to send
POLL_SECONDS = 0.02
MAX_NAME_LENGTH = 200  # characters


class _Open(NamedTuple):
    """A call that has begun."""

    place: int
    begin: float
    mark: Any
    allocated: int
    outputs: dict[int, int]


class ModuleRecording:
    """A recording of one model, by hooks that the training's threads add, call and remove between two steps.

    Args:
        steps: Number of steps.
        before: The last one, whose hooks may still be there.

    Attributes:
        over: The recording is complete, or has to end: then no hook does anything.
    """

    def __init__(self, steps: int, before: ModuleRecording | None = None) -> None:
        import torch

        self._torch = torch
        self.over = threading.Event()
        self._left = steps
        self._before = before
        self._found = ModuleCalls()
        self._open: dict[int, list[_Open]] = {}
        self._marks: list[tuple[Any, Any]] = []
        self._first: Any = None
        self._device: Any = None
        self._handles: list[Any] = []

    def continues(self, model: Any) -> bool:
        """Begin, or count the step that ends; return False after the last one, when no hook is left."""
        try:
            if self._before is not None:
                self._before.stop()
                self._before = None
            if not self._handles and not self.over.is_set():
                self._begin(model)
            else:
                self._found.steps += 1
                self._left -= 1
        except Exception as error:  # noqa: BLE001  a model of the user's own kind may raise anything
            self._fail(error)
        if self.over.is_set() or self._left <= 0:
            self.stop()
        return bool(self._handles)

    def stop(self) -> None:
        """Remove the hooks; only the training's thread may call it."""
        self.over.set()
        remove_all(self._handles)

    def result(self, until: float) -> ModuleCalls:
        """Return the calls; see `trackside.captures.modules.CallRecording`. Nothing waits for a GPU but this thread."""
        found = self._found
        calls, marks = list(found.calls), list(self._marks)
        while any(last is not None and not last.query() for _, last in marks[-1:]) and time.monotonic() < until + 1:
            time.sleep(POLL_SECONDS)
        timed = []
        for call, (first, last) in zip(calls, marks, strict=False):
            begin = seconds = 0.0
            if first is not None and last is not None and first.query() and last.query():
                begin, seconds = self._first.elapsed_time(first) / 1e3, first.elapsed_time(last) / 1e3
            timed.append(replace(call, gpu_begin=begin, gpu_seconds=seconds))
        return ModuleCalls(found.names, found.classes, found.steps, timed, found.compiled, found.error)

    def _begin(self, model: Any) -> None:
        seen, found = uncompiled_modules(model), self._found
        found.compiled = sum(1 for _ in model.modules()) - len(seen)
        seen = sorted(seen, key=lambda one: one[0].count(".") + bool(one[0]))[:MODULES]
        if not seen:
            found.error = "all of its model is compiled, where no hook runs"
            self.over.set()
            return
        cuda = self._torch.cuda
        if cuda.is_initialized():
            self._device = next((one.device for one in model.parameters() if one.is_cuda), None)
            self._first = self._mark()
        for place, (name, module) in enumerate(seen):
            found.names.append((name or type(module).__name__)[:MAX_NAME_LENGTH])
            found.classes.append(type(module).__name__[:MAX_NAME_LENGTH])
            enter = ModuleHook(lambda *_, place=place: self._enter(place), self._fail)
            leave = ModuleHook(lambda _, given, output, place=place: self._leave(place, given, output), self._fail)
            self._handles.append(module.register_forward_pre_hook(enter))
            self._handles.append(module.register_forward_hook(leave, always_call=True))

    def _enter(self, place: int) -> None:
        if self.over.is_set():
            return
        allocated = self._torch.cuda.memory_allocated(self._device) if self._device is not None else 0
        mark = self._mark()
        stack = self._open.setdefault(threading.get_ident(), [])
        stack.append(_Open(place, time.perf_counter(), mark, allocated, {}))

    def _leave(self, place: int, given: Any, output: Any) -> None:
        now, mark = time.perf_counter(), self._mark()
        thread = threading.get_ident()
        stack = self._open.get(thread, [])
        if self.over.is_set() or all(one.place != place for one in stack):
            return
        while (one := stack.pop()).place != place:  # one whose forward pass raised
            pass
        # What a module only passes on, or changes in place, is counted where it was made.
        one.outputs.update(self._storages(output))
        for storage in self._storages(given):
            one.outputs.pop(storage, None)
        if stack:
            stack[-1].outputs.update(one.outputs)
        allocated = self._torch.cuda.memory_allocated(self._device) - one.allocated if self._device is not None else 0
        self._marks.append((one.mark, mark))
        call = ModuleCall(
            place, self._found.steps, thread, one.begin, now - one.begin, sum(one.outputs.values()), allocated
        )
        self._found.calls.append(call)
        if len(self._found.calls) >= CALLS:
            self.over.set()

    def _mark(self) -> Any:
        """Return an event of CUDA at this point; None without a GPU, or while a graph is captured."""
        cuda = self._torch.cuda
        if self._device is None or cuda.is_current_stream_capturing():
            return None
        event = cuda.Event(enable_timing=True)
        event.record(cuda.current_stream(self._device))
        return event

    def _storages(self, value: Any, depth: int = 0) -> dict[int, int]:
        """Return the bytes of tensors by the address of their memory."""
        found: dict[int, int] = {}
        if isinstance(value, self._torch.Tensor):
            storage = local_values(value).untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, (tuple, list, dict)) and depth < 4:
            for one in value.values() if isinstance(value, dict) else value:
                found.update(self._storages(one, depth + 1))
        return found

    def _fail(self, error: Exception) -> None:
        self._found.error = f"{type(error).__name__}: {error}"[:200]
        self.over.set()
