"""A device on the CPU, whose work is done when a test says so."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from trackside.pytorch.device_scalars import SLOTS, Cuda

if TYPE_CHECKING:
    from collections.abc import Callable


class OnDevice(torch.Tensor):  # type: ignore[misc]
    """A tensor that says it is on a CUDA device."""

    is_cuda = True


def on_device(value: object, **more: Any) -> torch.Tensor:
    return torch.tensor(value, **more).as_subclass(OnDevice)


class Event:
    """Done when the stream has come to it.

    Attributes:
        threads: Those that have asked.
    """

    def __init__(self) -> None:
        self.done = False
        self.threads: set[int] = set()

    def query(self) -> bool:
        self.threads.add(threading.get_ident())
        return self.done


class Stream(Cuda):
    """Copies are made late and in order, when a test says so.

    Attributes:
        capturing: Whether it is being captured.
        memories: How often pinned memory was allocated.
        uuids: Of its devices by their types; None when asking for one raises.
        events: All that were made.
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
