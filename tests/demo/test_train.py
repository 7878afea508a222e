"""The training's command line, its schedule, and its error when no model can be trained."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from processes import DEADLINE

from trackside_daemon.demo import train

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--steps", "0"], "0 is not above 0"),
        (["--steps", "-3"], "-3 is not above 0"),
        (["--steps", "many"], "'many'"),
        (["--loud"], "unrecognized arguments: --loud"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        train.main(arguments)
    assert exit_status.value.code == 2
    assert complaint in capsys.readouterr().err


def test_without_numpy_it_reports_in_one_line_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('numpy')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-m", train.__name__, "--steps", "1"],
        env={**os.environ, "PYTHONPATH": path, "TRACKSIDE_DISABLED": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert "pip install 'trackside[demo]'" in ended.stderr


def test_the_learning_rate_warms_up_falls_and_starts_afresh() -> None:
    rates = [train.learning_rate(step, cycle=2000) for step in range(1, 4001)]
    assert rates[0] == pytest.approx(train.PEAK_LEARNING_RATE / 100)
    assert max(rates) == pytest.approx(train.PEAK_LEARNING_RATE, rel=0.01)
    assert rates[1999] == pytest.approx(train.PEAK_LEARNING_RATE / 10, rel=0.01)
    assert rates[2000] == pytest.approx(train.PEAK_LEARNING_RATE)


def test_a_short_training_warms_up_and_cools_down_too() -> None:
    rates = [train.learning_rate(step, cycle=50) for step in range(1, 51)]
    assert rates[0] < max(rates) > rates[-1]
