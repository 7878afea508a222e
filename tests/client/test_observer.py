"""An observed model: what is measured is what PyTorch has, at few steps, and no hook stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from client.router import unsent_bodies
from client.torch_state import FakeStore, module_hooks
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional

import trackside
from trackside.buckets import Buckets
from trackside.packing import unpack
from trackside.pytorch.histograms import Histograms
from trackside.pytorch.observer import EARLY, EARLY_EVERY, FORWARD_SHARE, SHARE, Observer, choice
from trackside.pytorch.parameters import Parameters, local_values
from trackside.rows import Measured
from trackside.wire import Pushes

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.wire import DistributionFrame

KEYS = 12


class Attention(nn.Module):  # type: ignore[misc]
    """Causal attention with two heads, by PyTorch's operator or written out."""

    def __init__(self, *, written_out: bool = False) -> None:
        super().__init__()
        self.num_heads = 2
        self.mixed = nn.Linear(8, 24)
        self._written_out = written_out

    def forward(self, batch: torch.Tensor) -> Any:
        query, key, value = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.mixed(batch).split(8, dim=-1))
        if not self._written_out:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(2, 3) * 0.5
            later = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)
            mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        return mixed.transpose(1, 2).flatten(2)


class Block(nn.Module):  # type: ignore[misc]
    """A block of a transformer."""

    def __init__(self, **attention: Any) -> None:
        super().__init__()
        self.attn = Attention(**attention)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, batch: torch.Tensor) -> Any:
        return batch + self.mlp(batch + self.attn(batch))


def made(blocks: int = 2, **attention: Any) -> Any:
    torch.manual_seed(4711)
    return nn.Sequential(*(Block(**attention) for _ in range(blocks)))


def train(
    model: Any, steps: int, run: Any = trackside, before: Callable[[int], object] = lambda _: None
) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        before(step)
        batch = torch.randn(4, KEYS, 8)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        run.push(step=step, loss=1.0)
    return batch


def sent(run: trackside.Run, *kinds: str) -> list[DistributionFrame]:
    batches = [body for body in unsent_bodies(run) if isinstance(body, Pushes)]
    found = [frame for body in batches for frame in body.distributions if not kinds or frame.kind in kinds]
    for frame in found:
        frame.check()
    return found


def observer_of(model: Any, run: trackside.Run, **chosen: Any) -> Observer:
    return Observer(run.queue, Parameters(model, 0), model, choice(**chosen))


def columns(frame: DistributionFrame) -> dict[str, dict[str, float]]:
    every = {name: unpack("f", column) for name, column in frame.columns.items()}
    return {layer: {name: every[name][place] for name in every} for place, layer in enumerate(frame.names)}


def test_weights_gradients_and_updates_are_those_of_the_step(run: trackside.Run) -> None:
    model = made(1)
    run.observe(model, every=2)
    weights: dict[int, Any] = {}
    train(model, 4, run, lambda step: weights.update({step: model[0].mlp[2].weight.detach().clone()}))
    found = sent(run)
    assert [(frame.kind, frame.step) for frame in found] == [
        ("gradients", 1),
        ("weights", 1),
        ("gradients", 3),
        ("weights", 3),
    ]
    assert set(found[0].names) == {"0.attn.mixed", "0.mlp.0", "0.mlp.2"}
    layer = columns(found[1])["0.mlp.2"]
    after = torch.cat([weights[2].flatten(), model[0].mlp[2].bias.detach()])  # the bias is of a later step
    assert layer["size"] == len(after)
    moved = weights[2] - weights[1]
    ratio = float(moved.norm() / weights[2].norm())
    assert layer["update_ratio"] == pytest.approx(ratio, rel=0.5)  # with the bias
    assert 1 <= layer["rank"] <= 8
    place = found[3].names.index("0.mlp.2")
    own = Histograms(["x"], "cpu")
    own.add([(0, model[0].mlp[2].weight), (0, model[0].mlp[2].bias)])
    assert found[3].buckets[place] == own.frame("gradients", 0, own.tensors()).buckets[0]


