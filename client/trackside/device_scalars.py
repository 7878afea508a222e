"""Read values that are still on a GPU: copied when they are pushed, read when they have arrived. The host never waits.

The thread that pushes starts a copy into pinned memory, records an event behind it and returns. At its later pushes it
queries the event and delivers what has arrived.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, NamedTuple

# Limit of pending values of one thread on one device. A copy is a launch, and the queue of launches holds about as
# many, so a host that is further ahead waits there anyhow.
SLOTS = 1024

POLL_SECONDS = 0.001  # interval of event queries at the end of a run


class Cuda:
    """Access to PyTorch's CUDA, or to ROCm, which has the same names."""

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def forbids(self) -> str:
        """Return why nothing may be allocated, copied or queried now; empty if everything may."""
        if self._torch.compiler.is_compiling():
            return "it is pushed inside a compiled function, where nothing can be read"
        if self.is_capturing():
            return "it is pushed while a CUDA graph is captured, where nothing can be read"
        return ""

    def is_capturing(self) -> bool:
        """Return whether the current stream is being captured into a graph."""
        return bool(self._torch.cuda.is_current_stream_capturing())

    def pinned(self) -> Any:
        """Allocate page-locked memory for `SLOTS` values, as int64."""
        with self._torch.inference_mode(mode=False):  # a tensor of inference mode cannot be written outside of it
            return self._torch.empty(SLOTS, dtype=self._torch.int64, device="cpu", pin_memory=True)

    def uuid(self, device: Any) -> str:
        """Return the UUID of a device in use, as NVML formats it; empty before PyTorch 2.5, which has none."""
        uuid = getattr(self._torch.cuda.get_device_properties(device), "uuid", "")
        return f"GPU-{uuid}" if uuid else ""

    def slot(self, memory: Any, number: int, dtype: Any) -> Any:
        """Return slot *number* of pinned memory, as a tensor of one number."""
        with self._torch.inference_mode(mode=False):
            return memory[number : number + 1].view(dtype)[0]

    def copy(self, slot: Any, value: Any) -> None:
        """Start a copy of one number on the current stream of its device."""
        # On that stream the copy is in order with whatever changes the tensor next (a running sum, the replay of a CUDA
        # graph) and with the reuse of its memory, so nothing is kept alive. A side stream would need a clone of each
        # value and two more calls to synchronize the streams.
        slot.copy_(value, non_blocking=True)

    def record(self, event: Any, device: Any) -> Any:
        """Record *event*, or a new one if that is None, on the current stream, and return it."""
        event = self._torch.cuda.Event() if event is None else event
        event.record(self._torch.cuda.current_stream(device))
        return event


class DeviceScalars:
    """The pending values of one run. The threads that push call `defer` and `poll`.

    Args:
        deliver: Called with the arrived values of one push: monotonic nanoseconds, tag, numbers by key.
        lose: Called with the number of values that will not arrive.
        add_gpu: Called once per thread with the UUID of each device.
        cuda: Access to CUDA.
    """

    def __init__(
        self,
        deliver: Callable[[int, Any, dict[str, float]], None],
        lose: Callable[[int], None],
        add_gpu: Callable[[str], None] = lambda _: None,
        cuda: Cuda | None = None,
    ) -> None:
        self._deliver = deliver
        self._lose = lose
        self._add_gpu = add_gpu
        self._given = cuda
        # By thread: an event query or an allocation of pinned memory in any other thread breaks the capture of a CUDA graph
        # (pytorch/pytorch#104487, #176251).
        self._rings: dict[int, dict[Any, _Ring]] = {}
        _living.add(self)

    @property
    def _cuda(self) -> Cuda:
        if self._given is None:
            self._given = Cuda()
        return self._given

    @property
    def is_crowded(self) -> bool:
        """Half of this thread's slots are in use."""
        rings = tuple(self._rings.get(threading.get_ident(), {}).values())
        return any(ring.pending and ring.pending[-1].end - ring.pending[0].first > SLOTS // 2 for ring in rings)

    def defer(self, pushed_at: int, tag: Any, scalars: Mapping[str, Any]) -> dict[str, str]:
        """Start the copies of one push, and return the keys of values that cannot be copied, with the reason.

        Args:
            pushed_at: Monotonic nanoseconds of the push.
            tag: Passed to `deliver`.
            scalars: Tensors that `is_on_device`, by key.
        """
        refused: dict[str, str] = {}
        for device in {value.device: None for value in scalars.values()}:
            here = {key: value for key, value in scalars.items() if value.device == device}
            try:
                reason = self._cuda.forbids()
                refused |= dict.fromkeys(here, reason) if reason else self._ring(device).start(pushed_at, tag, here)
            except Exception as error:  # noqa: BLE001  a device that has failed raises anything, and training must go on
                refused |= dict.fromkeys(here, _reason(error))
        return refused

    def poll(self) -> None:
        """Deliver this thread's values that have arrived, oldest first."""
        rings = self._rings.get(threading.get_ident())
        if rings:
            for ring in tuple(rings.values()):
                if ring.pending:
                    self._collect(ring)

    def drain(self, seconds: float) -> float:
        """Wait at most *seconds* for the values of this thread and of ended threads, and return the seconds it took.

        Other threads that still run are left alone. Values that are still pending then count as lost.
        """
        begun = monotonic()
        alive = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        rings = [(owner, ring) for owner, rings in tuple(self._rings.items()) for ring in tuple(rings.values())]
        ours = [ring for owner, ring in rings if owner not in alive]
        while True:
            for ring in ours:
                self._collect(ring)
            if not any(ring.pending for ring in ours) or monotonic() - begun >= seconds:
                break
            sleep(POLL_SECONDS)
        for _, ring in rings:
            self._lose(sum(len(copy.slots) for copy in tuple(ring.pending)))
        return monotonic() - begun

    def forked(self) -> None:
        """Keep all CUDA objects for good in a forked child: if any is freed, even at exit, PyTorch aborts it."""
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._rings))

    def _ring(self, device: Any) -> _Ring:
        rings = self._rings.setdefault(threading.get_ident(), {})
        if device not in rings:
            threading.current_thread()  # registers a thread that was not started by `threading` with `threading.enumerate`
            rings[device] = _Ring(self._cuda, device)
            with suppress(Exception):  # a device that has failed raises anything
                if uuid := self._cuda.uuid(device):
                    self._add_gpu(uuid)
        return rings[device]

    def _collect(self, ring: _Ring) -> None:
        try:
            if not self._cuda.forbids():
                ring.collect(self._deliver)
        except Exception:  # noqa: BLE001  the device has failed, and no pending value will ever arrive
            lost, ring.pending = ring.pending, deque()
            self._lose(sum(len(copy.slots) for copy in lost))


