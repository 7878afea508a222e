"""Trouble inside models that really train: each planted fault is named with its layer, and healthy models are silent."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
import torch
from detectors.observed_models import MODELS, OPTIMIZERS, Language, mlp, trained
from torch import nn

import trackside

if TYPE_CHECKING:
    from pathlib import Path

SOON = 200  # steps within which a fault is found
FEW = [("language", "adam"), ("tanh", "sgd"), ("residual", "adam"), ("lstm", "rmsprop")]


@pytest.fixture
def run(place: Path) -> trackside.Run:
    torch.manual_seed(4711)
    return trackside.init(endpoint=f"ipc://{place}/nobody.sock")


def test_a_dead_relu_layer_is_named(run: trackside.Run) -> None:
    model = mlp(nn.ReLU)
    with torch.no_grad():
        model.layers[2].bias.fill_(-100.0)
    found = trained(run, model, torch.optim.AdamW(model.parameters(), lr=1e-3), 60)
    assert {name for alert, name, _ in found if alert == "DeadLayer"} >= {"layers.2"}
    assert not [one for one in found if one[0] != "DeadLayer" or one[2] >= SOON], found


def test_a_layer_with_exploding_outputs_is_named(run: trackside.Run) -> None:
    model = Language()
    block = model.blocks[1]

    def change(step: int) -> None:
        block.scale = 1.0 if step < 48 else 1.3 ** min(step - 48, 20)

    found = trained(run, model, torch.optim.SGD(model.parameters(), lr=1e-4), 104, change)
    first = next(one for one in found if one[0] == "ActivationOutliers")
    assert first[1].startswith("blocks.1")
    assert first[2] < 48 + SOON


def test_attention_that_a_scaled_query_collapses_is_named(run: trackside.Run) -> None:
    model = Language()

    def change(step: int) -> None:
        model.blocks[1].attn.scale = 1.0 if step < 24 else 500.0

    found = trained(run, model, torch.optim.AdamW(model.parameters(), lr=1e-4), 64, change)
    assert [name for alert, name, _ in found if alert == "AttentionCollapse"] == ["blocks.1.attn"]


def test_a_layer_that_no_optimizer_has_is_named(run: trackside.Run) -> None:
    model = Language()
    rest = [one for name, one in model.named_parameters() if not name.startswith("blocks.0.mlp.2")]
    found = trained(run, model, torch.optim.AdamW(rest, lr=1e-3), 60)
    assert [(alert, name) for alert, name, _ in found] == [("LayerUpdates", "blocks.0.mlp.2")]


@pytest.mark.parametrize("wrong", [100.0, 1 / 1000])
def test_a_layer_with_another_learning_rate_is_named(run: trackside.Run, wrong: float) -> None:
    model = Language()
    own = list(model.blocks[1].mlp[0].parameters())
    rest = [one for one in model.parameters() if not any(one is other for other in own)]
    groups = [{"params": rest}, {"params": own, "lr": 1e-4 * wrong}]
    found = trained(run, model, torch.optim.AdamW(groups, lr=1e-4, weight_decay=0.0), 60, warm_up=0)
    assert ("LayerUpdates", "blocks.1.mlp.0") in {one[:2] for one in found}


def test_a_saturated_layer_is_named(run: trackside.Run) -> None:
    model = mlp(nn.Tanh)
    with torch.no_grad():
        model.layers[2].weight *= 1000
    found = trained(run, model, torch.optim.SGD(model.parameters(), lr=1e-4), 60)
    assert ("SaturatedLayer", "layers.3") in {one[:2] for one in found}


def test_healthy_models_raise_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    every = request.config.getoption("--soak")
    loud = {}
    for number, (name, optimizer) in enumerate(product(MODELS, OPTIMIZERS) if every else FEW):
        torch.manual_seed(number)
        model = MODELS[name]()
        run = trackside.init(name=f"{name}, {optimizer}", endpoint=f"ipc://{tmp_path}/nobody.sock")
        loud[name, optimizer] = trained(run, model, OPTIMIZERS[optimizer](model.parameters()), 400 if every else 56)
    assert not any(loud.values()), loud
