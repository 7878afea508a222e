"""Examples for users to copy: they run with and without a daemon, and their lines for trackside are marked."""

from __future__ import annotations

import ast
import re
import sys
from typing import TYPE_CHECKING

import pytest
from processes import ROOT, clean_environ, run

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

EXAMPLES = sorted(
    set((ROOT / "examples").glob("*.py")) - {ROOT / "examples" / "language_model.py"}
)  # a model to measure


def run_example(**environ: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "examples/pytorch_loop.py", "--steps", "100"], cwd=ROOT, env=clean_environ(environ))


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
def test_every_example_compiles_and_its_lines_for_trackside_are_marked_three_at_most(path: Path) -> None:
    tree = ast.parse(path.read_text())
    code = path.read_text().splitlines()[tree.body[0].end_lineno :]  # after its docstring
    called = [line for line in code if re.search(r"trackside\.|import trackside|Trackside", line)]
    lines = [line for line in called if not re.search(r"  # more(: .+)?$", line)]
    marks = [re.search(r"  # (\d) of (\d)(?:: .+)?$", line) for line in lines]
    assert [mark and mark[1] for mark in marks] == [str(number + 1) for number in range(len(lines))]
    assert {mark and mark[2] for mark in marks} == {str(len(lines))}
    assert len(lines) <= 3
    assert re.match(r"import trackside  #|from trackside\.integrations\.\w+ import ", lines[0])
