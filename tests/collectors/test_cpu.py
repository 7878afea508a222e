"""CPU time, read from small trees; test_machines.py has every mode."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trackside_daemon.collectors.host.host import MODES, CpuCollector
from trackside_daemon.model.families import host

if TYPE_CHECKING:
    from trackside_daemon.model.metric import Sample

MACHINES = Path(__file__).parent / "machines"
HERTZ = os.sysconf("SC_CLK_TCK")


def by_mode(samples: list[Sample]) -> dict[str, object]:
    return {sample.labels[0]: sample.value for sample in samples if len(sample.labels) == 1}


def by_core(samples: list[Sample]) -> dict[tuple[str, ...], object]:
    return {sample.labels: sample.value for sample in samples if sample.metric is host.CPU_CORE_SECONDS}


def write(proc: Path, *ticks: int) -> None:
    (proc / "stat").write_text(f"cpu  {' '.join(map(str, ticks))}\n")


@pytest.mark.parametrize(("machine", "cpus"), [("many-cpus", 224), ("plain", 2)])
def test_cpus_are_those_that_are_online_also_when_the_daemon_may_not_use_them(machine: str, cpus: int) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert CpuCollector(MACHINES / machine / "proc").collect()[-1].value == cpus
    finally:
        os.sched_setaffinity(0, before)


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


def test_a_missing_file_is_named_with_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"path\.procfs name it\?: '.*/stat'$"):
        CpuCollector(tmp_path).collect()


def test_a_count_that_is_no_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  1 2 x 4\n")
    with pytest.raises(ValueError, match=r"/stat: a count of cpu is 'x', not a number; .*path\.procfs"):
        CpuCollector(tmp_path).collect()
    (tmp_path / "stat").write_text("cpu  1 2 3 4\nctxt many\n")
    with pytest.raises(ValueError, match=r"/stat: ctxt is 'many', not a number"):
        CpuCollector(tmp_path).collect()


def test_a_small_step_back_of_one_cpu_is_held(tmp_path: Path) -> None:
    collector = CpuCollector(tmp_path, per_cpu=True)
    (tmp_path / "stat").write_text(f"cpu  0 0 0 0\ncpu0 0 0 0 {5 * HERTZ}\ncpu1 0 0 0 {5 * HERTZ}\n")
    collector.collect()
    (tmp_path / "stat").write_text(f"cpu  0 0 0 0\ncpu0 0 0 0 {5 * HERTZ - 1}\ncpu1 0 0 0 {HERTZ}\n")
    seconds = by_core(collector.collect())
    assert seconds["0", "idle"] == 5
    assert seconds["1", "idle"] == 1


def test_a_cpu_that_goes_offline_is_no_longer_reported(tmp_path: Path) -> None:
    collector = CpuCollector(tmp_path, per_cpu=True)
    (tmp_path / "stat").write_text("cpu  2 0 0 0\ncpu0 1 0 0 0\ncpu1 1 0 0 0\n")
    collector.collect()
    (tmp_path / "stat").write_text("cpu  2 0 0 0\ncpu0 1 0 0 0\n")
    assert {cpu for cpu, _ in by_core(collector.collect())} == {"0"}


def test_the_host_that_runs_the_test_can_be_read() -> None:
    assert by_mode(CpuCollector().collect())["user"]
