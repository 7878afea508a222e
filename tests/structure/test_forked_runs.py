"""Tests in forks: a test that fails once is repeated, and fails the test run if that happens twice in a row."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FAILS_ONCE = """
from pathlib import Path

def test_fails_at_first(request):
    mark = Path(__file__).with_name("ran")
    first = not mark.exists()
    mark.touch()
    assert not first

def test_passes():
    pass
"""


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: Path) -> Path:
    (tmp_path / "test_race.py").write_text(FAILS_ONCE)
    (tmp_path / "test_other.py").write_text("def test_passes(): pass")
    (tmp_path / "pytest.ini").write_text("[pytest]")
    return tmp_path


def run(folder: Path, seconds: int = 600) -> tuple[int, str]:
    (folder / "ran").unlink(missing_ok=True)
    options = ["-q", "-p", "forked_runs", "--processes", "2", "--repeat-failed", "-c", "pytest.ini"]
    with (folder / "output").open("w+") as output:  # a pipe would last as long as a process that a test left behind
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options],
            cwd=folder,
            env={
                "PYTHONPATH": str(ROOT / "tests"),
                "PATH": os.environ["PATH"],
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "TRACKSIDE_TEST_SECONDS": str(seconds),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output.seek(0)
        return done.returncode, output.read()


def test_a_test_that_fails_once_fails_the_run_if_the_run_before_also_had_to_repeat_it(folder: Path) -> None:
    race, counted = folder / "test_race.py", "1 tests needed a second try, {} of them in the run before as well"
    code, output = run(folder)
    assert code == 0, output
    assert "3 passed" in output
    assert counted.format(0) in output
    code, output = run(folder)
    assert code == 1, output
    assert counted.format(1) in output
    race.write_text(FAILS_ONCE.replace("assert not first", "pass"))
    assert run(folder)[0] == 0
    race.write_text(FAILS_ONCE)
    code, output = run(folder)
    assert code == 0, output


WAITS = """
import signal
import threading

def test_waits_for_ever():
    threading.Event().wait()

def test_passes():
    pass
"""

PAUSE_IN_C = """
def pause_in_c():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGINT])
    threading.Event().wait()
"""

LEAVES = """
import os
import time
from pathlib import Path

def test_leaves_a_process():
    if (pid := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    Path(__file__).with_name("left").write_text(str(pid))
"""


def test_a_test_that_waits_for_ever_fails_with_what_each_thread_did(folder: Path) -> None:
    (folder / "test_waits.py").write_text(WAITS)
    code, output = run(folder, seconds=1)
    assert code == 1, output
    assert "it ran for 1 seconds" in output
    assert 'test_waits.py", line 6 in test_waits_for_ever' in output
    assert "1 failed, 4 passed" in output


def test_code_that_no_signal_interrupts_ends_the_run_with_the_name_of_the_test(folder: Path) -> None:
    (folder / "test_waits.py").write_text(WAITS.replace("threading.Event().wait()", "pause_in_c()") + PAUSE_IN_C)
    code, output = run(folder, seconds=1)
    assert code != 0, output
    assert "a process ended while it ran test_waits.py::test_waits_for_ever" in output


def test_a_process_that_a_test_left_behind_does_not_hold_up_the_end(folder: Path) -> None:
    (folder / "test_leaves.py").write_text(LEAVES)
    try:
        code, output = run(folder)
        assert code == 0, output
        assert "4 passed" in output
    finally:
        os.kill(int((folder / "left").read_text()), signal.SIGKILL)
