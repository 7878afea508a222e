"""A watched model: its norms are PyTorch's own, they come with the user's pushes, and they cost nothing but their time."""

from __future__ import annotations

import gc
import json
import weakref
from math import isnan, sqrt
from typing import TYPE_CHECKING, Any

import pytest
import torch
from client.router import kept
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.optim import optimizer as optimizers
from torch.testing._internal.distributed.fake_pg import FakeStore

import trackside
from trackside.norms import Norms
from trackside.parameters import LAYERS, Parameters, own_part, sampled
from trackside.wire import decode_body

if TYPE_CHECKING:
    from collections.abc import Iterator


FLOAT = 1e-6


class Block(nn.Module):  # type: ignore[misc]
    """A layer of two, beside what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, 8)

    def forward(self, batch: torch.Tensor) -> Any:
        return batch + self.outer(torch.relu(self.inner(batch)))


def made(blocks: int = 2) -> nn.Sequential:
    torch.manual_seed(4711)
    return nn.Sequential(*(Block() for _ in range(blocks)), nn.Linear(8, 1))


@pytest.fixture
def run(nowhere: str) -> trackside.Run:
    return trackside.init(endpoint=nowhere)


def backward(model: Any, times: int = 1) -> torch.Tensor:
    for _ in range(times):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
    return loss


def norm(parameters: Iterator[Any]) -> float:
    """What clipping says it is, without clipping."""
    return float(nn.utils.clip_grad_norm_(parameters, float("inf")))


def test_norms_are_those_of_pytorch_also_of_accumulated_gradients_and_join_the_push(run: trackside.Run) -> None:
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = trackside.watch(model, optimizer)
    wanted = []
    for step in range(2):
        optimizer.zero_grad()
        loss = backward(model, times=3)
        wanted.append([norm(model.parameters())])
        before = nn.utils.parameters_to_vector(model.parameters()).detach()
        optimizer.step()
        after = nn.utils.parameters_to_vector(model.parameters()).detach()
        wanted[-1] += [float(after.norm()), float((after - before).norm() / before.norm())]
        run.push(step=step, loss=loss)
    watcher.stop()
    optimizer.step()
    run.push(step=2, loss=0.0)
    first, second, last = kept(run)[0]
    for (step, row), numbers in zip((first, second), wanted, strict=True):
        assert [row["grad_norm"], row["param_norm"], row["update_ratio"]] == pytest.approx(numbers, rel=FLOAT), step
    assert last == (2, {"loss": 0.0})


def test_without_an_optimizer_the_first_that_has_parameters_of_the_model_is_followed_and_closures_are(
    run: trackside.Run,
) -> None:
    model, other = made(), made()
    strange = torch.optim.SGD(other.parameters(), lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watcher = run.watch(model)
    backward(other)
    strange.step()
    run.push(step=0, loss=1.0)

    def closure() -> torch.Tensor:  # as Lightning does: the gradients are made within the step
        optimizer.zero_grad()
        return backward(model)

    optimizer.step(closure)
    wanted = norm(model.parameters())
    run.push(step=1, loss=1.0)
    watcher.stop()
    (_, first), (_, second) = kept(run)[0]
    assert first == {"loss": 1.0}
    assert second["grad_norm"] == pytest.approx(wanted, rel=FLOAT)
    assert second["update_ratio"] == 0.0


def test_the_users_own_norm_counts_and_none_is_told_beside_it(run: trackside.Run) -> None:
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer)
    for step in range(3):
        backward(model)
        optimizer.step()
        run.push(step=step, loss=1.0)
        if step < 2:
            run.push(step=step, grad_norm=-1.0)
    told = [(step, row["grad_norm"]) for step, row in kept(run)[0] if "grad_norm" in row]
    assert [step for step, one in told if one != -1.0] == [0]


def test_what_joins_a_push_without_a_step_does_not_make_it_the_next_one(run: trackside.Run) -> None:
    for _ in range(2):
        run._beside({"found": 1.0})
        run.push(loss=0.5)
        run._beside({"found": 2.0})
        run.push(accuracy=0.5)
    assert kept(run)[0] == [
        (0, {"found": 1.0, "loss": 0.5}),
        (0, {"found": 2.0, "accuracy": 0.5}),
        (1, {"found": 1.0, "loss": 0.5}),
        (1, {"found": 2.0, "accuracy": 0.5}),
    ]


def test_the_first_layer_whose_gradient_is_not_finite_is_named_at_its_step_and_once(run: trackside.Run) -> None:
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = run.watch(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        backward(model)
        if step > 0:
            model[1].inner.weight.grad[2, 3] = float("inf")
            model[2].weight.grad[0, 0] = float("nan")
        watcher._gradients.every = 1
        optimizer.step()
        run.push(step=step, loss=1.0)
    run.finish()
    said = [decode_body("batch", one.frames[2]) for one in [*run._session.pending][:-1]]
    (event,) = [one for body in said for one in body.events]
    assert (event.kind, event.step) == ("nonfinite_gradients", 1)
    assert json.loads(event.fields) == {"layer": "1.inner", "parameter": "1.inner.weight", "parameters": 2, "of": 10}


def test_layers_are_told_by_name_by_pattern_and_for_some_steps_when_a_daemon_asks(run: trackside.Run) -> None:
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run.watch(model, optimizer, layers=["0", "*.outer", "none"])
    wanted = []
    for step in range(5):
        optimizer.zero_grad()
        backward(model)
        if step == 3:
            run._session.ask_layers(1)
        optimizer.step()
        wanted.append({name: one.grad.norm().item() for name, one in model.named_parameters()})
        run.push(step=step, loss=1.0)
    rows, _ = kept(run)
    usual = {"grad_norm/0", "grad_norm/0.outer", "grad_norm/1.outer"}
    every = {f"grad_norm/{name}" for name in ("0.inner", "0.outer", "1.inner", "1.outer", "2")}
    found = [{key for key in row if key.startswith("grad_norm/")} for _, row in rows]
    assert found == [usual, usual, usual, every, usual]
    for (_, row), norms in zip(rows, wanted, strict=True):
        outer = sqrt(norms["1.outer.weight"] ** 2 + norms["1.outer.bias"] ** 2)
        assert row["grad_norm/1.outer"] == pytest.approx(outer, rel=FLOAT)
        whole = sqrt(sum(one**2 for name, one in norms.items() if name.startswith("0.")))
        assert row.get("grad_norm/0", whole) == pytest.approx(whole, rel=FLOAT)


def test_a_compiled_model_has_no_graph_breaks_and_a_compiled_step_none_either(run: trackside.Run) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = made()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = run.watch(compiled, optimizer, layers="0")
    for step in range(3):
        optimizer.zero_grad()
        backward(compiled)
        wanted = norm(model.parameters())
        optimizer.step()
        run.push(step=step, loss=1.0)
    watcher.stop()
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    rows = kept(run)[0]
    assert rows[-1][1]["grad_norm"] == pytest.approx(wanted, rel=FLOAT)
    assert "grad_norm/0" in rows[-1][1]


def test_nothing_of_the_model_is_kept_alive_and_hooks_go_with_it_or_with_the_run(run: trackside.Run) -> None:
    model = made()
    optimizer = torch.optim.Adam(model.parameters())
    every = optimizers._global_optimizer_post_hooks
    hooks = len(every)
    watchers = [run.watch(model, optimizer), run.watch(model)]
    assert len(every) == hooks + 1
    backward(model)
    optimizer.step()
    gone = weakref.ref(model), weakref.ref(model[0].inner.weight)
    del model, optimizer
    gc.collect()
    assert [one() for one in gone] == [None, None]
    other = made()
    again = torch.optim.SGD(other.parameters(), lr=0.1)
    calls: list[int] = []
    behind = optimizers.register_optimizer_step_post_hook(lambda *_: calls.append(1))
    backward(other)
    again.step()
    behind.remove()
    assert calls == [1]  # a hook behind one that has ended is called all the same
    watcher = run.watch(other, again)
    assert watchers[1]._ended
    assert len(every) == hooks
    run.finish()
    again.step()
    assert watcher._ended
    watcher.stop()
    assert not watcher._handles


def test_what_fails_costs_only_itself_and_is_said_once(run: trackside.Run, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        run.watch("gpt")
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = run.watch(model, optimizer)
    watcher._roots = None  # type: ignore[assignment]
    for _ in range(2):
        backward(model)
        optimizer.step()
    assert caplog.text.count("what is watched of the model ends here, training goes on") == 1
    assert watcher._ended


def test_what_is_on_a_device_is_told_as_tensors_of_the_same_numbers(
    run: trackside.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    for here in (True, False):
        monkeypatch.setattr("trackside.norms.is_here", lambda _, here=here: here)
        model = made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monkeypatch.setattr(run, "_joins", None)
        watcher = run.watch(model, optimizer, layers=["0", "*.outer"])
        backward(model)
        optimizer.step()
        watcher.stop()
        assert run._joins is not None
        told.append(dict(run._joins._waiting))
    numbers, tensors = told
    assert {type(one) for one in tensors.values()} == {torch.Tensor}
    assert {key: float(one) for key, one in tensors.items()} == pytest.approx(numbers, rel=FLOAT)
    bad = Norms([torch.ones(2), torch.tensor([float("inf")]), torch.tensor([float("nan")])])
    assert [int(one) for one in bad.wrong()] == [2, 1]
    assert float(Norms([torch.ones(2), torch.ones(7)]).squared) == pytest.approx(9.0)


def test_of_parameters_that_several_ranks_have_one_counts(nowhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh, counted = init_device_mesh("cpu", (2, 2)), []
    for rank in range(4):
        monkeypatch.setattr(DeviceMesh, "get_coordinate", lambda _, rank=rank: divmod(rank, 2))
        model = nn.Module()
        for name, places in (("shards", (Shard(0), Shard(0))), ("grouped", (Replicate(), Shard(0)))):
            setattr(model, name, nn.Parameter(DTensor.from_local(torch.ones(2, 2), mesh, places)))
        model.plain = nn.Parameter(torch.ones(2))
        parameters = Parameters(model, rank)
        counted.append([name for name, _ in parameters.living()])
        assert parameters.sharded
        del model.shards, model.plain
        run = trackside.init(endpoint=nowhere)
        run.rank = rank
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run.watch(model, optimizer)
        model.grouped.grad = model.grouped.detach().clone()
        optimizer.step()
        run.push(loss=1.0)
        ((_, row),) = kept(run)[0]
        assert row["grad_norm_local_squared"] == (4.0 if rank < 2 else 0.0)
    distributed.destroy_process_group()
    assert counted == [["shards", "grouped", "plain"], ["shards", "grouped"], ["shards"], ["shards"]]


def test_halves_are_summed_as_floats_and_sparse_gradients_are_read() -> None:
    halves = [torch.full((100,), 3e4, dtype=torch.float16), torch.ones(9, dtype=torch.float64)]
    assert Norms(halves).whole == pytest.approx(sqrt(100 * 9e8 + 9), rel=1e-3)
    table = nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 1, 2])).sum().backward()
    assert Norms([own_part(table.weight.grad)]).whole == pytest.approx(sqrt(4 * 4 + 4), rel=FLOAT)
    assert isnan(Norms([torch.tensor([float("nan")]), torch.tensor([float("inf")])]).whole)


def test_samples_of_weights_see_every_column_and_layers_are_not_too_many() -> None:
    weights = torch.arange(64 * 96).reshape(64, 96)
    assert {int(one) % 96 for one in sampled(weights, 1000)} == set(range(96))
    assert len(sampled(weights, 1000)) <= 1000
    assert sampled(weights.t(), 10**6).sort().values.equal(weights.reshape(-1))
    deep = nn.Sequential(*(nn.Sequential(*(nn.Linear(1, 1) for _ in range(4))) for _ in range(LAYERS // 2)))
    layers = Parameters(deep, 0).layers(None)
    assert [name for name, _ in layers] == [str(number) for number in range(LAYERS // 2)]
    assert {len(names) for _, names in layers} == {8}
