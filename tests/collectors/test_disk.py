"""Block devices, read from trees of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host.host import DiskCollector
from trackside_daemon.collectors.settings import DiskSection
from trackside_daemon.model.families.host import DISKSTATS

EXCLUDE = DiskSection().exclude
SDA = "   8       0 sda 25 34 1000 184 28 11 506 638 2 965 826"


def write(proc: Path, text: str) -> DiskCollector:
    (proc / "diskstats").write_text(text)
    return DiskCollector(proc, EXCLUDE)


def of(collector: DiskCollector, device: str) -> dict[str, object]:
    return {
        sample.metric.name.removeprefix("trackside_host_disk_"): sample.value
        for sample in collector.collect()
        if sample.labels == (device,)
    }


def devices(collector: DiskCollector) -> list[str]:
    return list(dict.fromkeys(sample.labels[0] for sample in collector.collect()))


def test_an_old_kernels_shorter_line_means_the_same(tmp_path: Path) -> None:
    assert len(of(write(tmp_path, f"{SDA}\n"), "sda")) == len(DISKSTATS)


def test_a_partition_of_a_very_old_kernel_is_left_out_since_its_columns_mean_other_things(tmp_path: Path) -> None:
    assert devices(write(tmp_path, f"{SDA}\n   9       1 md1 35486 0 35496 38030\n")) == ["sda"]


def test_a_device_that_never_did_anything_counts_from_0(tmp_path: Path) -> None:
    assert set(of(write(tmp_path, f"  11       0 sr0{' 0' * 17}\n"), "sr0").values()) == {0}


@pytest.mark.parametrize("device", ["sda", "nvme0n1", "dm-0", "md127", "vdb", "mmcblk0", "xvda", "sdaa"])
def test_a_disk_is_shown(device: str, tmp_path: Path) -> None:
    assert devices(write(tmp_path, f"8 0 {device} 1 2 3 4 5 6 7 8 9 10 11\n")) == [device]


@pytest.mark.parametrize(
    "device", ["sda1", "nvme0n1p2", "loop7", "ram0", "zram0", "vdb1", "mmcblk0p1", "sdaa15", "fd0"]
)
def test_a_partition_and_what_is_none_is_left_out(device: str, tmp_path: Path) -> None:
    assert devices(write(tmp_path, f"{SDA}\n8 0 {device} 1 2 3 4 5 6 7 8 9 10 11\n")) == ["sda"]


def test_the_setting_matches_whole_names(tmp_path: Path) -> None:
    (tmp_path / "diskstats").write_text(f"{SDA}\n{SDA.replace('sda', 'sdab')}\n")
    assert devices(DiskCollector(tmp_path, "sda")) == ["sdab"]


def test_a_line_that_is_not_one_of_numbers_costs_only_itself(tmp_path: Path) -> None:
    text = f"{SDA.replace('1000', 'x')}\n\n{SDA.replace('sda', 'sdb')}\n"
    assert devices(write(tmp_path, text)) == ["sdb"]


def test_a_device_that_goes_is_gone(tmp_path: Path) -> None:
    collector = write(tmp_path, f"{SDA}\n{SDA.replace('sda', 'sdb')}\n")
    assert devices(collector) == ["sda", "sdb"]
    (tmp_path / "diskstats").write_text(f"{SDA}\n")
    assert devices(collector) == ["sda"]


@pytest.mark.parametrize("text", ["", "7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n"])
def test_a_machine_without_disks_has_nothing_to_collect(text: str, tmp_path: Path) -> None:
    with pytest.raises(NothingToCollect, match=r"diskstats has only devices that collector\.disk\.exclude"):
        write(tmp_path, text).collect()


def test_a_kernel_without_the_file_has_nothing_to_collect(tmp_path: Path) -> None:
    with pytest.raises(NothingToCollect, match=r"diskstats does not exist: .* --path\.procfs"):
        DiskCollector(tmp_path, EXCLUDE).collect()


@pytest.mark.parametrize("text", ["intr 5\n", f"{SDA.replace('1000', 'x')}\n"])
def test_a_file_that_is_not_diskstats_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"diskstats has no line of a device, but b'"):
        write(tmp_path, text).collect()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "diskstats").mkdir()
    with pytest.raises(IsADirectoryError, match="diskstats"):
        DiskCollector(tmp_path, EXCLUDE).collect()


def test_the_host_that_runs_the_test_can_be_read() -> None:
    try:
        samples = DiskCollector(Path("/proc"), "").collect()
    except NothingToCollect:
        pytest.skip("no block devices here")
    assert {sample.metric for sample in samples} == set(DISKSTATS.values())
