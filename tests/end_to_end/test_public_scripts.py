"""Code like that of public projects trains the same with the lines of docs/integrations.md, and is monitored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from diffs import added, applied, shown
from end_to_end.conftest import finish
from processes import ROOT, eventually, require

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from end_to_end.conftest import Process
    from processes import Daemon

require("torch")

BASE = ROOT / "tests" / "public" / "nanogpt.py"
SHORT = (
    *("--max_iters=20", "--eval_interval=10", "--eval_iters=2", "--n_layer=1"),
    *("--n_embd=16", "--block_size=16", "--batch_size=4"),
)


def test_a_script_like_nanogpt_s_takes_three_lines(
    daemon: Daemon, start_training: Callable[..., Process], tmp_path: Path
) -> None:
    diff = shown("A script like nanoGPT's")
    assert len(added(diff)) <= 3
    assert not re.search(r"^-", diff, re.MULTILINE)
    changed = tmp_path / "train.py"
    changed.write_text(applied(diff, BASE.read_text(encoding="utf-8")), encoding="utf-8")
    both = [start_training(daemon, str(file), *SHORT, f"--out_dir={tmp_path / file.stem}") for file in (BASE, changed)]
    alone, seen = (re.sub(r"time .*", "", finish(training)) for training in both)
    assert alone == seen

    labels = 'rank="0",run="train"'
    eventually(lambda: daemon.series().get('trackside_training_state{run="train",state="finished"}') == 1)
    page = daemon.series()
    assert page[f"trackside_training_steps_total{{{labels}}}"] == 21
    assert page[f'trackside_training_phase_seconds_total{{phase="eval",{labels}}}'] > 0
    (run,) = daemon.api("runs").json()["runs"]
    losses, rates = (daemon.values(run["id"], key) for key in ("loss", "learning_rate"))
    printed = re.findall(r"iter (\d+): loss (\S+),", seen)
    assert printed == [(str(step), f"{losses[step]:.4f}") for step in (0, 10, 20)]
    assert rates[20] == pytest.approx(1e-3 * 21 / 101)
