"""The processes below a process with the client: what they say of their stacks, and what the kernel says of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from processes import DEADLINE, eventually

from trackside.captures.answers import ANSWERS
from trackside.captures.children import child_processes, parsed
from trackside.captures.flight_recorder import flight
from trackside.totals.loader_workers import TimedWorker
from trackside.wire import Stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.wire import Child

FORK = multiprocessing.get_context("fork")


def dead_locked() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def computing() -> None:
    while True:
        pass


@pytest.fixture
def forked() -> Iterator[Callable[[Callable[[], None]], int]]:
    """A function that forks a child which runs a function for ever, and returns its pid."""
    started: list[Any] = []

    def fork(target: Callable[[], None]) -> int:
        started.append(FORK.Process(target=target, daemon=True))
        started[-1].start()
        return int(started[-1].pid)

    yield fork
    for one in started:
        one.kill()
        one.join(DEADLINE)


def of(pid: int, file: str = "test_children.py") -> Child:
    """Return what is known of a child, once it has begun its function, which is in a *file*."""

    def found() -> list[Child]:
        children = [one for one in child_processes() if one.pid == pid]
        return [one for one in children if file in "".join(one.threads.get("MainThread 0", [])[-1:])]

    return eventually(found)[0]


def test_a_child_in_a_deadlock_and_one_that_computes_have_their_stacks(forked: Callable[..., int]) -> None:
    waits, busy = of(forked(dead_locked)), of(forked(computing))
    assert waits.threads["MainThread 0"][0].endswith(" _bootstrap"), "without the calls of the parent until the fork"
    assert waits.threads["MainThread 0"][-1].endswith(" dead_locked")
    assert busy.threads["MainThread 0"][-1].endswith(" computing")
    assert (waits.state, waits.parent, busy.state) == ("S", os.getpid(), "R")
    answer = ANSWERS["stacks?"].make(None)
    assert isinstance(answer, Stacks)
    names = [name for name in answer.threads if str(waits.pid) in name]
    assert names == [f"{waits.name} {waits.pid} MainThread 0"]
    assert {one.pid for one in flight().children} >= {waits.pid, busy.pid}


def test_a_worker_that_was_spawned_has_them_too_if_it_is_timed() -> None:
    wait = TimedWorker(time.sleep, 0, -1, 0)
    worker = multiprocessing.get_context("spawn").Process(target=wait, args=(2 * DEADLINE,), daemon=True)
    worker.start()
    try:
        assert of(worker.pid or 0, "loader_workers.py").threads["MainThread 0"][-1].endswith(" __call__")
    finally:
        worker.kill()
        worker.join(DEADLINE)


def test_one_that_was_killed_differs_from_one_that_is_stopped(forked: Callable[..., int]) -> None:
    killed, stopped = of(forked(dead_locked)).pid, of(forked(computing)).pid
    os.kill(killed, signal.SIGKILL)
    os.kill(stopped, signal.SIGSTOP)
    eventually(lambda: {one.state for one in child_processes() if one.pid in {killed, stopped}} == {"Z", "T"})
    children = {one.pid: one for one in child_processes()}
    assert (children[killed].state, children[killed].ended, children[stopped].threads) == ("Z", signal.SIGKILL, {})
    os.kill(stopped, signal.SIGCONT)


def test_another_program_is_never_sent_the_signal() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        child = next(one for one in child_processes() if one.pid == program.pid)
        assert child.threads == {}
        assert program.poll() is None
        program.communicate(b"\n", DEADLINE)
    assert program.returncode == 0


def test_a_handler_of_the_signal_that_a_child_has_is_kept() -> None:
    code = """
import os, signal, sys, trackside.interpreter
signal.signal(trackside.interpreter.STACKS_SIGNAL, lambda *_: os._exit(7))
if os.fork() == 0:
    os.kill(os.getpid(), trackside.interpreter.STACKS_SIGNAL)
    os._exit(8)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7


@pytest.mark.parametrize(
    "heading", ["Thread 0x00007f1e (most recent call first):", "Thread 0x00007f1e [worker] (most recent call first):"]
)
def test_the_main_thread_comes_first_and_the_innermost_call_last(heading: str) -> None:
    text = f"""{heading}
  File "/a/b.py", line 9 in <lambda>

Current thread 0x00007f1d (most recent call first):
  File "/a/b c.py", line 8 in f
  File "/a/b.py", line 10 in <module>
"""
    assert parsed(text) == {
        "MainThread 0": ["/a/b.py:10 <module>", "/a/b c.py:8 f"],
        "Thread 1": ["/a/b.py:9 <lambda>"],
    }
    assert parsed("  File nothing") == {}
