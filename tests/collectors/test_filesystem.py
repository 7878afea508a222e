"""Sizes of the file systems of a table of mounts, as the collector itself reads them."""

from __future__ import annotations

import errno
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from collectors.blocking import DEAD, WELL, by_mount, wait_for_answers

if TYPE_CHECKING:
    from pathlib import Path

    from collectors.mountinfo import Table
    from scripted_workers import Clock


def test_each_file_system_is_shown_once(table: Table, collect: Any, statvfs: list[str]) -> None:
    table.mount("/data", "xfs", options="ro")
    (table.root / "tmp").mkdir()
    (table.root / "link").symlink_to("data")
    assert by_mount(collect("/", "/tmp", "/data", "/link")) == {"/": WELL, "/data": {**WELL, "readonly": 1}}
    assert statvfs == [f"{table.root}/", f"{table.root}/data"]


def test_labels_are_the_hosts_own_names(table: Table, collect: Any, statvfs: list[str]) -> None:
    table.mount("/my data", "ext4")
    labels = {sample.labels for sample in collect("/my data").collect()}
    assert labels == {("/my data", "ext4")}


def test_a_mount_point_that_is_no_utf8_has_a_label(table: Table, collect: Any, statvfs: list[str]) -> None:
    table.mount("/caf", "ext4")
    mountinfo = table.proc / "self" / "mountinfo"
    mountinfo.write_bytes(mountinfo.read_bytes().replace(b"/caf ", b"/caf\xe9 "))
    assert list(by_mount(collect(os.fsdecode(b"/caf\xe9")))) == ["/caf\ufffd"]


def test_a_missing_path_is_logged_once_and_found_later(
    table: Table, collect: Any, statvfs: list[str], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trackside")
    collector = collect("/data")
    for _ in range(3):
        assert by_mount(collector) == {}
        clock.now += 11
    assert [record.getMessage() for record in caplog.records] == [
        "collector.filesystem.paths: /data does not exist; it is shown as soon as it does"
    ]
    table.mount("/data", "xfs")
    assert by_mount(collector) == {"/data": WELL}


def test_a_path_on_a_mount_that_a_container_lacks_is_logged_and_not_mistaken_for_another(
    table: Table, collect: Any, statvfs: list[str], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (table.proc / "1").mkdir()
    (table.proc / "1" / "mountinfo").write_text(
        f"5 1 0:{table.numbers['/']} / / rw - ext4 disk rw\n6 5 0:9 / /data rw - nfs4 storage:/data rw\n"
    )
    collector = collect("/data")
    for _ in range(2):
        assert by_mount(collector) == {}
        clock.now += 11
    [line] = [record.getMessage() for record in caplog.records]
    assert line == (
        f"collector.filesystem.paths: /data is on /data of the host, which is not visible below {table.root}; "
        "mount the host's / there with propagation: rslave, or HostToContainer in Kubernetes"
    )


def test_what_a_file_system_does_not_count_is_absent(
    collect: Any, monkeypatch: pytest.MonkeyPatch, statvfs: list[str]
) -> None:
    none = SimpleNamespace(f_frsize=4096, f_blocks=0, f_bfree=0, f_bavail=0, f_files=0, f_ffree=0)
    monkeypatch.setattr(os, "statvfs", lambda _: none)
    assert by_mount(collect("/")) == {"/": {"device_error": 0, "readonly": 0}}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_nothing_is_read_of_what_the_daemon_s_user_may_not_enter(
    collect: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def statvfs(path: str) -> os.statvfs_result:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    collector = collect("/")
    assert [by_mount(collector), by_mount(collector)] == [{}, {}]
    [line] = [record.getMessage() for record in caplog.records]
    assert f"the file system at / (ext4) cannot be read: {os.strerror(number)}; allow the daemon's user" in line


def test_a_child_s_answer_of_what_may_not_be_entered_is_the_same(table: Table, collect: Any, tmp_path: Path) -> None:
    table.mount("/nfs", "nfs4")
    refuses = f'import sys; print("ready", flush=True)\nfor _ in sys.stdin: print({errno.EACCES}, flush=True)'
    collector = collect("/nfs", command=(sys.executable, "-c", refuses))
    wait_for_answers(collector, 30.0)
    assert by_mount(collector) == {}


def test_a_local_file_system_that_fails_costs_only_itself(
    table: Table, collect: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trackside")
    table.mount("/data", "xfs")
    real, broken = os.statvfs, [f"{table.root}/data"]

    def statvfs(path: str) -> os.statvfs_result:
        if path in broken:
            raise OSError(5, "Input/output error", path)
        return real(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    collector = collect("/", "/data")
    for _ in range(2):
        reported = by_mount(collector)
        assert reported["/data"] == DEAD
        assert reported["/"]["device_error"] == 0
    broken.clear()
    assert by_mount(collector)["/data"]["device_error"] == 0
    assert [record.getMessage() for record in caplog.records] == [
        "the file system at /data (xfs) cannot be read: Input/output error",
        "the file system at /data answers again",
    ]
