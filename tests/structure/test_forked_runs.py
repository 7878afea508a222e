"""Tests in forks: a test that fails once is repeated, and fails the test run if that happens twice in a row."""

from __future__ import annotations

import os
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


def run(folder: Path) -> tuple[int, str]:
    (folder / "ran").unlink(missing_ok=True)
    options = ["-q", "-p", "forked_runs", "--processes", "2", "--repeat-failed", "-c", "pytest.ini"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT / "tests"), "PATH": os.environ["PATH"], "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


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
