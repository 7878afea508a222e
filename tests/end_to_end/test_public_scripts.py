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


def test_a_script_with_nanogpt_s_lines_takes_the_change_of_the_page(
    daemon: Daemon, start_training: Callable[..., Process], tmp_path: Path
) -> None:
    diff = shown("A script like nanoGPT's")
    assert len(added(diff)) <= 11
    changed = tmp_path / "train.py"
    changed.write_text(applied(diff, BASE.read_text(encoding="utf-8")), encoding="utf-8")
    both = [start_training(daemon, str(file), *SHORT, f"--out_dir={tmp_path / file.stem}") for file in (BASE, changed)]
    alone, seen = (re.sub(r"time .*|saving .*", "", finish(training)) for training in both)
    assert alone == seen

    labels = 'rank="0",run="nanogpt"'
    eventually(lambda: daemon.series().get('trackside_training_state{run="nanogpt",state="finished"}') == 1)
    page = daemon.series()
    assert page[f"trackside_training_steps_total{{{labels}}}"] == 21
    assert page[f"trackside_training_tokens_total{{{labels}}}"] == 21 * 4 * 4 * 16
    assert page[f"trackside_training_progress_ratio{{{labels}}}"] == 1.0
    for phase in ("eval", "checkpoint", "forward", "backward", "optimizer"):
        assert page[f'trackside_training_phase_seconds_total{{phase="{phase}",{labels}}}'] > 0
    (run,) = daemon.api("runs").json()["runs"]
    keys = ("loss", "learning_rate", "eval/loss", "eval/train_loss", "grad_norm")
    losses, rates, val, train, norms = (daemon.values(run["id"], key) for key in keys)
    printed = re.findall(r"iter (\d+): loss (\S+),", seen)
    assert printed == [(str(step), f"{losses[step]:.4f}") for step in (0, 10, 20)]
    printed = re.findall(r"step (\d+): train loss (\S+), val loss (\S+)", seen)
    assert printed == [(str(step), f"{train[step]:.4f}", f"{val[step]:.4f}") for step in (0, 10, 20)]
    assert rates[20] == pytest.approx(1e-3 * 21 / 101)
    assert norms
    saved = [one for one in daemon.api("events").json()["events"] if one["kind"] == "checkpoint"]
    assert [(one["step"], one["fields"]) for one in saved] == [
        (step, {"path": str(tmp_path / "train" / "ckpt.pt")}) for step in (10, 20)
    ]
