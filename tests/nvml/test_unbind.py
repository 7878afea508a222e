"""Requests to unbind the driver."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pynvml
import pytest
from nvml.answers import target
from processes import DEADLINE, eventually

from trackside_daemon.nvml.worker.driver import Driver
from trackside_daemon.nvml.worker.events import DriverUnbind
from trackside_daemon.nvml.worker.library import CountedNvml

SUCCESS, NOT_SUPPORTED, TIMEOUT, UNKNOWN = 0, 3, 10, 999


class Unbinds:
    """System events of the driver: a wait lasts until the test ends it."""

    def __init__(self, library: Any) -> None:
        self.types = 0
        self.ends: queue.Queue[int] = queue.Queue()
        library.functions |= {
            "nvmlSystemEventSetCreate": self.create,
            "nvmlSystemRegisterEvents": self.register,
            "nvmlSystemEventSetWait": self.wait,
        }

    def create(self, *call: Any) -> None:
        target(call[-1]).set = pynvml.cast(1, pynvml.c_nvmlSystemEventSet_t)

    def register(self, *call: Any) -> None:
        self.types = target(call[-1]).eventTypes

    def wait(self, *call: Any) -> int:
        request = target(call[-1])
        status = self.ends.get()
        if status == SUCCESS:
            request.data[0].eventType, request.numEvent = self.types, 1
        return status


def ended() -> None:
    """Return when the thread that waits for events has ended."""
    for thread in threading.enumerate():
        if thread.name == "driver unbind":
            thread.join(DEADLINE)
            assert not thread.is_alive()


def test_after_a_request_to_unbind_the_next_reading_releases_the_driver(library: Any) -> None:
    unbinds, driver = Unbinds(library), Driver(pynvml)
    assert driver.read().error == ""
    unbinds.ends.put(TIMEOUT)
    unbinds.ends.put(SUCCESS)
    reading = eventually(lambda: one if (one := driver.read()).error else None)
    assert reading is not None
    assert unbinds.types == pynvml.nvmlSystemEventTypeGpuDriverUnbind
    assert reading.reason == "gpu_unbind"
    assert "is about to be unbound" in reading.error
    assert not reading.absent


@pytest.mark.parametrize("status", [NOT_SUPPORTED, UNKNOWN])
def test_a_driver_without_unbind_events_is_not_retried(library: Any, status: int) -> None:
    Unbinds(library).ends.put(status)
    unbind = DriverUnbind(CountedNvml(pynvml))
    unbind.start()
    ended()
    assert not unbind.requested.is_set()


def test_an_older_driver_is_read_as_ever(library: Any) -> None:
    driver = Driver(pynvml)
    driver.read()
    ended()
    assert driver.read().error == ""
