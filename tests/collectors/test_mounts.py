"""Mount of a path, by the kernel's own rules, without access to a path that may hang."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from collectors.mountinfo import Table
from scripted_workers import Clock

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host.filesystem.mounts import (
    LINKS,
    READ_AGAIN,
    READ_AT_MOST,
    Mount,
    Mounts,
    MountTable,
    parse,
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def mount_of(table: Table, path: str) -> Mount | None:
    mounts = Mounts(table.proc, table.root)
    assert mounts.refresh()
    mounts.close()
    return mounts.of(path)


def where(table: Table, path: str) -> tuple[str, str] | None:
    """Return the mount point and the type of the file system that holds the path."""
    mount = mount_of(table, path)
    return None if mount is None else (mount.point, mount.fstype)


@pytest.fixture
def resolved_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are passed to readlink."""
    paths: list[str] = []
    real = os.readlink

    def record_path(path: str) -> str:
        paths.append(path)
        return real(path)

    monkeypatch.setattr(os, "readlink", record_path)
    return paths


@pytest.mark.parametrize("optional", ["", " shared:1", " shared:1 master:2 propagate_from:3"])
def test_a_line_may_have_any_number_of_optional_fields(optional: str) -> None:
    line = f"36 35 98:0 /mnt1 /mnt2 rw,noatime{optional} - ext3 /dev/root rw,errors=continue\n"
    assert MountTable(line.encode()).at("/mnt2") == [Mount(36, 35, "98:0", "/mnt2", "ext3", readonly=False)]


def test_what_the_kernel_writes_in_octal_is_found() -> None:
    line = rb"36 35 98:0 / /a\040b\011c\012d\134e\134 rw - ext3 /dev/root rw"
    assert [mount.point for mount in MountTable(line).at("/a b\tc\nd\\e\\")] == ["/a b\tc\nd\\e\\"]


def test_a_name_that_is_no_utf8_is_retained() -> None:
    [mount] = MountTable(b"36 35 98:0 / /caf\xe9 rw - ext3 /dev/root rw").at(os.fsdecode(b"/caf\xe9"))
    assert os.fsencode(mount.point) == b"/caf\xe9"


def test_only_what_is_mounted_at_a_point_is_found() -> None:
    at = rb"36 35 98:0 / {} ro - ext3 /data rw" + b"\n"
    lines = [
        at.replace(b"{}", point) for point in (b"/data/sets", b"/", b"/data", b"/mnt/data", b"/data", b"/database")
    ]
    bind = b"37 35 98:0 /data /elsewhere rw - ext3 /data rw\n"
    table = MountTable(b"".join([*lines, bind]))
    assert [len(table.at(point)) for point in ("/data", "/", "/mnt/data", "/elsewhere", "/nowhere")] == [2, 1, 1, 1, 0]


@pytest.mark.parametrize(("options", "more"), [("ro,relatime", "rw"), ("rw,relatime", "ro,errors=remount-ro")])
def test_a_mount_is_read_only_by_itself_or_by_its_file_system(options: str, more: str) -> None:
    mount = parse(f"36 35 98:0 / / {options} - ext3 /dev/root {more}".encode())
    assert mount is not None
    assert mount.readonly


def test_rootflags_are_no_ro() -> None:
    mount = parse(b"36 35 98:0 / / rw,errors=ro - ext3 /dev/root rw,prone")
    assert mount is not None
    assert not mount.readonly


def test_a_line_that_is_none_costs_only_itself() -> None:
    good = b"36 35 98:0 / / rw - ext3 /dev/root rw\n"
    bad = b"nonsense / rw\n" + b"x 35 98:0 / / rw - ext3 /dev/root rw\n"
    assert len(MountTable(good + bad + good).at("/")) == 2


def test_a_path_is_on_the_last_mount_on_its_way(table: Table) -> None:
    table.mount("/data", "xfs")
    table.mount("/data/sets", "ext4")
    (table.root / "data" / "sets" / "images").mkdir()
    (table.root / "database").mkdir()
    assert where(table, "/data/sets/images/") == ("/data/sets", "ext4")
    assert where(table, "/data") == ("/data", "xfs")
    assert where(table, "/database") == ("/", "ext4")


def test_a_path_that_is_not_there_is_on_no_mount(table: Table) -> None:
    (table.root / "file").touch()
    assert where(table, "/nothing") is None
    assert where(table, "/file/below") is None


def test_a_later_mount_hides_an_earlier_one_at_the_same_point(table: Table) -> None:
    table.mount("/data", "xfs")
    table.mount("/data", "nfs4")
    assert where(table, "/data") == ("/data", "nfs4")
    table.mount("/", "btrfs")
    assert where(table, "/data") == where(table, "/") == ("/", "btrfs")


