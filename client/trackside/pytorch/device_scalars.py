"""Values that are still on a GPU: copied when they are pushed, read when they have arrived; the host never waits.

The thread that pushes starts a copy into pinned memory, records an event behind it and returns; at its later pushes it
asks the event, and hands over what has arrived. Why it is done so:

- *On the current stream.* The copy is then in order with whatever changes the tensor next (a running sum, the replay of
  a CUDA graph), and with the reuse of its memory, so nothing has to be kept alive. For a side stream each value would
  have to be cloned first, and two more calls would tie the streams together.
- *A copy a value, of its bytes as they are.* No conversion, so no kernel is launched and nothing is allocated, and an
  int64 arrives as exactly as a bfloat16. A step has one to three values: to stack those would take a kernel and memory
  to spare a call or two (bench/scalars.py measures the other ways).
- *By the pushing thread alone, and never inside a capture.* An event that is asked, or pinned memory that is allocated,
  by any other thread breaks the capture of a CUDA graph (pytorch/pytorch#104487, #176251).
- *Never a collective*, which would be the very hang that a monitor is to find: of a DTensor its local part is read.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SLOTS = 1024
"""Values under way at most, of one thread on one device. A copy is a launch, and the queue of launches holds about as
many, so a host that is further ahead waits there anyhow."""

POLL_SECONDS = 0.001


def is_on_device(value: object) -> bool:
    """Whether *value* is a CUDA (or ROCm) tensor of one number. It does not import torch: a tensor's maker has."""
    kind = getattr(sys.modules.get("torch"), "Tensor", ())
    return isinstance(value, kind) and bool(value.is_cuda) and value.numel() == 1 and not value.is_complex()


def at_hand(value: Any) -> float | None:
    """What ``float()`` says of a number of any kind, of a DTensor's local part; None where it would wait for a device.

    Of a tensor it is read past PyTorch's dispatcher, which takes longer than a push, and without a warning if it has a gradient.

    Raises:
        TypeError: It is no number; its own methods may raise anything else.
    """
    kind = getattr(sys.modules.get("torch"), "Tensor", ())
    if type(value) is kind and value.is_cpu and not value.dim():
        try:
            return float(value.tolist())
        except Exception:  # noqa: BLE001, S110  one that is sparse, or complex without an imaginary part, float() reads
            pass
    value = local(value)
    if is_on_device(value):
        return None
    return float(value.detach() if getattr(value, "requires_grad", False) else value)


def local(value: Any) -> Any:
    """A DTensor's part on this rank; anything else as it is."""
    return value.to_local() if hasattr(value, "to_local") else value


class Cuda:
    """What `DeviceScalars` asks of PyTorch's CUDA, or of ROCm, which has the same names."""

    def __init__(self) -> None:
        import torch

        self._torch = torch

    def forbids(self) -> str:
        """Why nothing may be allocated, copied or asked at this moment; empty when all may be."""
        if self._torch.compiler.is_compiling():
            return "it is pushed inside a compiled function, where nothing can be read"
        if self.is_capturing():
            return "it is pushed while a CUDA graph is captured, where nothing can be read"
        return ""

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""
        return bool(self._torch.cuda.is_current_stream_capturing())

    def pinned(self) -> Any:
        """Page-locked memory for `SLOTS` values, as int64."""
        with self._torch.inference_mode(mode=False):  # a tensor of inference mode cannot be written outside of it
            return self._torch.empty(SLOTS, dtype=self._torch.int64, device="cpu", pin_memory=True)

    def uuid(self, device: Any) -> str:
        """Of a device that has been used, as NVML has it; empty before PyTorch 2.5, which does not tell."""
        uuid = getattr(self._torch.cuda.get_device_properties(device), "uuid", "")
        return f"GPU-{uuid}" if uuid else ""

    def slot(self, memory: Any, number: int, dtype: Any) -> Any:
        """One slot of such memory, as a tensor of one number."""
        with self._torch.inference_mode(mode=False):
            return memory[number : number + 1].view(dtype)[0]

    def copy(self, slot: Any, value: Any) -> None:
        """Start a copy of one number behind all that the current stream of its device has to do."""
        slot.copy_(value, non_blocking=True)

    def record(self, event: Any, device: Any) -> Any:
        """Mark that point of the stream by *event*, or by a new one if that is None, and return it."""
        event = self._torch.cuda.Event() if event is None else event
        event.record(self._torch.cuda.current_stream(device))
        return event


