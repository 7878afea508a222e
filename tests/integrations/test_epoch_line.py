"""The line of an epoch: its numbers follow from steps and waits. The tests of both frameworks have those that are written."""

from __future__ import annotations

import pickle
import re
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE

from trackside.integrations import epoch_line, run_adapter
from trackside.integrations.epoch_line import EpochLine, ResourceLine

if TYPE_CHECKING:
    from pathlib import Path

LINE = re.compile(
    r"^trackside: epoch (\S+): [\d.]+ samples/s, \d+ % of what the steps alone allow, load [\d.]+ ms "
    r"\(p95 [\d.]+ ms\), peak memory [\d.]+ GB of the host$",
    re.MULTILINE,
)
RESOURCES = re.compile(r"^trackside: batch (\d+): CPU \d+ %, RAM [\d.]+ of [\d.]+ GB\n", re.MULTILINE)


def test_a_line_has_the_waits_before_the_steps_and_what_the_steps_alone_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(epoch_line, "perf_counter", lambda: now[0])
    line = EpochLine()
    for place in range(20):
        now[0] += 0.5 if place == 19 else 0.1  # a wait
        line.began()
        now[0] += 0.3  # a step
        line.stepped(8)
        now[0] += 2.0  # an evaluation
        line.pause()
    assert line.efficiency == pytest.approx(6.0 / 8.4)
    assert line.text(1).startswith(
        "trackside: epoch 1: 19.0 samples/s, 71 % of what the steps alone allow, load 100.0 ms (p95 500.0 ms), peak memory "
    )
    line.begin()
    assert line.efficiency is None


def test_a_line_of_resources_comes_after_every_n_batches_and_none_waits_for_a_driver_that_hangs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       32000000 kB\nMemAvailable:   19700000 kB\n")
    (tmp_path / "stat").write_text("cpu  100 0 100 800 0 0 0 0 0 0\n")
    line = ResourceLine(10, tmp_path)
    answers = threading.Event()
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 1,
        get_device_properties=lambda _: SimpleNamespace(total_memory=8_000_000_000),
        memory_reserved=lambda _: 6_200_000_000,
        utilization=lambda _: answers.wait(DEADLINE) and 85,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    (tmp_path / "stat").write_text("cpu  170 0 120 910 0 0 0 0 0 0\n")
    for _ in range(35):  # NVML hangs from batch 10 on: no further line begins
        line.count()
    answers.set()
    assert pickle.loads(pickle.dumps(line))._batches == 35
    assert line._thread is not None
    line._thread.join(DEADLINE)
    printed = "trackside: batch 10: GPU 1 85 %, 6.2 of 8.0 GB, CPU 45 %, RAM 12.3 of 32.0 GB\n"
    assert capsys.readouterr().err == printed
    off = ResourceLine(0, tmp_path)
    for _ in range(100):
        off.count()
    assert off._thread is None


def test_a_gpu_that_fails_costs_only_the_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    cuda = SimpleNamespace(is_initialized=lambda: True, current_device=fail)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(run_adapter, "_failed", set())
    line = ResourceLine(1)
    line.count()
    line.count()
    (logged,) = caplog.messages
    assert "CUDA error: unspecified launch failure; training goes on without these values" in logged


def test_many_waits_are_thinned() -> None:
    line = EpochLine()
    for _ in range(100_000):
        line.began()
    assert len(line._waits) < epoch_line.MOST
