"""The daemon where Linux's interfaces are missing, in an interpreter that resembles Python on macOS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from processes import DEADLINE, ROOT, clean_environ, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from end_to_end.conftest import Process
    from processes import Daemon

LIKE_MACOS = str(Path(__file__).parent / "like_macos")
PUSHES = "import trackside\nrun = trackside.init(name='portable')\nrun.push({'loss': 1.5}, step=1)\nrun.finish()"


def healthy(daemon: Daemon) -> dict[str, dict[str, str]]:
    """Return the states of the collectors once none fails: the GPU worker needs a few ticks to start."""
    states: dict[str, dict[str, str]] = daemon.api("status").json()["collectors"]
    return {} if any(state["state"] in {"fails", "hangs"} for state in states.values()) else states


def test_the_daemon_accepts_pushes_and_collects_nothing_of_the_host(
    start_daemon: Callable[..., Daemon], start_training: Callable[..., Process]
) -> None:
    path = os.pathsep.join([LIKE_MACOS, *filter(None, [os.environ.get("PYTHONPATH")])])
    daemon = start_daemon(environ={"PYTHONPATH": path})
    states = eventually(lambda: healthy(daemon))
    assert "gpu" in states
    assert {"cpu", "memory", "network", "cgroup", "process", "pressure"}.isdisjoint(states)
    assert not [name for name in daemon.series() if name.startswith("trackside_host_")]
    training = start_training(daemon, "-c", PUSHES, PYTHONPATH=path)
    assert training.wait(DEADLINE) == 0
    eventually(lambda: [run for run in daemon.api("runs").json()["runs"] if run["name"] == "portable"])
    assert daemon.stop() == 0
    assert not [line for line in daemon.log if "Traceback" in line]


def test_the_interpreter_lacks_what_macos_lacks() -> None:
    script = (
        "import os, pathlib, select, sys\n"
        "assert sys.platform == 'darwin' and not hasattr(os, 'pidfd_open') and not hasattr(select, 'epoll')\n"
        "assert not pathlib.Path('/proc/stat').exists()\n"
        "try: open('/proc/stat')\n"
        "except FileNotFoundError: pass\n"
        "else: raise SystemExit('/proc can be read')\n"
    )
    environ = clean_environ({"PYTHONPATH": LIKE_MACOS})
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environ, check=True)