def test_outputs_of_chosen_modules_are_measured_and_no_hook_stays(run: trackside.Run) -> None:
    model = made(2)
    run.observe(model, weights=False, gradients=False, activations="*.mlp", every=2)
    outputs: list[torch.Tensor] = []
    handle = model[1].mlp.register_forward_hook(lambda _, __, output: outputs.append(output.detach()))
    with torch.no_grad():
        model(torch.randn(4, KEYS, 8))  # an evaluation does not count
    train(model, 4, run)
    handle.remove()
    found = sent(run)
    assert [(frame.kind, frame.step, frame.names) for frame in found] == [
        ("activations", step, ["0.mlp", "1.mlp"]) for step in (1, 3)
    ]
    assert columns(found[0])["1.mlp"]["mean"] == pytest.approx(float(outputs[2].mean()), rel=1e-4, abs=1e-6)
    assert Buckets.unpacked(found[0].buckets[1]).size == outputs[2].numel()
    assert module_hooks(*(module for module in model.modules() if module is not model)) == []


@pytest.mark.parametrize("written_out", [False, True])
def test_attention_has_the_entropy_and_the_largest_logit_of_each_head(run: trackside.Run, *, written_out: bool) -> None:
    model = made(1, written_out=written_out)
    run.observe(model, weights=False, gradients=False, attention="*.attn", every=1)
    train(model, 2, run)
    first = sent(run, "attention")[0]
    assert first.names == ["0.attn/0", "0.attn/1"]
    assert first.buckets == []
    heads = columns(first)
    assert all(0 < one["entropy"] < 1 and 0 < one["logit"] < 10 for one in heads.values())


def test_attention_that_collapses_has_no_entropy(run: trackside.Run) -> None:
    model = made(1)
    with torch.no_grad():
        model[0].attn.mixed.weight[:4] *= 1000
    run.observe(model, weights=False, gradients=False, attention="*.attn", every=1)
    train(model, 2, run)
    head, other = columns(sent(run)[0]).values()
    assert head["entropy"] < 0.05
    assert other["entropy"] > 0.5
    assert head["logit"] > 50 * other["logit"]


def test_the_first_steps_are_measured_and_then_as_many_as_are_cheap(run: trackside.Run) -> None:
    observer = observer_of(made(1), run)
    observer.budget.every = 1024
    assert [step for step in range(1, 2100) if observer.is_due(step)] == [
        *range(EARLY_EVERY, EARLY + 1, EARLY_EVERY),
        1024,
        2048,
    ]
    observer.burst(300, 12)
    assert [step for step in range(301, 400) if observer.is_due(step)] == [304, 308, 312]


@pytest.mark.parametrize("forward", [{}, {"activations": "*.mlp", "attention": "*.attn"}])
def test_the_pace_keeps_to_the_share_of_the_time_for_short_steps_too(
    run: trackside.Run, forward: dict[str, Any]
) -> None:
    observer = observer_of(made(1), run, **forward)
    observer.budget.add_step(0.001)
    for _ in range(6):
        observer.budget.add_cost(0.05)
    share = 0.05 / (observer.budget.every * 0.001)
    limit = SHARE + FORWARD_SHARE * bool(forward)
    assert limit / 2 < share <= limit


def test_observing_a_watched_model_continues_with_it_and_stop_ends_both(run: trackside.Run) -> None:
    model = made(1)
    watcher = run.watch(model)
    assert run.observe(model, every=1) is watcher
    train(model, 2, run)
    watcher.stop()
    train(model, 2, run)
    assert {frame.step for frame in sent(run)} <= {0, 1}


def test_compiled_modules_and_names_without_a_module_are_named_in_a_warning(
    run: trackside.Run, caplog: pytest.LogCaptureFixture
) -> None:
    model = made(2)
    model[0].compile(backend="eager")
    run.observe(model, activations="*.mlp", attention="*.nothing")
    printed = caplog.text
    assert "activations: 1 of the modules *.mlp are compiled, and cannot be observed" in printed
    assert "attention: no module of Sequential matches *.nothing; it has 0, 0.attn" in printed


