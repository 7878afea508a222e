"""Status of a process as the kernel reports it; the process chooses one field of it, its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trackside_daemon.collectors.process.ranks import ProcessStatus, ProcessStatuses

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["a\rPPid:\t1", "a\x0cb", "a\x1cUid:\t0", "a\x85b", "a:b"])
def test_a_name_may_have_anything_but_a_newline(tmp_path: Path, name: str) -> None:
    (tmp_path / "7").mkdir()
    text = f"Name:\t{name}\nUmask:\t0022\nPid:\t7\nPPid:\t5\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t7\n"
    (tmp_path / "7" / "status").write_bytes(text.encode())
    assert ProcessStatuses(tmp_path).get(7) == ProcessStatus(name, 5, 1000, contained=False)
