"""Limits of worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from trackside_daemon.linux.process_limits import worker_bytes

if TYPE_CHECKING:
    from pathlib import Path


def _printed(code: str) -> list[str]:
    """Return the words that a new process prints, whose limits are its own."""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="it has idle I/O priority")
def test_a_worker_limits_itself() -> None:
    code = (
        "import os, psutil, resource; from trackside_daemon.linux.process_limits import limit_this_process\n"
        "limit_this_process()\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE)[1], os.nice(0), psutil.Process().ionice().ioclass.name, "
        "open('/proc/self/oom_score_adj').read())"
    )
    assert _printed(code) == ["0", "19", "IOPRIO_CLASS_IDLE", "1000"]


@pytest.mark.skipif(sys.platform != "linux", reason="it has idle I/O priority")
def test_a_worker_retains_its_priority_for_short_work() -> None:
    code = (
        "import os, psutil; from trackside_daemon.linux.process_limits import limit_this_process\n"
        "limit_this_process(quick_seconds=0.01)\n"
        "print(os.nice(0), psutil.Process().ionice().ioclass.name)\n"
        "while not os.nice(0): pass\n"
        "print(os.nice(0), psutil.Process().ionice().ioclass.name)"
    )
    assert _printed(code) == ["0", "IOPRIO_CLASS_NONE", "19", "IOPRIO_CLASS_IDLE"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"memory.max": "max"}, 512),
        ({"memory.max": str(1 << 30)}, 256),
        ({"memory.max": str(64 << 20)}, 128),
        ({}, 512),
    ],
)
def test_a_worker_gets_a_quarter_of_what_its_cgroup_allows(
    tmp_path: Path, limits: dict[str, str], expected: int
) -> None:
    group = tmp_path / "cgroup" / "service"
    group.mkdir(parents=True)
    for name, text in limits.items():
        (group / name).write_text(text)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(f"30 25 0:26 / {tmp_path}/cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / str(os.getpid())).mkdir()
    (tmp_path / str(os.getpid()) / "cgroup").write_text("0::/service\n")
    assert worker_bytes(512 << 20, tmp_path, tmp_path / "sys") == expected << 20
