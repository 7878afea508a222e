"""A device simulated on the CPU, whose work is done when a test decides so."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from trackside.device_scalars import SLOTS, Cuda

if TYPE_CHECKING:
    from collections.abc import Callable


class OnDevice(torch.Tensor):  # type: ignore[misc]
    """A tensor that reports a CUDA device as its place."""

    is_cuda = True


def on_device(value: object, **more: Any) -> torch.Tensor:
    return torch.tensor(value, **more).as_subclass(OnDevice)


class Event:
    """A CUDA event, done when the stream has reached it.

    Attributes:
        threads: The threads that have queried it.
    """

    def __init__(self) -> None:
        self.done = False
        self.threads: set[int] = set()

    def query(self) -> bool:
        self.threads.add(threading.get_ident())
        return self.done


class Stream(Cuda):
    """A stream that copies late and in order, when a test decides so.

    Attributes:
        capturing: True while it is being captured.
        memories: The number of allocations of pinned memory.
        uuids: UUIDs of its devices by their types; None if reading one raises an error.
        events: All events that were made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.capturing = False
        self.memories = 0
        self.uuids: dict[str, str] | None = {"cpu": "GPU-aa"}
        self.events: list[Event] = []
        self._work: deque[Callable[[], object]] = deque()

    def is_capturing(self) -> bool:
        return self.capturing

    def pinned(self) -> torch.Tensor:
        self.memories += 1
        with torch.inference_mode(mode=False):
            return torch.zeros(SLOTS, dtype=torch.int64)

    def uuid(self, device: torch.device) -> str:
        if self.uuids is None:
            raise RuntimeError("the device has failed")
        return self.uuids.get(device.type, "")

    def copy(self, slot: torch.Tensor, value: torch.Tensor) -> None:
        self._work.append(lambda: Cuda.copy(self, slot, value))

    def record(self, event: Event | None, device: torch.device) -> Event:
        if event is None:
            event = Event()
            self.events.append(event)
        event.done = False
        self._work.append(lambda: setattr(event, "done", True))
        return event

    def advance(self, events: int = SLOTS) -> None:
        """Do the work up to so many events."""
        while events and self._work:
            before = [event.done for event in self.events]
            self._work.popleft()()
            events -= before != [event.done for event in self.events]
