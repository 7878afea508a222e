"""Places of cgroups, from the files of a kernel; tests on a real machine are in collectors/test_cgroup.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trackside_daemon.linux.cgroups import Cgroup, CgroupMount, Cgroups, directory_of

PID = 7
V2 = "30 23 0:26 {root} {point} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "36 31 0:31 / {point}/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
MEMORY = "35 31 0:30 / {point}/memory rw shared:8 - cgroup cgroup rw,memory\n"


def found(tmp_path: Path, cgroup: str, mountinfo: str, **where: Path) -> Any:
    """Return the cgroup of a process, or None."""
    for name, text in {"self/mountinfo": mountinfo, f"{PID}/cgroup": cgroup}.items():
        file = tmp_path / "proc" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
    return Cgroups(tmp_path / "proc", **where).of(PID)


@pytest.mark.parametrize(
    ("root", "cgroup", "directory"),
    [
        ("/", "/", "/cg"),
        ("/", "/job/step", "/cg/job/step"),
        ("/docker/abc", "/docker/abc", "/cg"),
        ("/docker/abc", "/docker/abc/rank0", "/cg/rank0"),
        ("/docker/abc", "/docker/abcd", None),
        ("/docker/abc", "/docker/abc/../other", None),
        ("/", "/../other", None),
        ("/../..", "/../../other", "/cg/other"),
        ("/../pod", "/../pod/train", "/cg/train"),
        ("/../pod", "/../other", None),
        ("/../../pod", "/../train", None),
    ],
)
def test_a_cgroup_is_where_the_mount_shows_it(root: str, cgroup: str, directory: str | None) -> None:
    expected = None if directory is None else Path(directory)
    assert directory_of(CgroupMount(Path("/cg"), root), cgroup, PID) == expected


def test_names_that_the_namespace_hides_are_found_by_the_process(tmp_path: Path) -> None:
    """The daemon's pod has a cgroup namespace, and the host's cgroups are mounted in it."""
    for slice_, pids in {"kubepods[0]": "6\n7\n", "system": "17\n"}.items():
        directory = tmp_path / "host" / slice_ / "pod2" / "train[1]"
        directory.mkdir(parents=True)
        (directory / "cgroup.procs").write_text(pids)
    mount = CgroupMount(tmp_path / "host", "/../../..")
    assert directory_of(mount, "/../../pod2/train[1]", PID) == tmp_path / "host" / "kubepods[0]" / "pod2" / "train[1]"
    assert directory_of(mount, "/../../pod2/train[1]", 8) is None


def test_the_levels_are_the_nearest_first_up_to_the_mount(tmp_path: Path) -> None:
    cgroup = found(tmp_path, "0::/job/step\n", V2.format(root="/", point=tmp_path / "cg"))
    assert cgroup == Cgroup("/job/step", {}, (tmp_path / "cg/job/step", tmp_path / "cg/job", tmp_path / "cg"))
    assert cgroup.levels("memory") == cgroup.v2


def test_each_controller_of_v1_has_levels_of_its_own(tmp_path: Path) -> None:
    point = tmp_path / "cg"
    mountinfo = (V1 + MEMORY + V2).format(root="/", point=point)
    cgroup = found(tmp_path, "5:cpu,cpuacct:/a\n4:memory:/b\n3:pids:/c\n1:name=systemd:/\n0::/d\n", mountinfo)
    assert cgroup.levels("cpuacct") == (point / "cpu,cpuacct" / "a", point / "cpu,cpuacct")
    assert cgroup.levels("memory") == (point / "memory" / "b", point / "memory")
    assert cgroup.levels("pids") == (), "v1's, and it is not mounted"
    assert cgroup.v2 == (point / "d", point)


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        ("5:cpu,cpuacct:/a\n4:memory:/b:1\n0::/d\n", "/b:1"),
        ("5:cpu,cpuacct:/a\n4:memory:/\n0::/d\n", "/a"),
        ("5:cpu,cpuacct:/\n4:memory:/\n0::/d\n", "/d"),
        ("5:cpu,cpuacct:/\n4:memory:/\n0::/\n", "/"),
    ],
)
def test_the_path_is_the_first_that_is_not_the_root(tmp_path: Path, lines: str, path: str) -> None:
    cgroup = found(tmp_path, lines, "")
    assert cgroup.path == path


def test_what_is_mounted_below_the_hosts_sys_goes_first(tmp_path: Path) -> None:
    own, host = V2.format(root="/", point="/sys/fs/cgroup"), V2.format(root="/../pod", point="/host/sys/fs/cgroup")
    (tmp_path / "host/sys/fs/cgroup").mkdir(parents=True)
    both = {sys: found(tmp_path, "0::/\n", own + host, sys=Path(sys)) for sys in ("/sys", "/host/sys")}
    assert both["/sys"] == both["/host/sys"] == Cgroup("/", {}, (Path("/sys/fs/cgroup"),)), "only there it is seen"
    host = V2.format(root="/", point="/host/sys/fs/cgroup")
    below = found(tmp_path, "0::/job\n", own + host, sys=Path("/host/sys"))
    assert below.v2[0] == Path("/host/sys/fs/cgroup/job")


def test_mount_points_can_be_sought_elsewhere(tmp_path: Path) -> None:
    cgroup = found(tmp_path, "0::/job\n", V2.format(root="/", point="/sys/fs/cgroup"), root=tmp_path)
    assert cgroup.v2[0] == tmp_path / "sys/fs/cgroup/job"


def test_what_mountinfo_escapes_is_read(tmp_path: Path) -> None:
    mountinfo = V2.format(root=r"/my\134x2djob.slice", point=r"/sys/fs/c\040group")
    cgroup = found(tmp_path, "0::/my\\x2djob.slice/step\n", mountinfo)
    assert cgroup.v2[0] == Path("/sys/fs/c group/step")


@pytest.mark.parametrize("name", ["a\rb", "a\x0cb", "a\x1cb", "a\x85b", "a\u2028b"])
def test_a_false_cgroup_that_any_user_mounts_anywhere_costs_no_other(tmp_path: Path, name: str) -> None:
    mounts = f"31 23 0:27 / /mnt/{name} rw - tmpfs none rw\n32 23\n" + V2.format(root="/", point=f"/cg/{name}")
    cgroup = found(tmp_path, f"0::/job/{name}\n", mounts)
    assert cgroup == Cgroup(f"/job/{name}", {}, tuple(Path(f"/cg/{name}") / one for one in (f"job/{name}", "job", "")))


def test_a_cgroup_that_is_gone_is_none(tmp_path: Path) -> None:
    assert found(tmp_path, "0::/job (deleted)\n", V2.format(root="/", point="/cg")) is None
    assert Cgroups(tmp_path / "proc").of(PID + 1) is None
