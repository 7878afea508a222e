"""The lock between processes."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import pytest
from processes import DEADLINE

from trackside_daemon.nvml.handle.handle import worker_command
from trackside_daemon.nvml.reading import Reading, WorkerSettings
from trackside_daemon.nvml.worker.lock import LOCK_VARIABLE, Locked, lock

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLDS = """
import sys
from trackside_daemon.nvml.worker.lock import lock
lock(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""
WAYS_OUT = "already samples the GPUs of this machine; stop trackside there, or run this daemon with --no-collector.gpu"


@pytest.fixture
def name() -> str:
    """Return the name of a free lock."""
    return f"trackside-test-{uuid4()}"


@pytest.fixture
def holder(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that has the lock."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDS, name], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.kill()


def answer(order: WorkerSettings, name: str) -> Reading:
    """Return the error of a worker that starts while another process has the lock."""
    environ = {**os.environ, LOCK_VARIABLE: name}
    result = subprocess.run(
        worker_command(order), input=b"{}\n", capture_output=True, env=environ, check=False, timeout=DEADLINE
    )
    return msgspec.json.decode(result.stdout.splitlines()[-1], type=Reading)


def test_a_second_process_gets_an_error_with_the_holder_and_the_remedy(
    holder: subprocess.Popen[bytes], name: str
) -> None:
    with pytest.raises(Locked) as caught:
        lock(name)
    holder_text = f"process {holder.pid} of user {getpass.getuser()}, started by process {os.getpid()},"
    assert str(caught.value) == f"{holder_text} {WAYS_OUT}"


def test_the_kernel_releases_the_lock_of_a_process_that_was_killed(holder: subprocess.Popen[bytes], name: str) -> None:
    holder.kill()
    holder.wait()
    lock(name)


def test_a_worker_that_comes_second_reports_so_and_loads_no_driver(holder: subprocess.Popen[bytes], name: str) -> None:
    reading = answer(WorkerSettings(), name)
    assert (reading.reason, reading.absent) == ("locked", False)
    assert f"process {holder.pid} of user" in reading.error


def test_a_simulation_needs_no_lock(holder: subprocess.Popen[bytes], name: str) -> None:
    assert len(answer(WorkerSettings(simulate=1), name).gpus) == 1


def test_many_other_processes_do_not_disturb_the_holder(name: str) -> None:
    lock(name)
    for _ in range(100):
        with pytest.raises(Locked, match=f"process {os.getpid()} of user"):
            lock(name)


def test_a_user_without_a_name_is_a_number(
    monkeypatch: pytest.MonkeyPatch, holder: subprocess.Popen[bytes], name: str
) -> None:
    def unknown_user(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown_user)
    with pytest.raises(Locked, match=f"of user {os.getuid()},"):
        lock(name)
