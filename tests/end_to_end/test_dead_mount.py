"""The whole daemon with a file system whose server is dead: everything else works, and the daemon can be stopped."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dead_filesystem import BLOCK, BLOCKS, CannotMount, FuseMount, mount_overlay
from processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processes import Daemon

LEAN = ("--sample.interval=250ms", "--no-collector.gpu", "--no-collector.process", "--no-collector.cgroup")
FSTYPE = "fuse.trackside"
LAST_SUCCESS = "trackside_collector_last_success_timestamp_seconds"


@pytest.fixture
def mount(place: Path) -> Iterator[FuseMount]:
    """A real FUSE mount at ``far`` in the test's directory; killing its server frees every process that hangs in it."""
    point = place / "far"
    point.mkdir()
    try:
        mount = FuseMount(point)
    except CannotMount as error:
        pytest.skip(f"{error}; tests/collectors/test_remote.py has the same without a mount")
    yield mount
    mount.close()


@pytest.fixture
def overlay(place: Path, mount: FuseMount) -> Iterator[Path]:
    """The mount point of an overlay over the real mount and another directory."""
    merged, below = place / "merged", place / "below"
    merged.mkdir()
    below.mkdir()
    try:
        unmount = mount_overlay(merged, place / "far", below)
    except CannotMount as error:
        pytest.skip(f"{error}; tests/collectors/test_mounts.py knows what may hang without a mount")
    yield merged
    mount.answer()
    unmount()


def value(daemon: Daemon, family: str, point: Path, fstype: str = FSTYPE) -> float | None:
    """Return the value on the page for a mount of the test."""
    return daemon.series().get(f'trackside_host_filesystem_{family}{{fstype="{fstype}",mountpoint="{point}"}}')


def local(daemon: Daemon) -> set[str]:
    """Return the mounts whose size is on the page, without the FUSE mounts of the test."""
    series = daemon.series()
    return {name for name in series if name.startswith("trackside_host_filesystem_size_") and FSTYPE not in name}


def test_a_dead_mount_costs_only_itself(place: Path, mount: FuseMount, start_daemon: Callable[..., Daemon]) -> None:
    far, size = place / "far", BLOCK * BLOCKS
    daemon = start_daemon(*LEAN, f"--collector.filesystem.paths=/,{far}")
    eventually(lambda: value(daemon, "size_bytes", far) == size)
    others = local(daemon)
    assert others
    mount.hang()
    eventually(lambda: value(daemon, "device_error", far) == 1)
    assert value(daemon, "size_bytes", far) is None
    assert value(daemon, "readonly", far) is None
    assert "does not answer: its server is down or unreachable" in "".join(daemon.log)

    before = daemon.series()
    names = [f'{LAST_SUCCESS}{{collector="{name}"}}' for name in ("cpu", "memory", "filesystem")]
    eventually(lambda: all(daemon.series()[name] >= before[name] + 1 for name in names))
    assert local(daemon) == others
    assert value(daemon, "device_error", far) == 1

    mount.answer()
    eventually(lambda: value(daemon, "size_bytes", far) == size)
    assert value(daemon, "device_error", far) == 0
    eventually(lambda: "answers again" in "".join(daemon.log))


def test_the_daemon_ends_though_its_child_hangs_in_the_kernel(
    place: Path, mount: FuseMount, start_daemon: Callable[..., Daemon]
) -> None:
    far = place / "far"
    daemon = start_daemon(*LEAN, f"--collector.filesystem.paths=/,{far}")
    eventually(lambda: value(daemon, "device_error", far) == 0)
    mount.hang()
    eventually(lambda: value(daemon, "device_error", far) == 1)
    child = next(one for one in processes() if status(one, "PPid") == str(daemon.process.pid) and is_asking(one))
    assert status(child, "State").startswith("D")
    assert daemon.stop(signal.SIGTERM) == 0
    assert status(child, "State").startswith("D")
    mount.answer()
    eventually(lambda: not status(child, "State"))


def test_an_overlay_over_a_dead_mount_is_dead_too_and_costs_only_itself(
    place: Path, mount: FuseMount, overlay: Path, start_daemon: Callable[..., Daemon]
) -> None:
    daemon = start_daemon(*LEAN, f"--collector.filesystem.paths=/,{overlay}")
    eventually(lambda: value(daemon, "device_error", overlay, "overlay") == 0)
    mount.hang()
    eventually(lambda: value(daemon, "device_error", overlay, "overlay") == 1)
    assert [name for name in local(daemon) if str(place) not in name]
    assert daemon.stop(signal.SIGTERM) == 0


def processes() -> list[int]:
    return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()]


def status(process: int, field: str) -> str:
    """Return a line of /proc/PID/status; empty if the process is gone."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next(line.split("\t", 1)[1] for line in text.splitlines() if line.startswith(f"{field}:"))


def is_asking(process: int) -> bool:
    """Return whether a process is a worker that asks file systems; false for a zombie."""
    return b"remote_worker.py" in Path(f"/proc/{process}/cmdline").read_bytes()
