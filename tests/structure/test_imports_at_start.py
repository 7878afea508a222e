"""Modules that start often, or stay beside the training, import no library that they do not use."""

from __future__ import annotations

import subprocess
import sys

import pytest
from processes import clean_environ

CASES = {
    "trackside_daemon.cli.main": ("pydantic", "starlette", "yaml", "zmq"),
    "trackside_daemon.cli.commands.daemon": ("msgspec", "starlette", "zmq"),  # else clients find the daemon later
    "trackside_daemon.cli.options": ("pydantic",),
    "trackside_daemon.cli.run.daemon_lease": ("pydantic", "subprocess"),
    "trackside_daemon.alerts.sinks.group_outbox": ("sqlite3",),
    "trackside_daemon.diagnosis.performance": ("pydantic",),
    "trackside_daemon.ingest.worker.__main__": ("msgspec", "pathlib", "pydantic", "subprocess"),
    "trackside_daemon.nvml.worker.__main__": ("pydantic", "subprocess"),
    "trackside_daemon.nvml.simulation.simulate": ("dataclasses",),
    "trackside_daemon.nvml.worker.driver": ("dataclasses",),
    "trackside.auto.pytorch": ("trackside.pytorch.step_stages", "trackside.row_queue"),
}


@pytest.mark.parametrize("module", CASES)
def test_a_module_imports_only_what_it_uses_at_its_start(module: str) -> None:
    # The platform module of Python 3.10, which ZeroMQ's binding imports, imports subprocess.
    dear = tuple(one for one in CASES[module] if one != "subprocess" or sys.version_info >= (3, 11))
    code = f"import sys, trackside_daemon, {module}; print([one for one in {dear!r} if one in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_environ(), capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
