"""Requests to processes of our own modules, and what becomes of one that fails."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, eventually

from trackside_daemon.linux import worker_call
from trackside_daemon.linux.worker_call import CallWorker
from trackside_daemon.linux.worker_process import WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Callable

SERVE = """
import os, time
from trackside_daemon.linux.worker_call import WorkLimits, serve

def work(number):
    print("a library writes", number)
    if number < 0:
        raise ValueError("a negative number")
    if number == 7:
        raise MemoryError
    if number == 8:
        os.kill(os.getpid(), 9)
    if number == 9:
        raise LookupError("unexpected")
    while number == 10:
        pass
    return 2 * number

serve(int, work, lambda number: WorkLimits(cpu_seconds=1), (ValueError,))
"""


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CallWorker[int]]:
    """Make a worker that runs a program instead of a module."""

    def make(program: str = SERVE, python: str = sys.executable, memory: int | None = None) -> CallWorker[int]:
        monkeypatch.setattr(worker_call, "own_module", lambda *_, **__: [python, "-c", program])
        return CallWorker("any", int, name="its process", memory=memory)

    return make


def test_it_answers_and_what_libraries_print_is_no_answer(worker: Callable[..., CallWorker[int]]) -> None:
    with worker() as one:
        assert [one.ask(number, DEADLINE) for number in (1, 2, 3)] == [2, 4, 6]
        assert one.pid is not None
        assert os.getpriority(os.PRIO_PROCESS, one.pid) == 19
    assert one.pid is None


def test_failed_work_is_one_line_and_the_process_continues(worker: Callable[..., CallWorker[int]]) -> None:
    with worker(memory=1 << 29) as one:
        assert one.ask(1, DEADLINE) == 2
        pid = one.pid
        with pytest.raises(WorkerFailed, match=r"^a negative number$"):
            one.ask(-1, DEADLINE)
        with pytest.raises(WorkerFailed, match=r"^it needs more memory than the 512 MiB of limits.worker_memory$"):
            one.ask(7, DEADLINE)
        assert (one.ask(2, DEADLINE), one.pid) == (4, pid)


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (8, "its process failed: it was killed: Killed"),
        (9, "its process failed: it exited with status 1: LookupError: unexpected"),
        (10, "its process failed: it was killed: CPU time limit exceeded"),
    ],
)
def test_a_process_that_ends_is_one_line_and_the_next_request_starts_another(
    worker: Callable[..., CallWorker[int]], number: int, reason: str
) -> None:
    with worker() as one:
        with pytest.raises(WorkerFailed) as failed:
            one.ask(number, DEADLINE)
        assert str(failed.value).startswith(reason)
        assert one.ask(1, DEADLINE) == 2


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.stdin.read()", "it took longer than 0 s"),
        ("input(); print('nonsense', flush=True); input()", "its answer cannot be used: JSON is malformed"),
        ('input(); print(\'{"answer": "x"}\', flush=True); input()', "its answer cannot be used: Expected `int`"),
    ],
)
def test_a_process_that_does_not_answer_is_killed(
    worker: Callable[..., CallWorker[int]], program: str, reason: str
) -> None:
    one = worker(program)
    with pytest.raises(WorkerFailed, match=f"^its process failed: {reason}"):
        one.ask(1, 0.2 if "0 s" in reason else DEADLINE)
    assert (one.pid, one.busy) == (None, False)


def test_a_program_that_cannot_be_started_is_one_line(worker: Callable[..., CallWorker[int]]) -> None:
    with pytest.raises(WorkerFailed, match=r"^its process failed: it cannot be started: .*No such file"):
        worker(python="/nonexistent").ask(1, DEADLINE)


def test_a_request_that_is_given_up_ends_the_process(
    worker: Callable[..., CallWorker[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_call, "POLL_SECONDS", 0.01)
    one = worker("import sys; sys.stdin.read()")
    with pytest.raises(WorkerFailed, match=r"^the daemon stops$"):
        one.ask(1, DEADLINE, lambda: "the daemon stops")
    assert one.pid is None


def test_a_process_without_work_ends(worker: Callable[..., CallWorker[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    with worker() as one:
        assert one.ask(1, DEADLINE) == 2
        assert one.poll() is None
        assert one.pid is not None
        monkeypatch.setattr(worker_call, "IDLE_SECONDS", 0.0)
        eventually(lambda: one.poll() is None and one.pid is None)
        assert one.ask(2, DEADLINE) == 4


def test_a_poll_waits_no_longer_than_it_is_asked_to(worker: Callable[..., CallWorker[int]]) -> None:
    with worker("import sys; sys.stdin.read()") as one:
        one.begin(1)
        begun = time.monotonic()
        assert one.poll(0.01) is None
        assert one.busy
        assert time.monotonic() - begun < DEADLINE
