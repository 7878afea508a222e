"""The directory of the history: choice, permissions, lock, network file systems, and errors."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import re
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

import pytest

from trackside.environment.paths import machine_id
from trackside_daemon.history import directory as place_module
from trackside_daemon.history.directory import (
    HistoryError,
    default_directory,
    lock_history,
    network_file_system,
    prepare,
    writable_directory,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINE = "0123456789abcdef0123456789abcdef"
USER = 1000

MOUNTS = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:40 / /home rw,relatime shared:1 master:2 - nfs4 server:/home rw,vers=4.2
24 23 0:41 / /home/local rw - xfs /dev/vdb rw
25 22 0:42 / /mnt/my\040data rw - cifs //nas/data rw
26 22 0:43 / /mnt/over rw - lustre mds@tcp:/fs rw
27 26 0:44 / /mnt/over rw - ext4 /dev/vdc rw
28 22 0:45 / /mnt/under rw - ext4 /dev/vdd rw
29 28 0:46 / /mnt/under rw - fuse.sshfs me@there: rw
30 22 0:47 / /mnt/fuse rw - fuse.fuse-overlayfs overlay rw
31 22 0:48 / /mnt/back\134slash rw - 9p share rw
a line that is none
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """A machine with an id."""
    directory = tmp_path / "etc"
    directory.mkdir()
    (directory / "machine-id").write_text(f"{MACHINE}\n")
    return directory


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's directory, which does not exist yet."""
    directory = tmp_path / "var" / "lib" / "trackside"
    monkeypatch.setattr(place_module, "SYSTEM_DIRECTORY", directory)
    return directory


@pytest.fixture
def mounts(tmp_path: Path) -> Callable[[str], str]:
    """A function that returns the network file system of a path, among `MOUNTS`."""
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTS)
    return lambda path: network_file_system(Path(path), file)


def refusal(path: Path | None, **more: object) -> str:
    with pytest.raises(HistoryError) as caught:
        prepare(path, **more)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert "--storage.path=DIR" in str(caught.value)
    return str(caught.value)


def locked_out(directory: Path) -> str:
    with pytest.raises(HistoryError) as caught:
        lock_history(directory)
    assert "\n" not in str(caught.value)
    assert "--storage.path=DIR" in str(caught.value)
    return str(caught.value)


