"""`trackside layers`: what stands out comes first, and everything is there as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from histories import history, opened
from layer_frames import attention, frame, normal
from session_records import batch_ingested

from trackside_daemon.cli.main import load
from trackside_daemon.model.records import Alert

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def recorded(place: Path) -> Path:
    with history(place) as one:
        record = opened("id-1", name="train")
        steady = {f"blocks.{block}": normal(block) for block in range(6)}
        frames = [
            frame(8, steady, "weights", update_ratio=0.001, rank=3.0),
            frame(8, {"blocks.5": normal(5)}, "weights", update_ratio=0.1, rank=3.0),
            frame(8, {**steady, "blocks.2": [0.0] * 9}, "gradients"),
            attention(8, {"blocks.0.attn/0": (0.02, 99.0), "blocks.0.attn/1": (0.9, 3.0)}),
        ]
        frames[0], frames[1] = frames[1], frames[0]
        alert = Alert("DeadLayer", "warning", 1.7e9, "id-1", {"key": "blocks.3", "rank": "0", "run": "train"}, "x", "y")
        one.put([record, batch_ingested(record.session.id, 1, distributions=frames), alert])
    return place


def run(*arguments: str) -> Result:
    return CliRunner().invoke(load("layers"), list(arguments))


def test_layers_with_alerts_come_first_then_those_without_a_gradient(recorded: Path) -> None:
    done = run("train", "--storage.path", str(recorded))
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert [line.split()[0] for line in lines[:3]] == ["layer", "blocks.3", "blocks.2"]
    assert lines[1].endswith("DeadLayer")
    assert any(line.startswith("blocks.0.attn") and " 0.02" in line for line in lines)
    assert lines[-1] == "7 layers: weights at step 8, gradients at step 8, attention at step 8"


def test_json_has_all_columns(recorded: Path) -> None:
    found = json.loads(run("train", "--json", "--storage.path", str(recorded)).stdout)["kinds"]
    assert list(found) == ["weights", "gradients", "attention"]
    assert found["weights"]["layers"]["blocks.0"]["size"] == 100


def test_a_run_without_layers_is_named_in_one_line(place: Path) -> None:
    with history(place) as one:
        one.put([opened("id-1", name="train")])
    done = run("train", "--storage.path", str(place))
    assert (done.exit_code, done.stdout) == (1, "")
    assert (
        done.stderr == "trackside: run train has no measured layers; run.observe(model) in the training measures them\n"
    )
