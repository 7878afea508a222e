"""What users copy: the examples run without a daemon as with one, and their lines for trackside are marked."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE, ROOT, clean_environ

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run_example(**environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "examples/pytorch_loop.py", "--steps", "100"],
        cwd=ROOT,
        env=clean_environ({"OMP_NUM_THREADS": "1", **environ}),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def test_with_no_daemon_the_training_is_the_same(place: Path) -> None:
    alone = run_example(TRACKSIDE_ENDPOINT=f"ipc://{place}/push.sock", TRACKSIDE_SPOOL=str(place / "spool"))
    without = run_example(TRACKSIDE_DISABLED="1")
    assert (alone.returncode, without.returncode) == (0, 0)
    assert alone.stdout == without.stdout
    assert alone.stdout.split()[:3] == ["step", "100", "loss"]
    assert without.stderr == ""
    assert alone.stderr.count("\n") <= 1
    assert "Traceback" not in alone.stderr


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_compiles_and_its_two_lines_are_marked(path: Path) -> None:
    compile(path.read_text(), path, "exec")
    marked = [line.strip() for line in path.read_text().splitlines() if " of 2" in line]
    assert len(marked) == 2
    assert marked[0] == "import trackside  # 1 of 2"
    assert marked[1].startswith("trackside.push(")
    assert marked[1].endswith("# 2 of 2")
