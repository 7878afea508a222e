"""The host's samples through psutil, compared with those of the collectors that read /proc."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host.host import has_procfs, host_collectors
from trackside_daemon.collectors.host.portable import portable_collectors
from trackside_daemon.collectors.settings import CollectorsSection, CpuSection, DiskSection, NetworkSection, PathSection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trackside_daemon.collectors.base import Collector

ON = CollectorsSection(
    cpu=CpuSection(per_cpu=True), disk=DiskSection(exclude="loop.*"), network=NetworkSection(exclude="")
)
CHANGING = ("_total", "_free_bytes", "_available_bytes", "_avail_bytes", "load1", "load5", "load15", "_time_seconds")


def series(collectors: Sequence[Collector]) -> dict[tuple[str, ...], float]:
    samples = {}
    for collector in collectors:
        try:
            collected = collector.collect()
        except NothingToCollect:
            continue
        names = {metric.name for metric in collector.metrics}
        assert {sample.metric.name for sample in collected} <= names
        for sample in collected:
            assert isinstance(sample.value, (int, float))
            key = (sample.metric.name, *sample.labels)
            samples[key] = sample.value
    return samples


def test_families_labels_and_values_are_those_of_the_collectors_that_read_proc() -> None:
    paths = ("/", "/dev/shm", "/no/such/path")
    portable = series(portable_collectors(ON, paths))
    native = series(host_collectors(ON, PathSection(), paths))
    assert portable.keys() <= native.keys()
    names = {key[0] for key in portable}
    assert {f"trackside_host_{name}" for name in ("cpu_seconds_total", "memory_bytes", "load1", "cpus")} <= names
    for key, value in portable.items():
        if not key[0].endswith(CHANGING):
            assert value == native[key], key
        else:
            assert value == pytest.approx(native[key], rel=0.2, abs=2e8 if "bytes" in key[0] else 100), key


def test_a_system_without_proc_that_is_not_linux_is_read_through_psutil(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert has_procfs(tmp_path), "on Linux, a missing procfs is an error of the collectors"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not has_procfs(tmp_path)
    assert has_procfs(Path("/proc"))
    names = {collector.name for collector in host_collectors(ON, PathSection(procfs=str(tmp_path)), ("/",))}
    assert names == {"cpu", "load", "memory", "disk", "filesystem", "network", "time"}


def test_disabled_collectors_and_excluded_devices_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    on = CollectorsSection(
        cpu=CpuSection(enabled=False), disk=DiskSection(exclude=".*"), network=NetworkSection(exclude=".*")
    )
    by_name = {collector.name: collector for collector in portable_collectors(on, ())}
    assert "cpu" not in by_name
    for name in ("disk", "network", "filesystem"):
        with pytest.raises(NothingToCollect):
            by_name[name].collect()


@pytest.mark.parametrize(("error", "values"), [(OSError(5, "broken"), [1.0]), (PermissionError(13, "denied"), [])])
def test_a_file_system_that_fails_has_an_error_and_one_without_permission_has_nothing(
    monkeypatch: pytest.MonkeyPatch, error: OSError, values: list[float]
) -> None:
    def fails(_: str) -> None:
        raise error

    monkeypatch.setattr(psutil, "disk_usage", fails)
    (collector,) = (one for one in portable_collectors(ON, ("/",)) if one.name == "filesystem")
    assert [sample.value for sample in collector.collect()] == values


def test_the_innermost_mount_of_a_path_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inner = tmp_path.resolve()
    partitions = [
        SimpleNamespace(mountpoint=str(point), fstype="apfs", opts="ro,local")
        for point in ("/", inner, inner / "other")
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: partitions)
    (inner / "data").mkdir()
    (collector,) = (one for one in portable_collectors(ON, (str(inner / "data"),)) if one.name == "filesystem")
    readonly = [sample for sample in collector.collect() if sample.metric.name.endswith("readonly")]
    assert [(sample.labels, sample.value) for sample in readonly] == [((str(inner), "apfs"), 1.0)]