def test_what_is_mounted_below_a_point_that_was_mounted_over_is_not_met(table: Table) -> None:
    table.mount("/data", "xfs")
    table.mount("/data/sets", "nfs4")
    table.mount("/data", "tmpfs")
    assert where(table, "/data/sets") == ("/data", "tmpfs")


def test_a_bind_mount_is_a_mount_of_its_own(table: Table) -> None:
    table.mount("/checkpoints", "ext4")
    assert where(table, "/checkpoints") == ("/checkpoints", "ext4")


def test_links_are_followed_on_local_file_systems(table: Table) -> None:
    table.mount("/scratch", "xfs")
    (table.root / "scratch" / "user").mkdir()
    (table.root / "home").mkdir()
    (table.root / "home" / "absolute").symlink_to("/scratch/user")
    (table.root / "home" / "relative").symlink_to("../scratch/./user/..")
    (table.root / "home" / "twice").symlink_to("absolute/..")
    for name in ("absolute", "relative", "twice"):
        assert where(table, f"/home/{name}") == ("/scratch", "xfs")
    assert where(table, "/home/relative/../home") == ("/", "ext4")


def test_links_in_a_circle_lead_nowhere(table: Table, resolved_paths: list[str]) -> None:
    (table.root / "a").symlink_to("b")
    (table.root / "b").symlink_to("a")
    assert where(table, "/a/file") is None
    assert len(resolved_paths) == LINKS + 1


@pytest.mark.parametrize("fstype", ["nfs4", "fuse.sshfs", "lustre", "cifs", "9p", "something-new"])
def test_nothing_on_a_mount_that_may_hang_is_touched(table: Table, resolved_paths: list[str], fstype: str) -> None:
    table.mount("/far", fstype)
    (table.root / "near").symlink_to("/far/sets/images")
    assert where(table, "/near/one") == ("/far", fstype)
    assert where(table, "/far/../far/sets") == ("/far", fstype)
    assert resolved_paths
    assert not [path for path in resolved_paths if path.startswith(f"{table.root}/far")]


def test_what_is_mounted_below_a_mount_that_may_hang_is_met(table: Table, resolved_paths: list[str]) -> None:
    table.mount("/far", "nfs4")
    table.mount("/far/local", "xfs")
    table.mount("/far/other", "nfs4")
    assert where(table, "/far/local/sets") == ("/far/local", "xfs")
    assert where(table, "/far/other/sets") == ("/far/other", "nfs4")
    assert resolved_paths == []


def test_what_autofs_has_not_mounted_yet_is_not_there(table: Table) -> None:
    table.mount("/net", "autofs")
    table.mount("/net/storage", "nfs4")
    table.mount("/data", "autofs")
    direct = table.mount("/data", "nfs4")
    assert where(table, "/net/storage/sets") == ("/net/storage", "nfs4")
    assert where(table, "/net/other") is None
    assert where(table, "/data") == ("/data", "nfs4")
    table.unmount(direct)
    assert where(table, "/data") is None


