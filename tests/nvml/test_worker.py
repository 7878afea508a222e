"""The real worker process: its answers, and when it ends."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from processes import DEADLINE

from trackside_daemon.nvml.handle.handle import Nvml, NvmlAbsent, worker_command
from trackside_daemon.nvml.reading import Reading, WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

ONE = msgspec.json.encode(WorkerSettings(simulate=1)).decode()
SIMULATED = worker_command(WorkerSettings(simulate=2))

#: Starts the worker on the pipes it was given, says so, and waits to be killed.
PARENT = """
import subprocess, sys
requests, answers = map(int, sys.argv[1:3])
worker = subprocess.Popen(sys.argv[3:], stdin=requests, stdout=answers)
sys.stdin.read()
"""


def has_driver() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(SIMULATED, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        yield process
        process.kill()


def ask(process: subprocess.Popen[bytes]) -> Reading:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"{}\n")
    process.stdin.flush()
    return msgspec.json.decode(process.stdout.readline(), type=Reading)


def test_each_request_is_answered_by_one_line(worker: subprocess.Popen[bytes]) -> None:
    first, second = ask(worker), ask(worker)
    assert [gpu.index for gpu in first.gpus] == [0, 1]
    assert first != second


def test_it_reports_when_it_measured_by_a_clock_that_its_parent_has_too(worker: subprocess.Popen[bytes]) -> None:
    asked = time.monotonic()
    assert asked <= ask(worker).measured_at <= time.monotonic()


def test_it_ends_with_its_input(worker: subprocess.Popen[bytes]) -> None:
    ask(worker)
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(DEADLINE) == 0


def test_ctrl_c_is_the_parents_business_and_sigterm_ends_it(worker: subprocess.Popen[bytes]) -> None:
    ask(worker)
    worker.send_signal(signal.SIGINT)
    assert ask(worker).gpus
    worker.terminate()
    assert worker.wait(DEADLINE) == -signal.SIGTERM


def test_sigterm_ends_it_although_the_parent_ignored_and_blocked_it() -> None:
    def ignore() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    pipe = subprocess.PIPE
    with subprocess.Popen(SIMULATED, stdin=pipe, stdout=pipe, preexec_fn=ignore) as process:  # noqa: PLW1509 - one thread
        ask(process)
        process.terminate()
        assert process.wait(DEADLINE) == -signal.SIGTERM


def test_it_dies_with_a_killed_parent_although_its_input_stays_open() -> None:
    (their_requests, requests), (answers, their_answers) = os.pipe(), os.pipe()
    command = [sys.executable, "-c", PARENT, str(their_requests), str(their_answers), *SIMULATED]
    theirs = (their_requests, their_answers)
    for end in theirs:
        os.set_inheritable(end, True)
    # Descriptors are left open so that the parent can hand them on.
    with subprocess.Popen(command, stdin=subprocess.PIPE, close_fds=False) as parent:
        for end in theirs:
            os.close(end)
        os.write(requests, b"{}\n")
        assert b"gpus" in os.read(answers, 65536)
        parent.kill()
        assert select.select([answers], [], [], 10)[0]
        assert os.read(answers, 1) == b""
    os.close(requests)
    os.close(answers)


def test_it_does_not_begin_when_its_parent_died_before_it_could_ask_to_die_with_it() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    pipe = subprocess.PIPE
    with subprocess.Popen([*SIMULATED, str(dead.pid)], stdin=pipe, stdout=pipe) as process:
        assert process.wait(DEADLINE) == 1
        assert process.stdout is not None
        assert process.stdout.read() == b""


def test_it_begins_when_its_parent_is_there() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([*SIMULATED, str(os.getpid())], stdin=pipe, stdout=pipe) as process:
        assert len(ask(process).gpus) == 2
        process.kill()


def test_output_of_a_library_does_not_reach_the_answers() -> None:
    script = (
        "import os, sys; from trackside_daemon.nvml.worker import __main__ as worker; "
        "from trackside_daemon.nvml.simulation import simulate as simulation; sim = simulation.simulate; "
        "simulation.simulate = lambda *a, **k: (os.write(1, b'NVRM: hello\\n'), sim(*a, **k))[1]; "
        "sys.exit(worker.main([sys.argv[1]]))"
    )
    nvml = Nvml(command=[sys.executable, "-c", script, ONE])
    assert nvml.read(timeout=DEADLINE).gpus
    nvml.close()


def test_a_simulation_does_not_load_pynvml() -> None:
    script = (
        "import sys; from trackside_daemon.nvml.worker import __main__ as worker; status = worker.main([sys.argv[1]]); "
        "sys.exit(status or 'pynvml' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, ONE], input=b"{}\n", capture_output=True, check=False, timeout=DEADLINE
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_a_machine_without_a_driver_reports_so_through_the_whole_pipe() -> None:
    nvml = Nvml()
    with pytest.raises(NvmlAbsent, match="install the NVIDIA driver"):
        nvml.read(timeout=DEADLINE)
    nvml.close()