def open_files() -> set[str]:
    return {file.name for file in Path("/proc/self/fd").iterdir()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refuse_access(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `os.access` refuse everything, as no file mode does for root."""
    monkeypatch.setattr("os.access", lambda _path, _mode: False)


def test_a_users_history_is_apart_for_each_machine(system: Path, etc: Path) -> None:
    environ = {"XDG_STATE_HOME": "/state", "HOME": "/home/me"}
    assert default_directory(environ, USER, etc) == Path("/state/trackside") / MACHINE


@pytest.mark.parametrize("state", [{}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "state"}])
def test_without_a_state_home_that_can_be_used_it_is_in_the_home(
    system: Path, etc: Path, state: dict[str, str]
) -> None:
    assert default_directory({"HOME": "/home/me", **state}, USER, etc) == (
        Path("/home/me/.local/state/trackside") / MACHINE
    )


def test_without_a_home_in_the_environment_it_is_the_one_of_the_users_database(
    system: Path, etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda uid: pwd.struct_passwd(("me", "x", uid, uid, "", "/home/me", "/bin/sh")))
    assert default_directory({}, USER, etc) == Path("/home/me/.local/state/trackside") / MACHINE


def test_a_user_without_a_home_is_asked_to_name_a_place(system: Path) -> None:
    assert "uid 4294000000 has no home" in refusal(None, environ={}, uid=4294000000)


@pytest.mark.parametrize("text", [None, "", "uninitialized\n", "../../etc\n", "\xff"])
def test_a_machine_without_an_id_is_identified_by_its_host_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "machine-id").write_bytes(text.encode("latin-1"))
    monkeypatch.setattr("os.uname", lambda: os.uname_result(("Linux", "node-7.cluster", "6.1", "#1", "x86_64")))
    assert machine_id(tmp_path) == "node-7.cluster"


@pytest.mark.parametrize(("name", "component"), [("../a b", "_a_b"), ("..", "localhost"), ("", "localhost")])
def test_a_host_name_cannot_lead_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, component: str
) -> None:
    monkeypatch.setattr("os.uname", lambda: os.uname_result(("Linux", name, "6.1", "#1", "x86_64")))
    assert machine_id(tmp_path) == component


def test_root_has_the_systems_directory_and_it_is_made(system: Path) -> None:
    before = os.umask(0)
    try:
        assert prepare(None, {}, 0) == system
    finally:
        os.umask(before)
    assert [mode(system), mode(system.parent), mode(system.parent.parent)] == [0o700] * 3


def test_a_user_with_write_access_to_the_systems_directory_has_it(
    system: Path, etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.mkdir(parents=True)
    assert default_directory({"HOME": "/home/me"}, USER, etc) == system
    refuse_access(monkeypatch)
    assert default_directory({"HOME": "/home/me"}, USER, etc).is_relative_to("/home/me")


def test_the_default_directory_is_made_and_an_existing_one_retains_its_mode(system: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    made = prepare(None, {"XDG_STATE_HOME": str(state)}, USER)
    assert made.is_relative_to(state / "trackside")
    assert (mode(made), mode(made.parent), mode(state)) == (0o700, 0o700, 0o755)
    assert prepare(None, {"XDG_STATE_HOME": str(state)}, USER) == made


def test_a_default_directory_that_cannot_be_made_names_the_way_out(system: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    message = refusal(None, environ={"XDG_STATE_HOME": str(tmp_path / "state")}, uid=USER)
    assert str(tmp_path / "state") in message


def test_a_named_directory_is_used_as_it_is(tmp_path: Path) -> None:
    assert prepare(tmp_path) == tmp_path


def test_a_named_directory_is_made_if_its_parent_exists(tmp_path: Path) -> None:
    message = refusal(tmp_path / "my" / "data")
    assert message.startswith(f"{tmp_path}/my/data: no such directory; make it with mkdir -p {tmp_path}/my/data")
    assert not (tmp_path / "my").exists()
    assert stat.S_IMODE(prepare(tmp_path / "my data").stat().st_mode) == 0o700


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file").startswith(f"{tmp_path}/file is not a directory")
    assert refusal(tmp_path / "file" / "below").startswith(f"{tmp_path}/file/below: not a directory")


def test_a_directory_that_may_not_be_written_is_reported_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o500)
    refuse_access(monkeypatch)
    uid = os.getuid()
    assert refusal(tmp_path).startswith(
        f"{tmp_path}: uid {uid} may not write there (it belongs to uid {uid}, mode 0500)"
    )


def test_a_read_only_file_system_is_called_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_access(monkeypatch)
    monkeypatch.setattr("os.statvfs", lambda _path: SimpleNamespace(f_flag=os.ST_RDONLY | os.ST_NOSUID))
    assert refusal(tmp_path).startswith(f"{tmp_path}: its file system is read-only; ")


@pytest.mark.parametrize("name", ["a\nb", "a\0b", "a\x1b[31m"])
def test_a_strange_path_is_named_in_one_line(tmp_path: Path, name: str) -> None:
    assert refusal(tmp_path / name / "none").isprintable()


def test_another_option_is_named_when_another_asks(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"--storage\.jsonl=DIR"):
        writable_directory(tmp_path / "none", "--storage.jsonl")


def test_a_second_daemon_is_refused_with_the_holder_of_the_history(tmp_path: Path) -> None:
    first = lock_history(tmp_path)
    assert first.supported
    message = locked_out(tmp_path)
    assert message.startswith(f"{tmp_path}: ")
    assert f"(pid {os.getpid()})" in message
    first.close()
    first.close()
    lock_history(tmp_path).close()


def test_the_lock_file_is_private_and_stays(tmp_path: Path) -> None:
    (tmp_path / "history.lock").write_text("4194304\nand something longer")
    lock = lock_history(tmp_path)
    (file,) = (
        one for one in Path("/proc/self/fd").iterdir() if one.exists() and one.samefile(tmp_path / "history.lock")
    )
    assert not os.get_inheritable(int(file.name))
    lock.close()
    assert (tmp_path / "history.lock").read_text() == f"{os.getpid()}\n"
    (tmp_path / "history.lock").unlink()
    lock_history(tmp_path).close()
    assert mode(tmp_path / "history.lock") == 0o600


def test_a_refused_daemon_leaves_no_file_open(tmp_path: Path) -> None:
    with_first = lock_history(tmp_path)
    before = open_files()
    locked_out(tmp_path)
    assert open_files() == before
    with_first.close()


def test_the_kernel_lets_go_for_a_daemon_that_is_killed(tmp_path: Path) -> None:
    script = f"""
        import sys
        from pathlib import Path
        from trackside_daemon.history.directory import lock_history
        lock = lock_history(Path({str(tmp_path)!r}))
        print("held", flush=True)
        sys.stdin.read()
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert f"(pid {holder.pid})" in locked_out(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    lock_history(tmp_path).close()


def failing_flock(code: int) -> Callable[[int, int], NoReturn]:
    def flock(_file: int, _operation: int) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return flock


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(fcntl, "flock", failing_flock(code))
    lock = lock_history(tmp_path)
    assert not lock.supported
    lock.close()


def test_a_lock_that_fails_in_another_way_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing_flock(errno.EIO))
    assert locked_out(tmp_path).startswith(f"{tmp_path}/history.lock: input/output error")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_does_not_keep_a_daemon_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def pwrite(*_arguments: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.pwrite", pwrite)
    lock = lock_history(tmp_path)
    assert lock.supported
    assert "(pid unknown)" in locked_out(tmp_path)
    lock.close()


def test_a_lock_file_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    (tmp_path / "history.lock").mkdir()
    assert re.match(f"{tmp_path}/history.lock: is a directory; ", locked_out(tmp_path))
    (tmp_path / "history.lock").rmdir()
    (tmp_path / "history.lock").symlink_to(tmp_path / "elsewhere")
    locked_out(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", ""),
        ("/var/lib/trackside", ""),
        ("/home", "nfs4"),
        ("/home/me/.local/state", "nfs4"),
        ("/homes/me", ""),
        ("/home/local/me", ""),
        ("/home/locality", "nfs4"),
        ("/mnt/my data/x", "cifs"),
        ("/mnt/over/x", ""),
        ("/mnt/under/x", "fuse.sshfs"),
        ("/mnt/fuse/x", ""),
        ("/mnt/back\\slash", "9p"),
    ],
)
def test_the_nearest_mount_that_is_seen_decides_the_file_system(
    mounts: Callable[[str], str], path: str, kind: str
) -> None:
    assert mounts(path) == kind


def test_the_name_of_a_mount_may_have_anything_but_a_newline(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_bytes(b"22 1 0:20 / / rw - ext4 x rw\n23 22 0:21 / /a\rb rw - nfs4 server:/a rw\n")
    assert network_file_system(Path("/a\rb/x"), tmp_path / "mountinfo") == "nfs4"


def test_a_root_on_the_network_is_found(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("22 1 0:20 / / rw - nfs server:/root rw\n")
    assert network_file_system(Path("/srv/x"), tmp_path / "mountinfo") == "nfs"


@pytest.mark.parametrize(
    "kind",
    [
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs"),
        *("lustre", "gpfs", "beegfs", "ceph", "glusterfs", "orangefs", "wekafs", "panfs", "pvfs2"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.beegfs", "fuse.juicefs", "fuse.s3fs", "fuse.rclone"),
    ],
)
def test_every_network_file_system_is_recognized_by_its_type(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mountinfo").write_text(f"22 1 0:20 / / rw - {kind} source rw\n")
    assert network_file_system(Path("/srv"), tmp_path / "mountinfo") == kind


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuseblk", "fuse.mergerfs", "nfsd"]
)
def test_a_local_file_system_is_none_of_them(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mountinfo").write_text(f"22 1 0:20 / / rw - {kind} source rw\n")
    assert network_file_system(Path("/srv"), tmp_path / "mountinfo") == ""


def test_a_link_is_followed_to_where_the_files_are(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(
        f"22 1 0:20 / / rw - ext4 /dev/vda rw\n23 22 0:21 / {tmp_path}/far rw - nfs s:/x rw\n"
    )
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to("far")
    assert network_file_system(tmp_path / "near" / "x", tmp_path / "mountinfo") == "nfs"


def test_without_proc_no_file_system_is_named(tmp_path: Path) -> None:
    assert network_file_system(tmp_path, tmp_path / "none") == ""


def test_this_machines_mounts_can_be_read(tmp_path: Path) -> None:
    assert isinstance(network_file_system(tmp_path), str)
