"""Pauses of the handle, in which no process has a device file open."""

from __future__ import annotations

import math
import threading
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from scripted_workers import (
    COUNTS,
    HANGING,
    LONG,
    WALL,
    Unreapable,
    child,
    number,
    pid,
    reap,
    unavailable_reason,
)

from trackside_daemon.nvml.handle.handle import NvmlAbsent, NvmlPaused

if TYPE_CHECKING:
    from scripted_workers import Clock, Workers


def test_a_pause_ends_the_worker_and_reports_until_when(worker: Workers, clock: Clock) -> None:
    nvml = worker(COUNTS)
    number(nvml)
    assert nvml.pause(60)
    assert child(nvml).status is not None
    end = WALL + clock.now + 60
    assert nvml.paused_until == end
    with pytest.raises(NvmlPaused) as caught:
        nvml.read(0.01)
    local = datetime.fromtimestamp(end).astimezone()
    assert str(caught.value) == f"paused until {local:%H:%M:%S}; trackside resume-gpu ends the pause"
    assert isinstance(caught.value, NvmlAbsent)
    assert nvml.restarts["pause"] == 1


def test_after_a_pause_a_worker_starts_at_once(worker: Workers) -> None:
    nvml = worker(COUNTS)
    number(nvml)
    nvml.pause(60)
    nvml.resume()
    assert nvml.paused_until is None
    assert number(nvml) == "1"


def test_a_pause_ends_by_itself(worker: Workers, clock: Clock) -> None:
    nvml = worker(COUNTS)
    nvml.pause(60)
    clock.now += 59
    assert "paused until" in unavailable_reason(nvml)
    clock.now += 2
    assert nvml.paused_until is None
    assert number(nvml) == "1"


def test_a_pause_without_an_end_lasts(worker: Workers, clock: Clock) -> None:
    nvml = worker(COUNTS)
    assert nvml.pause()
    clock.now += 1e9
    assert nvml.paused_until == math.inf
    assert unavailable_reason(nvml) == "paused; trackside resume-gpu ends the pause"
    assert nvml.restarts["pause"] == 0


def test_a_second_pause_replaces_the_first(worker: Workers, clock: Clock) -> None:
    nvml = worker(COUNTS)
    nvml.pause()
    nvml.pause(10)
    assert nvml.paused_until == WALL + clock.now + 10


def test_a_worker_that_hangs_is_ended_by_a_pause_too(worker: Workers) -> None:
    nvml = worker(HANGING)
    unavailable_reason(nvml, 0.01)
    assert nvml.pause(60)
    assert child(nvml).status is not None
    assert "paused until" in unavailable_reason(nvml)


def test_a_pause_comes_between_the_readings_of_another_thread(worker: Workers) -> None:
    nvml, has_read, ends = worker(COUNTS), threading.Event(), []

    def read() -> None:
        try:
            while True:
                nvml.read(LONG)
                has_read.set()
        except NvmlPaused as error:
            ends.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert has_read.wait(LONG)
    assert nvml.pause()
    reader.join(LONG)
    assert len(ends) == 1


def test_a_pause_reports_that_a_worker_in_the_kernel_keeps_the_device_files(worker: Workers) -> None:
    nvml = worker(COUNTS)
    number(nvml)
    process = Unreapable(child(nvml))
    assert not nvml.pause(60)
    assert process.signals == ["TERM", "KILL"]
    nvml.resume()
    assert f"the pause is over; waiting for the worker, process {pid(nvml)}, to end" in unavailable_reason(nvml)
    process.release()
    reap(nvml)
    assert number(nvml) == "1"


def test_a_request_to_unbind_a_gpu_pauses_for_a_minute(worker: Workers, clock: Clock) -> None:
    unbinds = '{"error": "the driver lets go of a GPU", "reason": "gpu_unbind"}'
    nvml = worker(f"import sys\nsys.stdin.readline()\nprint('{unbinds}', flush=True)")
    with pytest.raises(NvmlPaused, match=r"the driver lets go of a GPU; paused until .*; trackside resume-gpu"):
        nvml.read(30.0)
    assert nvml.paused_until == WALL + clock.now + 60
    assert nvml.restarts["gpu_unbind"] == 1
    reap(nvml)
    clock.now += 61
    unavailable_reason(nvml)
    assert nvml.restarts["gpu_unbind"] == 2
