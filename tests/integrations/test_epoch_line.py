"""The line of an epoch: its numbers follow from steps and waits. The tests of both frameworks have those that are written."""

from __future__ import annotations

import re

import pytest

from trackside.integrations import epoch_line
from trackside.integrations.epoch_line import EpochLine

LINE = re.compile(
    r"^trackside: epoch (\S+): [\d.]+ samples/s, \d+ % of what the steps alone allow, load [\d.]+ ms "
    r"\(p95 [\d.]+ ms\), peak memory [\d.]+ GB of the host$",
    re.MULTILINE,
)


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


def test_many_waits_are_thinned() -> None:
    line = EpochLine()
    for _ in range(100_000):
        line.began()
    assert len(line._waits) < epoch_line.MOST
