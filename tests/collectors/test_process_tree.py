"""The processes below ranks, of files and of real ones."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from collectors.trees import Proc
from processes import DEADLINE, clean_environ

from trackside_daemon.collectors.kernel_files import read
from trackside_daemon.collectors.process import process_tree as module
from trackside_daemon.collectors.process.process_tree import LATER_SECONDS, ProcessTree, read_stat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REAL = Path("/proc")
STARTS = """
import os, subprocess, sys, threading
def wait(): sys.stdin.read()
def fork():
    pid = os.fork()
    if not pid:
        wait()
        os._exit(0)
    return pid
def execute():
    return subprocess.Popen(["cat"]).pid
def in_thread():
    found, done = [], threading.Event()
    def start():
        found.append(execute())
        done.set()
        threading.Event().wait()
    threading.Thread(target=start, daemon=True).start()
    done.wait()
    return found[0]
print({0}(), flush=True)
wait()
os._exit(0)
"""


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def pids(proc: Proc, tree: ProcessTree, now: float = 0.0, ranks: Sequence[int] = (10,)) -> list[list[int]]:
    """Return the pids of each rank's process tree."""
    return [[one.pid for one in found] for found in tree.walk(ranks, now).values()]


def test_all_below_a_rank_are_found_each_before_its_own(proc: Proc) -> None:
    proc.run(10)
    proc.run(30, 10)
    proc.run(20, 10)
    proc.run(15, 20)
    proc.run(16, 15)
    proc.run(99)
    assert pids(proc, ProcessTree(proc.place)) == [[10, 20, 15, 16, 30]]


def test_a_rank_below_another_stands_for_itself(proc: Proc) -> None:
    proc.run(10)
    proc.run(20, 10)
    proc.run(30, 20)
    assert pids(proc, ProcessTree(proc.place), ranks=(10, 20)) == [[10], [20, 30]]


def test_a_rank_that_is_gone_has_no_tree(proc: Proc) -> None:
    proc.run(20)
    assert pids(proc, ProcessTree(proc.place), ranks=(10, 20)) == [[20]]


def test_a_listed_process_of_another_parent_is_left_out(proc: Proc) -> None:
    """A child had this pid a moment ago."""
    proc.run(10)
    proc.run(20, 10)
    proc.run(20, 1, start=900)
    assert pids(proc, ProcessTree(proc.place)) == [[10]]


def test_a_name_may_be_any(proc: Proc) -> None:
    proc.run(10, comm="a) R 1 (b")
    found = read_stat(str(proc.place), 10)
    assert found is not None
    assert (found.comm, found.state, found.parent) == ("a) R 1 (b", "S", 1)


def test_children_of_a_ranks_other_threads_are_found_at_once(proc: Proc) -> None:
    tree = ProcessTree(proc.place)
    proc.run(10)
    proc.run(20, 10, thread=11)
    assert pids(proc, tree, 0.0) == [[10, 20]]
    proc.run(21, 10, thread=11)
    proc.run(22, 10)
    proc.run(23, 10, thread=12)
    assert pids(proc, tree, 1.0) == [[10, 20, 21, 22, 23]]
    proc.end(20)
    assert pids(proc, tree, 2.0) == [[10, 21, 22, 23]]


def test_children_of_other_threads_below_a_rank_are_sought_now_and_then_and_then_kept(proc: Proc) -> None:
    tree = ProcessTree(proc.place)
    proc.run(10)
    proc.run(20, 10)
    assert pids(proc, tree, 0.0) == [[10, 20]]
    proc.run(30, 20, thread=21)
    assert pids(proc, tree, LATER_SECONDS - 0.1) == [[10, 20]]
    assert pids(proc, tree, LATER_SECONDS) == [[10, 20, 30]]
    assert pids(proc, tree, LATER_SECONDS + 1) == [[10, 20, 30]]


