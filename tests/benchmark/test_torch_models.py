"""Models of PyTorch: variants, sizes, agreement with the reference, checkpoints, and `Run.benchmark`."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import trackside
from trackside.benchmark.agreement import agreements
from trackside.benchmark.intervals import Interval
from trackside.benchmark.messages import Load, Spec
from trackside.benchmark.rounds import TargetError
from trackside.benchmark.targets import build
from trackside.benchmark.torch_model import Model, read_weights

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trackside.benchmark.messages import Finding


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
    models = {name: Model(Tiny(), None, name.removesuffix("-again"), "cpu") for name in names}
    return intervals(agreements(models, 16, 64, 4))


def intervals(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the intervals by variant and measure."""
    return {
        name: {measure: Interval(**fields) for measure, fields in found.items()}
        for finding in findings
        for name, found in finding.agreement.items()
    }


def test_the_same_model_agrees_with_itself(compared: dict[str, Any]) -> None:
    found = compared["fp32-again"]
    assert found["largest_difference"].value == 0
    assert found["top1"].value == found["exact_match"].value == 1
    assert found["kl"].value == pytest.approx(0, abs=1e-9)
    assert found["perplexity"].value == pytest.approx(1)
    assert 0.94 < found["exact_match"].low < 1  # 64 equal inputs exclude no share of 5 % that differ


def test_the_further_a_variant_is_from_the_reference_the_less_it_agrees(compared: dict[str, Any]) -> None:
    bf16, int8, pruned = (compared[name] for name in ("bf16", "int8-dynamic", "pruned-90"))
    assert 0 < bf16["largest_difference"].value < pruned["largest_difference"].value
    assert 0 < int8["largest_difference"].value < pruned["largest_difference"].value
    assert pruned["top1"].high < int8["top1"].low
    assert pruned["kl"].low > int8["kl"].high
    assert pruned["cosine"].value < bf16["cosine"].value <= 1


def test_the_measures_are_those_of_their_definitions() -> None:
    models = {name: Model(Tiny(), None, name, "cpu") for name in ("fp32", "pruned-50")}
    found = intervals(agreements(models, 16, 8, 2))["pruned-50"]
    ids = models["fp32"].made(Load(batch=8, length=16))
    one, other = (models[name](ids) for name in models)
    assert found["largest_difference"].value == pytest.approx(float((one - other).abs().max()), rel=1e-4)
    assert found["top1"].value == pytest.approx(float((one.argmax(-1) == other.argmax(-1)).float().mean()))
    divergence = nn.functional.kl_div(other.log_softmax(-1), one.log_softmax(-1), log_target=True, reduction="none")
    assert found["kl"].value == pytest.approx(float(divergence.sum(-1).mean()), rel=1e-3)
    losses = [nn.functional.cross_entropy(out[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) for out in (one, other)]
    assert found["perplexity"].value == pytest.approx(float((losses[1] - losses[0]).exp()), rel=1e-4)


def test_sizes_are_those_of_the_weights() -> None:
    parameters = sum(one.numel() for one in Tiny().parameters())
    facts = {name: Model(Tiny(), None, name, "cpu").facts() for name in ("", "bf16-weights", "int8-dynamic")}
    assert facts[""]["parameters"] == facts["int8-dynamic"]["parameters"] == parameters
    assert facts[""]["weights_bytes"] == 4 * parameters
    assert facts["bf16-weights"]["weights_bytes"] == 2 * parameters
    assert facts["int8-dynamic"]["weights_bytes"] < 0.8 * facts[""]["weights_bytes"]
    assert facts[""]["disk_bytes"] > facts[""]["weights_bytes"]


def test_weights_of_checkpoints_are_read_without_unpickling_code(tmp_path: Path) -> None:
    trained = Tiny()
    nn.init.ones_(trained.head.weight)
    torch.save({"model": {f"module.{name}": value for name, value in trained.state_dict().items()}}, tmp_path / "a.pt")
    model = Tiny()
    read_weights(model, tmp_path)
    assert torch.equal(model.head.weight, trained.head.weight)
    with pytest.raises(TargetError, match="no weights of a Linear"):
        read_weights(nn.Linear(2, 2), tmp_path / "a.pt")
    torch.save(Harmful(tmp_path / "harmed"), tmp_path / "b.pt")
    with pytest.raises(Exception, match=r"[Uu]npickl"):
        read_weights(Tiny(), tmp_path / "b.pt")
    assert not (tmp_path / "harmed").exists()


class Harmful:
    """An object that runs code as it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._file).touch, (self._file,)


def test_weights_without_a_model_are_named_with_the_remedy(tmp_path: Path) -> None:
    torch.save(Tiny().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(TargetError, match="weights without a model; write MODULE:FACTORY --checkpoint"):
        build(Spec("a", str(tmp_path / "weights.pt")), "cpu")


@pytest.mark.parametrize(
    ("variant", "text"),
    [("int9", "none of fp32"), ("torchao-int8", "needs torchao"), ("int8-dynamic@cuda", "runs on the CPU alone")],
)
def test_variants_that_cannot_be_made_have_a_remedy(variant: str, text: str) -> None:
    from trackside.benchmark.torch_model import apply

    name, _, device = variant.partition("@")
    with pytest.raises(TargetError, match=text):
        apply(Tiny(), name, device or "cpu")


def test_a_run_measures_a_model_and_leaves_it_as_it_was() -> None:
    model = Tiny()
    before = copy.deepcopy(model.state_dict())
    run = trackside.init("notebook", enabled=False)
    found = run.benchmark(model, variants=("fp32", "int8-dynamic"), batch_sizes=(1, 2), lengths=(8,), seconds=0.05)
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