@pytest.mark.parametrize("every", ["often", 0, -1, 1.5])
def test_a_pace_that_is_none_is_refused(run: trackside.Run, every: Any) -> None:
    with pytest.raises(ValueError, match="neither 'auto' nor a positive number"):
        run.observe(made(1), every=every)


def test_a_failure_of_an_observation_ends_it_and_training_continues(
    run: trackside.Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = made(1)
    run.observe(model, every=1)
    monkeypatch.setattr(Histograms, "add", lambda *_: 1 / 0)
    train(model, 3, run)
    assert sent(run) == []
    assert caplog.text.count("the model's distributions are no longer measured: ZeroDivisionError") == 1


def test_attention_over_few_keys_is_not_measured_and_nothing_else_is_lost(
    run: trackside.Run, caplog: pytest.LogCaptureFixture
) -> None:
    model = made(1)
    run.observe(model, weights=False, attention="*.attn", every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(torch.randn(4, 3, 8)).square().mean().backward()
        optimizer.step()
        run.push(step=step, loss=1.0)
    assert {frame.kind for frame in sent(run)} == {"gradients"}
    assert "observe: no chosen module has run, or has attention that PyTorch computes" in caplog.text


def test_distributions_that_fail_late_cost_only_themselves(
    run: trackside.Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Histograms, "frame", lambda *_: 1 / 0)
    model = made(1)
    run.observe(model, every=1)
    train(model, 3, run)
    assert sent(run) == []
    assert "distributions of gradients are not sent: ZeroDivisionError" in caplog.text
    assert run.queue.session.totals.pushes == 3


def test_shards_of_all_ranks_have_the_distribution_of_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh, whole = init_device_mesh("cpu", (4,)), torch.randn(64, 8)
    counts: dict[int, int] = {}
    for rank, part in enumerate(whole.chunk(4)):
        monkeypatch.setattr(DeviceMesh, "get_coordinate", lambda _, rank=rank: (rank,))
        model = nn.Module()
        model.shards = nn.Parameter(DTensor.from_local(part, mesh, (Shard(0),)))
        model.copies = nn.Parameter(DTensor.from_local(torch.ones(3), mesh, (Replicate(),)))
        histograms = Histograms(["all"], "cpu")
        histograms.add((0, local_values(one)) for _, one in Parameters(model, rank).trained())
        for code, count in Buckets.unpacked(
            histograms.frame("gradients", 0, histograms.tensors()).buckets[0]
        ).counts.items():
            counts[code] = counts.get(code, 0) + count
    distributed.destroy_process_group()
    every = Histograms(["all"], "cpu")
    every.add([(0, whole), (0, torch.ones(3))])
    assert counts == Buckets.unpacked(every.frame("gradients", 0, every.tensors()).buckets[0]).counts


def test_what_is_on_a_device_is_sent_once_it_has_arrived_with_the_step_of_its_measurement() -> None:
    arrived: list[bool] = []
    event = SimpleNamespace(record=lambda _: None, query=lambda: arrived != [])
    fake = SimpleNamespace(
        empty=lambda shape, **more: torch.empty(shape, dtype=more["dtype"]),
        cuda=SimpleNamespace(Event=lambda: event, current_stream=lambda _: None),
    )
    histograms = Histograms(["layer"], "cpu")
    histograms.add([(0, torch.ones(5))])
    measured = Measured("gradients", histograms)
    pinned: dict[tuple[str, int], Any] = {}
    assert not measured.leave(fake, pinned)  # all is on the host
    measured._is_here = False
    assert measured.leave(fake, pinned)
    assert (measured.frame(), measured.has_arrived(pinned)) == (None, False)
    measured.step = 7
    arrived.append(True)
    assert measured.has_arrived(pinned)
    frame = measured.frame()
    assert frame is not None
    assert (frame.step, Buckets.unpacked(frame.buckets[0]).size) == (7, 5)


def test_gradients_of_a_step_that_a_scaler_skips_are_not_sent() -> None:
    histograms = Histograms(["layer"], "cpu")
    histograms.add([(0, torch.ones(5))])
    assert Measured("gradients", histograms, torch.tensor(1.0)).frame() is None
    assert Measured("gradients", histograms, torch.tensor(0.0)).frame() is not None
