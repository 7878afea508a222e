"""Nothing depends on how long the machine has been up: the monotonic clock of one that has just booted is near zero."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK = ["history/test_queue.py", "training"]
"""Those of clocks; all others run under --soak."""
ALL = ["alerts", "causes", "checkpoints", "client", "collectors", "detectors", "history", "http_client", "ingest"]
ALL += ["linux", "nvml", "pipeline", "sampling", "service", "training"]


@pytest.mark.parametrize("tests", [QUICK, pytest.param(ALL, marks=pytest.mark.only_soak)], ids=["quick", "all"])
def test_a_machine_that_has_just_booted_is_like_any_other(tests: list[str]) -> None:
    up = f"-{max(0, int(time.clock_gettime(time.CLOCK_BOOTTIME)) - 1)}"
    namespace = ["unshare", "--user", "--map-root-user", "--time", "--fork", f"--monotonic={up}", f"--boottime={up}"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel, or its administrator, permits no time namespaces")
    pytest_ = [sys.executable, "-m", "pytest", "-q", *(str(ROOT / "tests" / name) for name in tests)]
    done = subprocess.run([*namespace, *pytest_], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
