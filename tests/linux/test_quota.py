"""A user's quota limits the room, where there is one."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from trackside_daemon.linux import quota

UNKNOWN = 3_000_000_001


def test_without_a_quota_nothing_limits(tmp_path: Path) -> None:
    assert quota.quota_left(str(tmp_path), UNKNOWN) is None
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError):
        quota.quota_left(str(tmp_path / "none"), UNKNOWN)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(("hard", "used", "left"), [(100, 30 * 1024, 70 * 1024), (10, 1 << 30, 0), (0, 7, None)])
def test_what_is_left_of_a_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard: int, used: int, left: int | None
) -> None:
    """The answer of a kernel with quotas, which test machines seldom have, in the layout of linux/quota.h."""

    class Kernel:
        def syscall(self, number: int, handle: int, command: Any, uid: int, answer: Any) -> int:
            assert (number, command.value, uid) == (443, 0x80000700, UNKNOWN)
            assert Path(f"/proc/self/fd/{handle}").readlink() == tmp_path
            numbers = (ctypes.c_uint64 * 8)(hard, 0, used)
            ctypes.memmove(answer, numbers, ctypes.sizeof(numbers))
            return 0

    monkeypatch.setattr(quota, "_libc", Kernel())
    assert quota.quota_left(str(tmp_path), UNKNOWN) == left
