"""CPU time, read from a fixture tree."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trackside_daemon.collectors.cpu import MODES, CpuCollector

if TYPE_CHECKING:
    from trackside_daemon.metric import Sample

PROC = Path(__file__).parent / "fixtures" / "proc"
HERTZ = os.sysconf("SC_CLK_TCK")


def by_mode(samples: list[Sample]) -> dict[str, object]:
    return {sample.labels[0]: sample.value for sample in samples if sample.labels}


def write(proc: Path, *ticks: int) -> None:
    (proc / "stat").write_text(f"cpu  {' '.join(map(str, ticks))}\n")


def test_every_mode_of_the_first_line_is_in_seconds() -> None:
    seconds = by_mode(CpuCollector(PROC).collect())
    assert tuple(seconds) == MODES
    assert seconds["user"] == 10707 / HERTZ
    assert seconds["steal"] == 26 / HERTZ


def test_cpus_are_those_that_the_daemon_may_run_on() -> None:
    assert CpuCollector(PROC).collect()[-1].value == len(os.sched_getaffinity(0))


def test_a_mode_that_the_kernel_does_not_count_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, 3, 4)
    assert tuple(by_mode(CpuCollector(tmp_path).collect())) == MODES[:4]


def test_a_small_step_back_is_held_and_a_large_one_is_a_reset(tmp_path: Path) -> None:
    collector = CpuCollector(tmp_path)
    write(tmp_path, 100 * HERTZ, 0, 0, 100 * HERTZ)
    collector.collect()
    write(tmp_path, 40 * HERTZ, 0, 0, 100 * HERTZ - 1)
    seconds = by_mode(collector.collect())
    assert seconds["idle"] == 100
    assert seconds["user"] == 40


def test_a_file_that_is_not_proc_stat_is_named(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("intr 5\n")
    with pytest.raises(ValueError, match=r"stat begins with 'intr'"):
        CpuCollector(tmp_path).collect()


def test_the_host_that_runs_the_test_can_be_read() -> None:
    assert by_mode(CpuCollector().collect())["user"]
