"""Processes with open device files of the driver."""

from __future__ import annotations

import os
from pathlib import Path

from trackside_daemon.nvml.holders import DeviceHolder, holders


def test_processes_with_a_device_file_of_the_driver_are_named_once(tmp_path: Path) -> None:
    for pid, name, files in (
        (4711, "python", ["/dev/null", "/dev/nvidia0", "/dev/nvidiactl"]),
        (12, "nvidia-persiste", ["/dev/nvidia0"]),
        (13, "bash", ["/dev/null", "/home/nvidia0"]),
        (14, "ended", []),
    ):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
        for number, file in enumerate(files):
            (tmp_path / str(pid) / "fd" / str(number)).symlink_to(file)
    (tmp_path / "14" / "fd").rmdir()
    assert holders(tmp_path) == [DeviceHolder(12, "nvidia-persiste"), DeviceHolder(4711, "python")]


def test_processes_of_other_users_are_left_out() -> None:
    assert os.getpid() not in {one.pid for one in holders(Path("/proc"))}