class _Copy(NamedTuple):
    """The pending values of one push: in the slots from *first* to before *end*, valid once *event* is done."""

    first: int
    end: int
    event: Any
    pushed_at: int
    tag: Any
    slots: dict[str, Any]


class _Ring:
    """One thread's values from one device.

    Attributes:
        pending: Copies, oldest first. They alone define the slots in use, so an interrupted push leaves nothing behind.
    """

    def __init__(self, cuda: Cuda, device: Any) -> None:
        self.pending: deque[_Copy] = deque()
        self._cuda = cuda
        self._device = device
        self._memory = cuda.pinned()
        self._slots: dict[tuple[int, Any], Any] = {}
        self._events: list[Any] = []
        self._busy = False  # a signal handler may push in the midst of a push

    def start(self, pushed_at: int, tag: Any, scalars: Mapping[str, Any]) -> dict[str, str]:
        """Start the copies of one push, and return the keys of values that cannot be copied, with the reason."""
        if self._busy:
            return dict.fromkeys(scalars, "it is pushed by a signal handler in the midst of another push")
        self._busy = True
        try:
            return self._start(pushed_at, tag, scalars)
        finally:
            self._busy = False

    def _start(self, pushed_at: int, tag: Any, scalars: Mapping[str, Any]) -> dict[str, str]:
        first = end = self.pending[-1].end if self.pending else 0
        limit = SLOTS + (self.pending[0].first if self.pending else 0)
        refused: dict[str, str] = {}
        slots: dict[str, Any] = {}
        for key, value in scalars.items():
            if end == limit:
                refused[key] = f"{SLOTS} values are on their way from the device already"
                continue
            # One copy per value, byte by byte: no kernel is launched, nothing is allocated, and an int64 arrives as exactly
            # as a bfloat16. A step has one to three values. Stacking them would cost a kernel and memory to save a call
            # or two.
            try:
                slot = self._slot(end % SLOTS, value.dtype)
                self._cuda.copy(slot, _plain(value))
            except Exception as error:  # noqa: BLE001  a tensor of the user's own kind may raise anything
                refused[key] = _reason(error)
                continue
            slots[key] = slot
            end += 1
        if slots:
            event = self._cuda.record(self._events.pop() if self._events else None, self._device)
            self.pending.append(_Copy(first, end, event, pushed_at, tag, slots))
        return refused

    def collect(self, deliver: Callable[[int, Any, dict[str, float]], None]) -> None:
        """Deliver what has arrived, oldest first."""
        if self._busy:
            return
        self._busy = True
        try:
            while self.pending and self.pending[0].event.query():
                # Removed only when it is read, so that Ctrl-C in between loses nothing.
                copy = self.pending[0]
                values = {key: float(slot) for key, slot in copy.slots.items()}
                self.pending.popleft()
                self._events.append(copy.event)
                deliver(copy.pushed_at, copy.tag, values)
        finally:
            self._busy = False

    def _slot(self, number: int, dtype: Any) -> Any:
        slot = self._slots.get((number, dtype))
        if slot is None:
            slot = self._slots[number, dtype] = self._cuda.slot(self._memory, number, dtype)
        return slot


def _plain(value: Any) -> Any:
    """Return a tensor of one number without gradient and dimensions."""
    value = value.detach() if value.requires_grad else value
    return value.reshape(()) if value.dim() else value


def _reason(error: Exception) -> str:
    return f"it cannot be copied from its device ({type(error).__name__})"


def _forked() -> None:
    for scalars in _living:
        scalars.forked()


_living: weakref.WeakSet[DeviceScalars] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forked)
