"""Pressure, read from small trees and from a kernel that has it turned off."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host import pressure
from trackside_daemon.collectors.host.pressure import PressureCollector
from trackside_daemon.collectors.kernel_files import read_base

PLAIN = Path(__file__).parent / "machines" / "plain" / "proc"
LINE = "some avg10=0.00 avg60=0.00 avg300=0.00 total="


def values(proc: Path) -> dict[str, object]:
    names = ((sample.metric.name, sample.value) for sample in PressureCollector(proc).collect())
    return {name.removeprefix("trackside_host_pressure_"): value for name, value in names}


def test_a_file_that_the_kernel_lacks_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text(f"{LINE}1500000\n")
    assert values(tmp_path) == {"cpu_waiting_seconds_total": 1.5}


def test_a_kernel_without_pressure_has_nothing_and_the_cure_is_logged(tmp_path: Path) -> None:
    with pytest.raises(
        NothingToCollect, match=r"/pressure has no data; this needs Linux 4\.20 or later with CONFIG_PSI, .*psi=1"
    ):
        PressureCollector(tmp_path).collect()


def not_counted(path: Path) -> bytes:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(path))


def test_a_kernel_that_has_it_turned_off_has_nothing_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pressure, "read_base", not_counted)
    with pytest.raises(NothingToCollect, match=r"psi=1 on the kernel's command line"):
        PressureCollector(PLAIN).collect()


def test_a_kernel_that_does_not_count_interrupts_reports_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pressure, "read_base", lambda path: not_counted(path) if path.name == "irq" else read_base(path)
    )
    assert "irq_stalled_seconds_total" not in values(PLAIN)
    assert values(PLAIN)["cpu_waiting_seconds_total"] == 32.78729


def test_a_total_that_is_no_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text(f"{LINE}much\n")
    with pytest.raises(ValueError, match=r"/pressure/cpu: a total is 'much', not a number"):
        PressureCollector(tmp_path).collect()


def test_another_failure_is_one(tmp_path: Path) -> None:
    (tmp_path / "pressure" / "cpu").mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=r"/pressure/cpu"):
        PressureCollector(tmp_path).collect()