def test_a_thread_that_has_started_a_process_is_asked_in_each_walk_as_long_as_it_is_there(proc: Proc) -> None:
    tree = ProcessTree(proc.place, at_once=1)
    proc.run(10)
    for thread in range(11, 31):
        proc.run(thread + 100, 10, thread=thread)
    (known,) = pids(proc, tree, 0.0)
    [thread] = [child - 100 for child in known[1:]]
    proc.run(200, 10, thread=thread)
    assert 200 in pids(proc, tree, 1.0)[0]
    for other in (10, *range(11, 31)):
        shutil.rmtree(proc.place / "10" / "task" / str(other))
    for now in range(2, 60):
        pids(proc, tree, now)
    assert not any(tree._starting_threads.values())
    proc.end(10)
    proc.run(40)
    for now in range(60, 62):
        pids(proc, tree, now, ranks=(40,))
    assert tree._starting_threads == {}


def test_with_many_threads_some_are_asked_in_one_walk_and_some_in_the_next(proc: Proc) -> None:
    tree = ProcessTree(proc.place, at_once=2)
    proc.run(10)
    for thread in range(11, 16):
        proc.run(thread + 10, 10, thread=thread)
    counts = [len(pids(proc, tree, now)[0]) for now in (0.0, 1.0, 2.0)]
    assert counts[0] < counts[1] < counts[2] == 6


def test_where_no_thread_lists_its_children_all_processes_are_read_now_and_then(tmp_path: Path) -> None:
    proc = Proc(tmp_path, lists=False)
    tree = ProcessTree(tmp_path)
    proc.run(10)
    proc.run(20, 10)
    proc.run(30, 20)
    assert pids(proc, tree, 0.0) == [[10, 20, 30]]
    proc.run(40, 30)
    assert pids(proc, tree, LATER_SECONDS - 0.1) == [[10, 20, 30]]
    proc.end(20)
    assert pids(proc, tree, LATER_SECONDS - 0.1) == [[10]]
    proc.run(30, 10)
    assert pids(proc, tree, LATER_SECONDS) == [[10, 30, 40]]


def test_the_walk_has_a_limit_and_reaching_it_is_logged_once(proc: Proc, caplog: pytest.LogCaptureFixture) -> None:
    tree = ProcessTree(proc.place, most=3)
    for rank in (10, 20):
        proc.run(rank)
    for child in (11, 12):
        proc.run(child, 10)
    proc.run(21, 20)
    assert pids(proc, tree, ranks=(10, 20)) == [[10, 11, 12], [20, 21]]
    assert not caplog.messages
    for child in (22, 23):
        proc.run(child, 20)
    for now in (1.0, 2.0):
        assert pids(proc, tree, now, ranks=(10, 20)) == [[10, 11, 12], [20, 21]]
    assert len(caplog.messages) == 1
    assert "more than 3 processes" in caplog.messages[0]


@pytest.mark.parametrize("error", [FileNotFoundError, ProcessLookupError, PermissionError])
def test_a_process_that_vanishes_meanwhile_removes_no_other(
    proc: Proc, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    for pid, parent in ((10, 1), (20, 10), (30, 20), (40, 1), (50, 40)):
        proc.run(pid, parent)
    files: list[str] = []

    def notes(path: str) -> bytes:
        files.append(path)
        return read(path)

    monkeypatch.setattr(module, "read", notes)
    assert pids(proc, ProcessTree(proc.place), ranks=(10, 40)) == [[10, 20, 30], [40, 50]]
    for gone in [file for file in files if "/40/" not in file and "/50/" not in file]:

        def vanishes(path: str, gone: str = gone) -> bytes:
            if path == gone:
                raise error(path)
            return read(path)

        monkeypatch.setattr(module, "read", vanishes)
        *broken, whole = pids(proc, ProcessTree(proc.place), ranks=(10, 40))
        assert whole == [40, 50]
        assert broken in ([], [[10]], [[10, 20]], [[10, 20, 30]])


@contextmanager
def started(how: str) -> Iterator[tuple[int, int]]:
    """Start a process that starts a child in the given way; yield both pids."""
    script = re.sub(r"\{0\}", how, STARTS)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environ()
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(DEADLINE)


@pytest.mark.parametrize("how", ["fork", "execute", "in_thread"])
@pytest.mark.parametrize("lists", [True, False])
def test_a_real_process_has_those_that_it_has_started(how: str, *, lists: bool) -> None:
    tree = ProcessTree(REAL, at_once=1 << 22)
    tree._has_children_files = lists and tree._has_children_files
    with started(how) as (rank, child):
        [(first, second)] = tree.walk([rank], 0.0).values()
        assert (first.pid, second.pid, second.parent) == (rank, child, rank)
