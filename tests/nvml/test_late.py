"""Slow workers: which answer a call returns, and which workers are replaced."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

import pytest
from scripted_workers import LONG, await_answer, number, unavailable_reason

if TYPE_CHECKING:
    from pathlib import Path

    from scripted_workers import Clock, Workers

    from trackside_daemon.nvml.handle.handle import Nvml

#: Holds the second answer back until the test writes to the FIFO that is its argument; what it writes is how many seconds
#: ago that was measured. With one argument more it holds back all that follow too.
HELD_BACK = """
import json, sys, time
for n, _ in enumerate(sys.stdin, 1):
    age = float(open(sys.argv[1]).read()) if n == 2 or n > 2 and sys.argv[3:] else 0.0
    reading = {"gpus": [], "driver": {"number": str(n)}, "measured_at": time.monotonic() - age}
    print(json.dumps(reading), flush=True)
"""
#: Goes on to a GPU with each line that the test writes to the FIFO that is its argument.
STEADY = """
import sys
answer = '{"gpus": []}'
sys.stdin.readline()
print(answer, flush=True)
sys.stdin.readline()
for index, _ in enumerate(open(sys.argv[1])): print(index, flush=True)
"""


def test_of_a_worker_that_is_always_late_each_answer_is_given_by_the_next_call(worker: Workers, tmp_path: Path) -> None:
    nvml, release = worker(HELD_BACK, str(tmp_path / "fifo"), "all"), tmp_path / "fifo"
    os.mkfifo(release)
    number(nvml)
    assert "has not answered for 0.0 s; it is replaced after 10 s" in unavailable_reason(nvml, 0.01)
    for late in ("2", "3", "4"):
        unavailable_reason(nvml, 0.01)
        release.write_text("0")
        await_answer(nvml)
        assert number(nvml, 0.01) == late
    release.write_text("0")


def test_after_one_late_answer_the_next_call_has_its_own(worker: Workers, tmp_path: Path) -> None:
    nvml, release = worker(HELD_BACK, str(tmp_path / "fifo")), tmp_path / "fifo"
    os.mkfifo(release)
    number(nvml)
    unavailable_reason(nvml, 0.01)
    release.write_text("0")
    await_answer(nvml)
    assert [number(nvml), number(nvml)] == ["3", "4"]


@pytest.mark.parametrize(("interval", "age", "is_given"), [(1, 2, True), (1, 3, False), (2, 3, True), (60, 130, False)])
def test_a_late_answer_is_none_when_it_was_measured_too_long_ago(
    worker: Workers, tmp_path: Path, interval: int, age: int, is_given: bool
) -> None:
    nvml, release = worker(HELD_BACK, str(tmp_path / "fifo"), "all"), tmp_path / "fifo"
    os.mkfifo(release)
    nvml.interval = interval
    number(nvml)
    unavailable_reason(nvml, 0.01)
    release.write_text(str(age))
    await_answer(nvml)
    if is_given:
        assert number(nvml, 0.01) == "2"
    else:
        assert "has not answered" in unavailable_reason(nvml, 0.01)
    release.write_text("0")
    await_answer(nvml)
    assert number(nvml, 0.01) == "3"


def test_calls_that_find_the_worker_busy_with_an_older_request_are_counted(worker: Workers, tmp_path: Path) -> None:
    nvml, release = worker(HELD_BACK, str(tmp_path / "fifo")), tmp_path / "fifo"
    os.mkfifo(release)
    number(nvml)
    unavailable_reason(nvml, 0.01)
    assert nvml.skipped == 0
    unavailable_reason(nvml, 0.01)
    unavailable_reason(nvml, 0.01)
    assert nvml.skipped == 2
    release.write_text("0")
    number(nvml)
    assert nvml.skipped == 2


def test_a_worker_that_continues_from_gpu_to_gpu_does_not_hang_until_it_hangs_at_one(
    worker: Workers, clock: Clock, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    nvml = worker(STEADY, str(tmp_path / "fifo"))
    nvml.read(LONG)
    unavailable_reason(nvml, 0.01)
    with (tmp_path / "fifo").open("w", buffering=1) as steps:
        for _ in range(4):
            clock.now += 9
            _go_on(nvml, steps)
        assert nvml.restarts["timeout"] == 0
        clock.now += 11
        assert "hung for 11 s at GPU 3, which is skipped" in unavailable_reason(nvml, 0.01)


def test_a_worker_that_never_comes_to_an_end_is_replaced_and_no_gpu_is_blamed(
    worker: Workers, clock: Clock, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    nvml = worker(STEADY, str(tmp_path / "fifo"))
    nvml.read(LONG)
    unavailable_reason(nvml, 0.01)
    with (tmp_path / "fifo").open("w", buffering=1) as steps:
        for _ in range(6):
            clock.now += 9.5
            _go_on(nvml, steps)
        clock.now += 5
        assert "has read GPUs for 62 s" in unavailable_reason(nvml, 0.01)
    assert nvml.quarantined == frozenset()
    assert nvml.restarts["timeout"] == 1


def _go_on(nvml: Nvml, steps: IO[str]) -> None:
    """Let the worker start the next GPU."""
    steps.write("\n")
    await_answer(nvml)
    assert "it is replaced after 10 s at one GPU" in unavailable_reason(nvml, 0.01)
