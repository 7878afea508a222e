"""Models of PyTorch: variants, sizes, agreement with the reference, and `Run.benchmark`."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import trackside
from trackside.benchmark.in_process import build
from trackside.benchmark.messages import Spec
from trackside.benchmark.results import Interval
from trackside.benchmark.rounds import TargetError
from trackside.benchmark.torch_model import EvaluatedModel, agreements

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trackside.benchmark.messages import ProcessAnswer


class Tiny(nn.Module):  # type: ignore[misc]
    """A language model of one encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        result: torch.Tensor = self.head(self.layer(self.embedding(ids), src_mask=mask, is_causal=True))
        return result


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    names = ("fp32", "fp32-again", "bf16", "int8-dynamic", "pruned-90")
    models = {name: EvaluatedModel(Tiny(), ids, name.removesuffix("-again"), "cpu") for name in names}
    return intervals(agreements(models, 16))


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(0))


def intervals(findings: Iterable[ProcessAnswer]) -> dict[str, Any]:
    """Return the intervals by variant and measure."""
    return {
        name: {measure: Interval(**fields) for measure, fields in found.items()}
        for finding in findings
        for name, found in finding.agreement.items()
    }


def test_the_same_model_agrees_with_itself(compared: dict[str, Any]) -> None:
    found = compared["fp32-again"]
    assert found["largest_difference"].value == 0
    assert found["top1"].value == 1
    assert found["kl"].value == pytest.approx(0, abs=1e-9)
    assert 0.94 < found["top1"].low < 1  # 64 equal inputs exclude no share of 5 % that differ


def test_the_further_a_variant_is_from_the_reference_the_less_it_agrees(compared: dict[str, Any]) -> None:
    bf16, int8, pruned = (compared[name] for name in ("bf16", "int8-dynamic", "pruned-90"))
    assert 0 < bf16["largest_difference"].value < pruned["largest_difference"].value
    assert 0 < int8["largest_difference"].value < pruned["largest_difference"].value
    assert pruned["top1"].high < int8["top1"].low
    assert pruned["kl"].low > int8["kl"].high
    assert pruned["cosine"].value < bf16["cosine"].value <= 1


def test_the_measures_are_those_of_their_definitions() -> None:
    models = {name: EvaluatedModel(Tiny(), ids, name, "cpu") for name in ("fp32", "pruned-50")}
    found = intervals(agreements(models, 16, 8))["pruned-50"]
    one, other = (models[name](ids(8, 16)) for name in models)
    assert found["largest_difference"].value == pytest.approx(float((one - other).abs().max()), rel=1e-4)
    assert found["top1"].value == pytest.approx(float((one.argmax(-1) == other.argmax(-1)).float().mean()))
    divergence = nn.functional.kl_div(other.log_softmax(-1), one.log_softmax(-1), log_target=True, reduction="none")
    assert found["kl"].value == pytest.approx(float(divergence.sum(-1).mean()), rel=1e-3)


def test_sizes_are_those_of_the_weights() -> None:
    parameters = sum(one.numel() for one in Tiny().parameters())
    facts = {name: EvaluatedModel(Tiny(), None, name, "cpu").facts() for name in ("", "bf16-weights", "int8-dynamic")}
    assert facts[""]["parameters"] == facts["int8-dynamic"]["parameters"] == parameters
    assert facts[""]["weights_bytes"] == 4 * parameters
    assert facts["bf16-weights"]["weights_bytes"] == 2 * parameters
    assert facts["int8-dynamic"]["weights_bytes"] < 0.8 * facts[""]["weights_bytes"]


def test_example_inputs_are_compared_row_by_row_and_few_rows_have_no_interval() -> None:
    models = {name: EvaluatedModel(Tiny(), ids(2, 16), name, "cpu") for name in ("fp32", "bf16-weights")}
    found = intervals(agreements(models, 0))["bf16-weights"]
    assert 0 < found["largest_difference"].value < 1
    assert found["largest_difference"].reason == "2 of 59 inputs"
    assert (found["cosine"].low, found["cosine"].reason) == (None, "2 of 3 inputs")


def test_weights_that_are_tied_count_once_and_pruned_ones_are_zero() -> None:
    model = Tiny()
    model.head.weight = model.embedding.weight
    assert EvaluatedModel(model, None, "", "cpu").facts()["weights_bytes"] == 4 * sum(
        one.numel() for one in model.parameters()
    )
    pruned = EvaluatedModel(Tiny(), None, "pruned-50", "cpu")
    assert 0.4 < float((pruned._model.head.weight == 0).float().mean()) < 0.6


@pytest.mark.parametrize(
    ("variant", "text"),
    [("int9", "none of fp32"), ("int8-weights", "none of fp32"), ("int8-dynamic@cuda", "runs on the CPU alone")],
)
def test_variants_that_cannot_be_made_have_a_remedy(variant: str, text: str) -> None:
    from trackside.benchmark.torch_model import apply

    name, _, device = variant.partition("@")
    with pytest.raises(TargetError, match=text):
        apply(Tiny(), name, device or "cpu")


def tiny(variant: str = "") -> tuple[nn.Module, object]:
    return Tiny(), ids


@pytest.mark.parametrize(("variant", "quantized"), [("int8-dynamic", True), ("int8-mine", False)])
def test_a_factory_that_takes_any_word_changes_no_meaning_of_a_known_one(variant: str, quantized: bool) -> None:
    built = build(Spec("one", f"{__name__}:tiny", variant), "cpu")
    assert isinstance(built, EvaluatedModel)
    kinds = {type(layer).__module__ for layer in built._model.modules()}
    assert any("quantized" in kind for kind in kinds) == quantized


def test_a_run_measures_a_model_and_leaves_it_as_it_was() -> None:
    model = Tiny()
    before = copy.deepcopy(model.state_dict())
    run = trackside.init("notebook", enabled=False)
    found = run.benchmark(model, ids, variants=("fp32", "int8-dynamic"), batch_sizes=(1, 2), lengths=(8,), seconds=0.05)
    run.finish()
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [load["load"] for load in found["variants"][1]["loads"]] == ["batch=1 length=8", "batch=2 length=8"]
    assert found["variants"][1]["agreement"]["top1"]["value"] > 0.5
    assert len(found["sentences"]) == 2


def test_a_run_measures_a_function() -> None:
    run = trackside.init("notebook", enabled=False)
    found = run.benchmark(sum, ([1, 2],), seconds=0.05)
    with pytest.raises(TypeError, match="variants are those of a torch module, not of a builtin_function"):
        run.benchmark(sum, ([1, 2],), variants=["fp32"])
    run.finish()
    assert found["variants"][0]["latency_seconds"]["p50"]["value"] < 1