class DeviceScalars:
    """The values of one run that are under way; `defer` and `poll` are called by the threads that push.

    Args:
        hand_over: Called with what arrived of one push: monotonic nanoseconds, tag, numbers by key.
        lose: Called with a number of values that will not arrive.
        meet: Called once a thread with the UUID of each device.
        cuda: Where they come from.
    """

    def __init__(
        self,
        hand_over: Callable[[int, Any, dict[str, float]], None],
        lose: Callable[[int], None],
        meet: Callable[[str], None] = lambda _: None,
        cuda: Cuda | None = None,
    ) -> None:
        self._hand_over, self._lose, self._meet = hand_over, lose, meet
        self._cuda = Cuda() if cuda is None else cuda
        self._rings: dict[int, dict[Any, _Ring]] = {}
        _living.add(self)

    @property
    def is_crowded(self) -> bool:
        """Whether half of the room for this thread's values is taken."""
        rings = tuple(self._rings.get(threading.get_ident(), {}).values())
        return any(ring.under_way and ring.under_way[-1].end - ring.under_way[0].first > SLOTS // 2 for ring in rings)

    def defer(self, pushed_at: int, tag: Any, scalars: Mapping[str, Any]) -> dict[str, str]:
        """Start the copies, and return the keys of those values that cannot be taken, with the reason.

        Args:
            pushed_at: Monotonic nanoseconds of the push.
            tag: Whatever `hand_over` needs to know the push by.
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
        """Hand over what has arrived of this thread's values, oldest first."""
        rings = self._rings.get(threading.get_ident())
        if rings:
            for ring in tuple(rings.values()):
                if ring.under_way:
                    self._collect(ring)

    def drain(self, seconds: float) -> float:
        """Wait at most so many *seconds* for the values of this thread, and of those that are gone; how many it took.

        A thread that lives is left alone. What is still under way then is counted as lost.
        """
        begun = monotonic()
        alive = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        rings = [(owner, ring) for owner, rings in tuple(self._rings.items()) for ring in tuple(rings.values())]
        ours = [ring for owner, ring in rings if owner not in alive]
        while True:
            for ring in ours:
                self._collect(ring)
            if not any(ring.under_way for ring in ours) or monotonic() - begun >= seconds:
                break
            sleep(POLL_SECONDS)
        for _, ring in rings:
            self._lose(sum(len(copy.slots) for copy in tuple(ring.under_way)))
        return monotonic() - begun

    def forked(self) -> None:
        """In a child nothing of CUDA's may be freed, not even at its end, or PyTorch aborts it: keep it for good."""
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._rings))

    def _ring(self, device: Any) -> _Ring:
        rings = self._rings.setdefault(threading.get_ident(), {})
        if device not in rings:
            threading.current_thread()  # from now on `threading.enumerate` knows of it, whoever has started it
            rings[device] = _Ring(self._cuda, device)
            with suppress(Exception):  # a device that has failed raises anything
                if uuid := self._cuda.uuid(device):
                    self._meet(uuid)
        return rings[device]

    def _collect(self, ring: _Ring) -> None:
        try:
            if not self._cuda.forbids():
                ring.collect(self._hand_over)
        except Exception:  # noqa: BLE001  the device has failed, and nothing that is under way will ever arrive
            lost, ring.under_way = ring.under_way, deque()
            self._lose(sum(len(copy.slots) for copy in lost))


class _Copy(NamedTuple):
    """The values of one push on their way: in the slots from *first* to before *end*, read once *event* is done."""

    first: int
    end: int
    event: Any
    pushed_at: int
    tag: Any
    slots: dict[str, Any]


class _Ring:
    """One thread's values from one device.

    Attributes:
        under_way: Oldest first. It alone says which slots are taken, so that an interrupted push leaves nothing behind.
    """

    def __init__(self, cuda: Cuda, device: Any) -> None:
        self.under_way: deque[_Copy] = deque()
        self._cuda, self._device = cuda, device
        self._memory = cuda.pinned()
        self._slots: dict[tuple[int, Any], Any] = {}
        self._events: list[Any] = []
        self._busy = False  # a signal handler may push in the midst of a push

    def start(self, pushed_at: int, tag: Any, scalars: Mapping[str, Any]) -> dict[str, str]:
        """Start the copies of one push; the keys of those that cannot be taken, with the reason."""
        if self._busy:
            return dict.fromkeys(scalars, "it is pushed by a signal handler in the midst of another push")
        self._busy = True
        try:
            return self._start(pushed_at, tag, scalars)
        finally:
            self._busy = False

    def _start(self, pushed_at: int, tag: Any, scalars: Mapping[str, Any]) -> dict[str, str]:
        first = end = self.under_way[-1].end if self.under_way else 0
        limit = SLOTS + (self.under_way[0].first if self.under_way else 0)
        refused: dict[str, str] = {}
        slots: dict[str, Any] = {}
        for key, value in scalars.items():
            if end == limit:
                refused[key] = f"{SLOTS} values are on their way from the device already"
                continue
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
            self.under_way.append(_Copy(first, end, event, pushed_at, tag, slots))
        return refused

    def collect(self, hand_over: Callable[[int, Any, dict[str, float]], None]) -> None:
        """Hand over what has arrived, oldest first."""
        if self._busy:
            return
        self._busy = True
        try:
            while self.under_way and self.under_way[0].event.query():
                copy = self.under_way[0]
                values = {key: float(slot) for key, slot in copy.slots.items()}
                self.under_way.popleft()
                self._events.append(copy.event)
                hand_over(copy.pushed_at, copy.tag, values)
        finally:
            self._busy = False

    def _slot(self, number: int, dtype: Any) -> Any:
        slot = self._slots.get((number, dtype))
        if slot is None:
            slot = self._slots[number, dtype] = self._cuda.slot(self._memory, number, dtype)
        return slot


def _plain(value: Any) -> Any:
    """A tensor of one number without gradient and dimensions."""
    value = value.detach() if value.requires_grad else value
    return value.reshape(()) if value.dim() else value


def _reason(error: Exception) -> str:
    return f"it cannot be copied from its device ({type(error).__name__})"


def _forked() -> None:
    for scalars in _living:
        scalars.forked()


_living: weakref.WeakSet[DeviceScalars] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forked)
