"""The user's command as a child process."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from processes import eventually

from trackside_daemon.linux.child_process import Command


@pytest.mark.parametrize("interface", ["waitid", "poll"])
@pytest.mark.parametrize(
    ("ending", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)],
)
def test_the_status_is_that_of_a_shell(
    monkeypatch: pytest.MonkeyPatch, interface: str, ending: str, status: int
) -> None:
    if interface == "poll":  # as on macOS
        monkeypatch.delattr(os, "waitid")
    command = Command([sys.executable, "-S", "-c", ending], {})
    try:
        assert eventually(lambda: command.status) == status
    finally:
        command.reap()