def test_a_directory_that_may_not_be_read_is_accepted_as_it_stands(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.mount("/root/data", "xfs")

    def closed(path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "readlink", closed)
    assert where(table, "/root/data") == ("/root/data", "xfs")


def test_mounts_of_the_container_are_not_the_hosts(table: Table) -> None:
    with (table.proc / "self" / "mountinfo").open("a") as file:
        file.write(
            f"90 20 0:90 / {table.root.parent}/hosts rw - tmpfs tmpfs rw\n91 20 0:91 / /etc rw - tmpfs tmpfs rw\n"
        )
    (table.root / "etc").mkdir()
    (table.root / "s").mkdir()
    assert where(table, "/etc") == ("/", "ext4")
    assert where(table, "/s") == ("/", "ext4")


def test_read_only_is_what_the_first_process_sees(table: Table) -> None:
    """A container has the host's / read-only, and systemd's ProtectSystem makes it so for a service."""
    table.unmount(20)
    table.mount("/", "ext4", options="ro,relatime")
    number = table.mount("/data", "xfs", options="ro,relatime")
    own = (table.proc / "self" / "mountinfo").read_text()
    (table.proc / "1").mkdir()
    (table.proc / "1" / "mountinfo").write_text(own)
    for path in ("/", "/data"):
        mount = mount_of(table, path)
        assert mount is not None
        assert mount.readonly
    (table.proc / "1" / "mountinfo").write_text(
        f"5 1 0:{table.numbers['/']} / / rw - ext4 disk rw\n6 5 0:{number + 1} / /data rw - xfs another-disk rw\n"
    )
    root, data = mount_of(table, "/"), mount_of(table, "/data")
    assert root is not None
    assert not root.readonly
    assert data is not None
    assert data.readonly


def test_the_file_system_reports_whether_it_is_read_only_when_all_is_so_for_a_service(table: Table) -> None:
    """Without CAP_SYS_PTRACE a service cannot read what the first process sees."""
    table.unmount(20)
    table.mount("/", "ext4", options="ro,relatime")
    table.mount("/data", "xfs", options="ro,relatime")
    table.mount("/broken", "ext4", options="ro,relatime", more="ro")
    mounts = {path: mount_of(table, path) for path in ("/", "/data", "/broken")}
    assert {path: mount.readonly for path, mount in mounts.items() if mount is not None} == {
        "/": False,
        "/data": False,
        "/broken": True,
    }


def test_a_mount_of_the_host_that_is_not_below_the_root_is_found(table: Table) -> None:
    table.mount("/data", "xfs")
    (table.proc / "1").mkdir()
    first = (
        f"5 1 0:{table.numbers['/']} / / rw - ext4 disk rw\n6 5 0:{table.numbers['/data']} / /data rw - xfs disk rw\n"
    )
    beyond = "7 6 0:99 / /data/sets rw - nfs4 storage:/sets rw\n"
    (table.proc / "1" / "mountinfo").write_text(first + beyond)
    mounts = Mounts(table.proc, table.root)
    mounts.refresh()
    mounts.close()
    paths = ("/data/sets", "/data/sets/images", "/data/setsquare", "/data", "/")
    assert [mounts.hidden(path) for path in paths] == ["/data/sets", "/data/sets", "", "", ""]


def test_the_first_process_of_a_container_reveals_nothing_of_the_hosts_mounts(table: Table) -> None:
    (table.proc / "1").mkdir()
    (table.proc / "1" / "mountinfo").write_text("5 1 0:70 / / rw - overlay o rw\n6 5 0:71 / /data rw - xfs disk rw\n")
    mounts = Mounts(table.proc, table.root)
    mounts.refresh()
    mounts.close()
    assert mounts.hidden("/data") == ""


def test_the_mounts_are_read_again_after_ten_seconds(table: Table) -> None:
    clock = Clock()
    mounts = Mounts(table.proc, table.root, clock)
    assert mounts.refresh()
    table.mount("/data", "xfs")
    assert not mounts.refresh()
    clock.now += READ_AGAIN
    assert mounts.refresh()
    assert mounts.of("/data") is not None
    mounts.close()


def test_a_table_that_keeps_changing_is_read_every_few_seconds(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    changing = SimpleNamespace(poll=lambda _: [1], register=lambda *_: None, unregister=lambda _: None)
    monkeypatch.setattr("select.poll", lambda: changing)
    mounts = Mounts(table.proc, table.root, clock)
    read = []
    for _ in range(10):
        read.append(mounts.refresh())
        clock.now += READ_AT_MOST / 3
    assert read == [True, False, False] * 3 + [True]
    assert mounts.changed
    mounts.close()


def test_an_overlay_and_what_is_on_it_may_hang_but_not_where_this_process_lives(table: Table) -> None:
    def answers(proc: Path, root: Path, path: str) -> bool:
        mounts = Mounts(proc, root)
        mounts.refresh()
        mounts.close()
        mount = mounts.of(path)
        assert mount is not None
        return mounts.is_local(mount)

    table.mount("/merged", "overlay")
    table.mount("/merged/data", "xfs")
    found = [answers(table.proc, table.root, path) for path in ("/", "/merged", "/merged/data")]
    assert found == [True, False, False]
    mountinfo = table.proc / "self" / "mountinfo"
    mountinfo.write_text(
        "20 1 0:20 / / rw - overlay overlay rw,lowerdir=/l/a:/l/b,upperdir=/u,workdir=/w\n"
        f"21 20 0:21 / {table.root} rw - overlay overlay rw,lowerdir=/far,upperdir=/u,workdir=/w\n"
    )
    assert answers(table.proc, Path("/"), "/")
    assert not answers(table.proc, table.root, "/")


def test_without_mountinfo_it_reports_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(
        NothingToCollect, match=r"self/mountinfo does not exist; is --path\.procfs the mount point of procfs"
    ):
        Mounts(tmp_path, Path("/")).refresh()


def test_a_chroot_that_is_no_mount_is_reported(table: Table) -> None:
    mounts = Mounts(table.proc, table.root / "jail")
    with pytest.raises(NothingToCollect, match="in a chroot, bind-mount its directory first"):
        mounts.refresh()
    mounts.close()


def test_this_machine_has_proc_where_it_is_expected() -> None:
    mounts = Mounts(Path("/proc"), Path("/"))
    mounts.refresh()
    mount = mounts.of("/proc/self/status")
    mounts.close()
    assert mount is not None
    assert (mount.point, mount.fstype) == ("/proc", "proc")
