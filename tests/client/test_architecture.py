"""`trackside.watch` records the modules of a model: parameters, data types, devices."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from client.router import unsent_events
from torch import nn

import trackside
from trackside.pytorch.parameters import LENGTH, architecture

if TYPE_CHECKING:
    import pytest


def model() -> nn.Module:
    """Return a model with a frozen module, a shared weight and modules without parameters."""
    one = nn.ModuleDict(
        {
            "embed": nn.Embedding(10, 4),
            "body": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4, dtype=torch.bfloat16)),
            "head": nn.Linear(4, 10, bias=False, device="meta"),
        }
    )
    one["body"][0].requires_grad_(False)
    one["tied"] = nn.Linear(4, 10)
    one["tied"].weight = one["embed"].weight
    return one


def test_parameters_by_module() -> None:
    whole = architecture(nn.DataParallel(model()))
    assert (whole["class"], whole["parameters"], whole["trainable"]) == ("ModuleDict", 40 + 40 + 36 + 40 + 10, 126)
    assert whole["bytes"] == 4 * 130 + 2 * 36
    assert whole["modules"] == [
        ["embed", "Embedding", 40, "float32", "cpu"],
        ["body.0", "Linear", 40, "float32", "cpu"],
        ["body.2", "Linear", 36, "bfloat16", "cpu"],
        ["head", "Linear", 40, "float32", "meta"],
        ["tied", "Linear", 10, "float32", "cpu"],
    ]


def test_a_model_of_many_modules_is_summed_up() -> None:
    deep = nn.ModuleDict({part: nn.ModuleList(nn.Linear(2, 2) for _ in range(200)) for part in ("encoder", "decoder")})
    assert architecture(deep)["modules"] == [
        [part, "ModuleList", 1200, "float32", "cpu"] for part in ("encoder", "decoder")
    ]
    wide = architecture(nn.ModuleDict({f"layer{number}": nn.Linear(2, 2) for number in range(500)}))
    assert wide["parameters"] == 3000
    assert 50 < len(wide["modules"]) < 500
    assert len(json.dumps(wide["modules"])) <= LENGTH


def test_rank_0_sends_it_once(
    run: trackside.Run, nowhere: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run.watch(nn.Linear(3, 1))
    run.watch(nn.LazyLinear(2))
    (event,) = unsent_events(run, "model")
    assert json.loads(event.fields) == architecture(nn.Linear(3, 1))
    assert "the modules of the model are not recorded: " in caplog.text
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    other = trackside.init(endpoint=nowhere)
    other.watch(nn.Linear(3, 1))
    assert unsent_events(other, "model") == []
