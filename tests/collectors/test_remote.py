"""Room on file systems that may hang, through the real child and through ones that are scripts."""

from __future__ import annotations

import errno
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest
from collectors.blocking import (
    BLOCKS,
    DEAD,
    WELL,
    ask_in_vain,
    by_mount,
    hang,
    hanging,
    idle,
    is_reaped,
    remote_mounts,
    waited_for,
)
from dead_filesystem import CannotMount, FuseMount
from processes import eventually
from scripted_workers import Clock, Unreapable

from trackside_daemon.collectors.base import NothingToCollect
from trackside_daemon.collectors.host.filesystem.mounts import READ_AGAIN, READ_AT_MOST
from trackside_daemon.collectors.host.filesystem.remote import DEADLINE, RETRY_SECONDS

if TYPE_CHECKING:
    from collectors.mountinfo import Table

    from trackside_daemon.collectors.host.filesystem.filesystem import FilesystemCollector


def test_no_child_is_started_for_local_file_systems(
    table: Table, collect: Any, statvfs: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    table.mount("/far", "nfs4")
    collector = collect("/", command=("/no/such/program",))
    assert by_mount(collector) == {"/": WELL}
    assert caplog.records == []


def test_the_real_child_reports_what_statvfs_reports(table: Table, collect: Any) -> None:
    table.mount("/far ü", "nfs4")
    found = os.statvfs(table.root)
    collector = collect("/far ü")
    reported = eventually(lambda: by_mount(collector))["/far ü"]
    assert reported["size_bytes"] == found.f_frsize * found.f_blocks
    assert reported["files"] == found.f_files
    assert reported["device_error"] == 0


def test_an_error_of_the_real_child_is_that_of_statvfs(
    table: Table, collect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    table.mount("/far", "nfs4")
    (table.root / "far").rmdir()
    collector = collect("/far")
    assert eventually(lambda: by_mount(collector)) == {"/far": DEAD}
    assert "(nfs4) cannot be read: No such file or directory" in caplog.text


def test_one_child_serves_all_that_answer(far: FilesystemCollector) -> None:
    assert len(idle(far)) == 1
    assert not hanging(far)


def test_the_child_imports_nothing_of_ours_nor_of_the_users(table: Table, collect: Any) -> None:
    table.mount("/far", "nfs4")
    collector = collect("/far")
    eventually(lambda: by_mount(collector))
    [child] = idle(collector)
    command = Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")
    assert command[1:3] == [b"-I", b"-S"]
    assert b"site-packages" not in Path(f"/proc/{child.pid}/maps").read_bytes()


def test_one_that_hangs_keeps_no_other_waiting_and_is_dead_after_five_seconds(
    far: FilesystemCollector, clock: Clock, fifos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask_in_vain(far, fifos / "nfs")
    clock.now += DEADLINE
    assert by_mount(far) == {"/nfs": WELL, "/lustre": WELL, "/": ANY}  # what it said last is five seconds old at most
    assert caplog.records == []
    clock.now += 0.1
    assert by_mount(far) == {"/nfs": DEAD, "/lustre": WELL, "/": ANY}
    by_mount(far)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("the file system at /nfs (nfs4) does not answer: its server is down or unreachable")
    assert "umount -f -l /nfs" in line


def test_one_that_has_never_answered_is_absent_until_it_is_dead(
    table: Table, collect: Any, clock: Clock, fifos: Path
) -> None:
    table.mount("/nfs", "nfs4")
    os.mkfifo(fifos / "nfs")
    collector = collect("/nfs", command=(sys.executable, "-c", BLOCKS, str(fifos)))
    eventually(lambda: by_mount(collector) == {} and hanging(collector))
    clock.now += DEADLINE + 0.1
    assert by_mount(collector) == {"/nfs": DEAD}


def test_a_late_answer_is_read_in_a_later_tick(
    table: Table, collect: Any, fifos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table.mount("/nfs", "nfs4")
    os.mkfifo(fifos / "nfs")
    collector = collect("/nfs", command=(sys.executable, "-c", BLOCKS, str(fifos)))
    eventually(lambda: by_mount(collector) == {} and hanging(collector))  # without a reader, the write would block
    (fifos / "nfs").write_text("now")
    assert eventually(lambda: by_mount(collector)) == {"/nfs": WELL}
    assert caplog.records == []


def test_a_dead_one_is_asked_again_with_growing_pauses_and_logged_when_it_is_back(
    far: FilesystemCollector, clock: Clock, fifos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trackside")
    first = hang(far, clock, fifos / "nfs")
    eventually(lambda: is_reaped(first))
    for pause in (RETRY_SECONDS, 2 * RETRY_SECONDS, 4 * RETRY_SECONDS, 8 * RETRY_SECONDS, 300, 300):
        clock.now += pause - 1
        by_mount(far)
        assert not hanging(far)
        clock.now += 1
        assert by_mount(far)["/nfs"] == DEAD
        eventually(lambda: by_mount(far) and len(hanging(far)) == 1)
        clock.now += DEADLINE + 0.1
        assert by_mount(far)["/nfs"] == DEAD
        eventually(lambda: by_mount(far) and not hanging(far))
    (fifos / "nfs").unlink()
    clock.now += 300
    eventually(lambda: by_mount(far)["/nfs"] == WELL)
    assert [record.getMessage()[:40] for record in caplog.records] == [
        "the file system at /nfs (nfs4) does not ",
        "the file system at /nfs answers again",
    ]


def test_a_child_that_sigkill_does_not_end_is_the_only_one_in_its_mount_and_its_end_is_a_sign_of_life(
    far: FilesystemCollector, clock: Clock, fifos: Path
) -> None:
    child = ask_in_vain(far, fifos / "nfs")
    process = Unreapable(child)
    clock.now += DEADLINE + 0.1
    for _ in range(5):
        assert by_mount(far) == {"/nfs": DEAD, "/lustre": WELL, "/": ANY}
        assert child in hanging(far)
        clock.now += 100
    assert set(process.signals) == {"KILL"}
    process.release()
    eventually(lambda: is_reaped(child))
    (fifos / "nfs").unlink()
    eventually(lambda: by_mount(far)["/nfs"] == WELL)


def test_a_dead_mount_that_is_given_up_is_forgotten(
    table: Table, far: FilesystemCollector, clock: Clock, fifos: Path
) -> None:
    child = hang(far, clock, fifos / "nfs")
    table.unmount(table.numbers["/nfs"])
    clock.now += 11
    assert set(by_mount(far)) == {"/", "/lustre"}
    eventually(lambda: is_reaped(child))
    by_mount(far)
    assert remote_mounts(far) == 1


def test_a_child_that_is_killed_from_outside_is_replaced(far: FilesystemCollector) -> None:
    [child] = idle(far)
    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: is_reaped(child))
    assert eventually(lambda: by_mount(far)["/nfs"] == WELL)
    assert child not in idle(far)


@pytest.mark.parametrize(
    "script_and_error",
    [
        ("raise SystemExit('no memory')", "it exited with status 1: no memory"),
        ("print('nonsense')", "it wrote b'nonsense' at its start"),
        ("print('ready')\ninput()\nprint('1 2 3')\ninput()", "missing 3 required positional arguments"),
    ],
)
def test_a_child_that_fails_reveals_nothing_of_the_file_system_and_is_replaced_later(
    table: Table, collect: Any, clock: Clock, caplog: pytest.LogCaptureFixture, script_and_error: tuple[str, str]
) -> None:
    script, complaint = script_and_error
    file = table.proc / "worker.py"
    file.write_text(script)
    caplog.set_level("INFO", "trackside")
    table.mount("/nfs", "nfs4")
    collector = collect("/nfs", command=(sys.executable, "-u", str(file), "/nonexistent"))
    eventually(lambda: by_mount(collector) == {} and caplog.records)
    file.write_text(BLOCKS)
    assert by_mount(collector) == {}
    assert not hanging(collector)
    clock.now += RETRY_SECONDS
    eventually(lambda: by_mount(collector) == {"/nfs": WELL})
    fails, works = [record.getMessage() for record in caplog.records]
    assert complaint in fails
    assert "check for free memory and processes" in fails
    assert works == "collector filesystem: file systems that may hang are read again"


def test_without_a_child_local_file_systems_are_reported_and_others_absent(
    table: Table, collect: Any, statvfs: list[str], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    table.mount("/nfs", "nfs4")
    collector = collect("/", "/nfs", command=("/no/such/program",))
    for _ in range(3):
        assert by_mount(collector) == {"/": WELL}
        clock.now += RETRY_SECONDS
    [line] = [record.getMessage() for record in caplog.records]
    assert "No such file or directory: '/no/such/program'" in line


def test_the_last_answer_is_not_reported_for_longer_than_the_deadline(
    far: FilesystemCollector, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("subprocess.Popen", refuse)
    [child] = idle(far)
    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: is_reaped(child))
    clock.now += DEADLINE
    assert set(by_mount(far)) == {"/", "/nfs", "/lustre"}
    clock.now += 0.1
    assert set(by_mount(far)) == {"/"}


def waits_for(collector: FilesystemCollector, count: int) -> bool:
    """Return whether, after another tick, *count* workers hang and no mount has a value."""
    return by_mount(collector) == {} and len(hanging(collector)) == count


def test_many_are_asked_by_one_child_and_one_is_started_in_a_tick_at_most(
    table: Table, collect: Any, fifos: Path, clock: Clock
) -> None:
    names = [f"nfs{number}" for number in range(4)]
    for name in names:
        table.mount(f"/{name}", "nfs4")
        os.mkfifo(fifos / name)
    collector = collect(*(f"/{name}" for name in names), command=(sys.executable, "-c", BLOCKS, str(fifos)))
    for asked in range(1, 5):
        eventually(partial(waits_for, collector, asked))
        assert idle(collector) == []
    for name in names:
        (fifos / name).write_text("now")
        (fifos / name).unlink()
    eventually(lambda: len(by_mount(collector)) == 4 and not hanging(collector))
    assert len(idle(collector)) == 1


def test_a_child_that_is_long_in_starting_is_no_dead_file_system(
    table: Table, collect: Any, clock: Clock, tmp_path: Path
) -> None:
    table.mount("/nfs", "nfs4")
    os.mkfifo(tmp_path / "start")
    slow = f"open({str(tmp_path / 'start')!r}).read()\n{BLOCKS}"
    collector = collect("/nfs", command=(sys.executable, "-c", slow, "/nonexistent"))
    assert by_mount(collector) == {}
    clock.now += 2 * DEADLINE
    assert by_mount(collector) == {}
    (tmp_path / "start").write_text("now")
    assert eventually(lambda: by_mount(collector)) == {"/nfs": WELL}


def test_no_child_is_left_running_when_there_is_nothing_to_ask(
    table: Table, far: FilesystemCollector, clock: Clock
) -> None:
    for point in ("/nfs", "/lustre"):
        table.unmount(table.numbers[point])
    clock.now += 11
    assert set(by_mount(far)) == {"/"}
    assert idle(far) == []


def test_a_mount_that_has_the_id_of_a_dead_one_is_asked_at_once(
    table: Table, far: FilesystemCollector, clock: Clock, fifos: Path
) -> None:
    hang(far, clock, fifos / "nfs")
    (fifos / "nfs").unlink()
    mountinfo = table.proc / "self" / "mountinfo"
    number = table.numbers["/nfs"]
    mountinfo.write_text(mountinfo.read_text().replace(f" 0:{number} ", " 0:99 "))
    clock.now += READ_AGAIN
    eventually(lambda: by_mount(far)["/nfs"] == WELL)


def test_a_change_of_the_mounts_ends_a_long_pause(
    table: Table, far: FilesystemCollector, clock: Clock, fifos: Path
) -> None:
    first = hang(far, clock, fifos / "nfs")
    eventually(lambda: is_reaped(first) and by_mount(far) and not hanging(far))  # or it would be taken for the next
    clock.now += RETRY_SECONDS
    eventually(lambda: by_mount(far) and [point for _, _, point in waited_for(far)] == ["/nfs"])  # and no other is late
    clock.now += DEADLINE + 0.1
    eventually(lambda: by_mount(far)["/nfs"] == DEAD and not hanging(far))
    (fifos / "nfs").unlink()
    clock.now += RETRY_SECONDS
    assert by_mount(far)["/nfs"] == DEAD  # the pause is twice as long
    table.mount("/elsewhere", "xfs")
    clock.now += READ_AGAIN
    eventually(lambda: by_mount(far)["/nfs"] == WELL)


def test_what_is_mounted_on_one_that_may_hang_is_asked_by_a_child(
    table: Table, collect: Any, statvfs: list[str]
) -> None:
    table.mount("/far", "nfs4")
    table.mount("/far/near", "xfs")
    collector = collect("/far/near", command=(sys.executable, "-c", BLOCKS, "/nonexistent"))
    assert eventually(lambda: by_mount(collector)) == {"/far/near": WELL}
    assert statvfs == []


def test_without_paths_there_is_nothing_to_collect(collect: Any) -> None:
    with pytest.raises(NothingToCollect, match=r"collector\.filesystem\.paths is empty"):
        collect().collect()


def test_close_ends_the_children_also_one_that_hangs(far: FilesystemCollector, fifos: Path) -> None:
    children = [ask_in_vain(far, fifos / "nfs"), *idle(far)]
    assert len(children) == 2
    far.close()
    hung, waiting = (child.status for child in children)
    assert hung == -signal.SIGKILL
    assert waiting in (0, -signal.SIGKILL)  # the end of its input may be quicker


def test_a_real_file_system_that_is_dead_leaves_its_child_in_the_kernel(
    tmp_path: Path, collect: Any, clock: Clock
) -> None:
    point = tmp_path / "dead"
    point.mkdir()
    collector = collect("/", str(point), proc=Path("/proc"), root=Path("/"))
    assert str(point) not in by_mount(collector)
    try:
        mount = FuseMount(point)
    except CannotMount as error:
        pytest.skip(str(error))
    try:
        clock.now += READ_AT_MOST  # sooner than READ_AGAIN: it is the kernel that tells of the new mount
        assert eventually(lambda: by_mount(collector).get(str(point))) == WELL
        mount.hang()
        eventually(lambda: by_mount(collector) and mount.asked())
        [child] = hanging(collector)
        clock.now += DEADLINE + 0.1
        reported = by_mount(collector)
        assert reported[str(point)] == DEAD
        assert reported["/"]["device_error"] == 0
        clock.now += 2
        by_mount(collector)
        assert child.stuck
        assert (mount.asked(), hanging(collector)) == (1, [child])
        mount.answer()
        eventually(lambda: by_mount(collector)[str(point)] == WELL)
        mount.hang()
        eventually(lambda: by_mount(collector) and mount.asked())
        [child] = hanging(collector)
        collector.close()
        assert not is_reaped(child)
    finally:
        mount.close()
    eventually(lambda: is_reaped(child))
