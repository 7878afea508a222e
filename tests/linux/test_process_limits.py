"""Limits of worker processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def _printed(code: str) -> list[str]:
    """Return the words that a new process prints, whose limits are its own."""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="it has idle I/O priority")
def test_a_worker_limits_itself() -> None:
    code = (
        "import os, psutil, resource; from trackside_daemon.linux.process_limits import limit_this_process\n"
        "limit_this_process(1 << 31, 5)\n"
        "print(*(resource.getrlimit(one)[1] for one in (resource.RLIMIT_AS, resource.RLIMIT_CPU)), os.nice(0), "
        "psutil.Process().ionice().ioclass.name)"
    )
    assert _printed(code) == [str(1 << 31), "5", "19", "IOPRIO_CLASS_IDLE"]


@pytest.mark.skipif(sys.platform != "linux", reason="it has idle I/O priority")
def test_a_worker_keeps_its_priority_for_short_work() -> None:
    code = (
        "import os, psutil; from trackside_daemon.linux.process_limits import limit_this_process\n"
        "limit_this_process(1 << 31, quick_seconds=0.01)\n"
        "print(os.nice(0), psutil.Process().ionice().ioclass.name)\n"
        "while not os.nice(0): pass\n"
        "print(os.nice(0), psutil.Process().ionice().ioclass.name)"
    )
    assert _printed(code) == ["0", "IOPRIO_CLASS_NONE", "19", "IOPRIO_CLASS_IDLE"]
