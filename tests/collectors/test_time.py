"""Clocks, boot time and kernel, with a kernel that the test simulates."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from nvml.answers import target

from trackside_daemon.collectors.host.host import BOOT_SECONDS, TimeCollector
from trackside_daemon.linux import adjtimex
from trackside_daemon.linux.adjtimex import STA_NANO, TIME_ERROR, Discipline, discipline

if TYPE_CHECKING:
    from pathlib import Path

UNAME = os.uname_result(("Linux", "gpu7", "6.8.0-45-generic", "#45-Ubuntu SMP", "x86_64"))
KEPT = Discipline(synchronized=True, offset=0.25)


class Host:
    """A host whose clocks show *now*."""

    def __init__(self, proc: Path) -> None:
        self.now = 1000.0
        self.kept: Discipline | OSError = KEPT
        self.stat = proc / "stat"
        self.boots(1_759_000_000)
        self.collector = TimeCollector(
            proc, wall=lambda: self.now + 0.5, clock=lambda: self.now, kernel=self.kernel, uname=lambda: UNAME
        )

    def kernel(self) -> Discipline:
        if isinstance(self.kept, OSError):
            raise self.kept
        return self.kept

    def boots(self, when: int) -> None:
        self.stat.write_text(f"cpu  1 2 3 4\nbtime {when}\n")

    def values(self) -> dict[str, object]:
        names = ((sample.metric.name, sample.value) for sample in self.collector.collect())
        return {name.removeprefix("trackside_host_"): value for name, value in names}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_every_clock_and_the_kernel(host: Host) -> None:
    assert host.values() == {
        "time_seconds": 1000.5,
        "boot_time_seconds": 1_759_000_000,
        "time_offset_seconds": 0.25,
        "time_synchronized": 1,
        "uname_info": 1,
    }
    (labels,) = [sample.labels for sample in host.collector.collect() if sample.labels]
    assert labels == ("Linux", "6.8.0-45-generic", "#45-Ubuntu SMP", "x86_64", "gpu7")


def test_the_boot_is_read_again_only_after_a_while(host: Host) -> None:
    host.values()
    host.boots(1_759_000_003)
    host.now += BOOT_SECONDS - 1
    assert host.values()["boot_time_seconds"] == 1_759_000_000
    host.now += 1
    assert host.values()["boot_time_seconds"] == 1_759_000_003


def test_a_kernel_that_may_not_be_asked_is_logged_once_and_the_rest_stays(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trackside")
    host.kept = PermissionError(errno.EPERM, "adjtimex: Operation not permitted")
    assert set(host.values()) == set(host.values()) == {"time_seconds", "boot_time_seconds", "uname_info"}
    (record,) = caplog.records
    assert "adjtimex: Operation not permitted; allow adjtimex in the container's seccomp profile" in record.getMessage()


def test_an_unmeasured_offset_is_left_out(host: Host) -> None:
    host.kept = Discipline(synchronized=False, offset=None)
    values = host.values()
    assert values["time_synchronized"] == 0
    assert "time_offset_seconds" not in values


def test_a_file_that_is_not_there_or_broken_is_named(host: Host) -> None:
    host.stat.write_text("btime soon\n")
    with pytest.raises(ValueError, match=r"/stat: btime is 'soon', not a number; .*path\.procfs"):
        host.values()
    host.stat.write_text("cpu  1 2 3 4\n")
    with pytest.raises(ValueError, match=r"/stat has no btime; .*path\.procfs"):
        host.values()
    host.stat.unlink()
    with pytest.raises(FileNotFoundError, match=r"path\.procfs name it\?: '.*/stat'$"):
        host.values()
    host.boots(7)
    assert host.values()["boot_time_seconds"] == 7


def answer(monkeypatch: pytest.MonkeyPatch, state: int, offset: int = 0, status: int = 0) -> list[int]:
    """Replace the kernel's answers from now on; return the modes of the calls."""
    modes: list[int] = []

    class Libc:
        @staticmethod
        def adjtimex(reference: Any) -> int:
            timex = target(reference)
            modes.append(timex.modes)
            timex.offset, timex.status = offset, status
            if state < 0:
                ctypes.set_errno(errno.EPERM)
            return state

    monkeypatch.setattr(adjtimex, "_libc", Libc)
    return modes


def test_an_offset_is_in_the_unit_that_the_status_names(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = answer(monkeypatch, 0, -12_500, STA_NANO)
    assert discipline() == (True, -0.0000125)
    answer(monkeypatch, 0, -12_500)
    assert discipline() == (True, -0.0125)
    assert modes == [0]


def test_a_clock_without_a_time_service_is_not_synchronized(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, TIME_ERROR)
    assert discipline() == (False, 0.0)


def test_an_offset_that_no_kernel_holds_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 0, 2**32, STA_NANO)
    assert discipline() == (True, None)


def test_a_refusal_names_its_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, -1)
    with pytest.raises(PermissionError, match="adjtimex: Operation not permitted"):
        discipline()


def test_the_host_that_runs_the_test_can_be_read() -> None:
    before = time.time()
    values = {sample.metric.name: sample.value for sample in TimeCollector().collect()}
    assert before <= values["trackside_host_time_seconds"] <= time.time()  # type: ignore[operator]
    assert 0 < values["trackside_host_boot_time_seconds"] < before + 1  # type: ignore[operator]
