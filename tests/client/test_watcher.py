"""A watched model: its norms are PyTorch's own, they come with the user's pushes, and they cost nothing but their time."""

from __future__ import annotations

import gc
import json
import weakref
from math import isnan, sqrt
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import MagicMock

import pytest
import torch
from client.router import marks, undrained, unsent_events, unsent_rows
from client.stream import OnDevice, Stream, on_device
from client.torch_state import FakeStore, count_graphs_anew, graphs, hooks_after_any_step, module_hooks, step_hooks
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.optim import optimizer as optimizers

import trackside
from trackside.device_scalars import SLOTS
from trackside.pytorch.norms import Norms, WeightSample
from trackside.pytorch.overhead_budget import OverheadBudget
from trackside.pytorch.parameters import LAYERS, SAMPLED, Parameters, local_values, strided_sample
from trackside.pytorch.step_stages import StepStages
from trackside.pytorch.watcher import GRADIENTS_SHARE
from trackside.row_queue import RowQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


FLOAT = 1e-6


class Block(nn.Module):  # type: ignore[misc]
    """A residual block of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, 8)

    def forward(self, batch: torch.Tensor) -> Any:
        return batch + self.outer(torch.relu(self.inner(batch)))


def made(blocks: int = 2) -> nn.Sequential:
    torch.manual_seed(4711)
    return nn.Sequential(*(Block() for _ in range(blocks)), nn.Linear(8, 1))


def trainable(rate: float = 0.1) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Return a model and its optimizer."""
    model = made()
    return model, torch.optim.SGD(model.parameters(), lr=rate)


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that has every so-many-th step of what is watched from then on measured, whatever that costs."""

    def paced(gradients: int = 1, weights: int = 1) -> None:
        def budget(share: float) -> OverheadBudget:
            made = OverheadBudget(share)
            made.every = gradients if share == GRADIENTS_SHARE else weights
            return made

        monkeypatch.setattr("trackside.pytorch.watcher.OverheadBudget", budget)
        monkeypatch.setattr(OverheadBudget, "add_cost", lambda *_: None)

    return paced


def backward(model: Any, times: int = 1) -> torch.Tensor:
    for _ in range(times):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
    return loss


def bad_gradients(run: trackside.Run) -> list[Any]:
    """End a run, and return its events on gradients that are not finite, as step and fields."""
    return [(one.step, json.loads(one.fields)) for one in unsent_events(run, "nonfinite_gradients")]


def norm(parameters: Iterator[Any]) -> float:
    """Return the norm that clipping computes, without clipping."""
    return float(nn.utils.clip_grad_norm_(parameters, float("inf")))


def test_norms_are_those_of_pytorch_also_of_accumulated_gradients_and_join_the_push(run: trackside.Run) -> None:
    model, optimizer = trainable()
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
    first, second, last = unsent_rows(run)[0]
    for (step, row), numbers in zip((first, second), wanted, strict=True):
        assert [row["grad_norm"], row["param_norm"], row["update_ratio"]] == pytest.approx(numbers, rel=FLOAT), step
    assert last == (2, {"loss": 0.0})


@pytest.mark.parametrize("named", [True, False], ids=["its optimizer", "any optimizer"])
def test_an_unmeasured_step_reports_only_its_end(
    run: trackside.Run, monkeypatch: pytest.MonkeyPatch, pace: Callable[..., None], named: bool
) -> None:
    pace(4, 8)
    monkeypatch.setattr(StepStages, "step_finished", lambda stages, _: setattr(stages, "next_step", 1000))
    model, optimizer = trainable()
    watcher = run.watch(model, optimizer if named else None)
    hooks = []
    for step in range(1, 18):
        backward(model)
        optimizer.step()
        hooks.append(len(step_hooks(optimizer)))
        run.push(step=step, loss=1.0)
        if step == 10:
            watcher.layers_for(1)
    rows, _ = unsent_rows(run)
    found = {step: set(row) - {"loss"} for step, row in rows if len(row) > 1}
    gradients, weights = {"grad_norm"}, {"param_norm", "update_ratio"}
    layers = {f"grad_norm/{name}" for name in ("0.inner", "0.outer", "1.inner", "1.outer", "2")}
    first = {1: gradients | weights} if not named else {}  # until the optimizer is known, each is looked at
    assert {step: keys for step, keys in found.items() if step > 1} | first == {
        **first,
        4: gradients,
        8: gradients | weights,
        12: gradients | layers,
        16: gradients | weights,
    }
    assert [step for step, waits in enumerate(hooks, 1) if waits > 1] == [3, 7, 11, 15]


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
    (_, first), (_, second) = unsent_rows(run)[0]
    assert first == {"loss": 1.0}
    assert second["grad_norm"] == pytest.approx(wanted, rel=FLOAT)
    assert second["update_ratio"] == 0.0


def test_an_optimizer_that_changes_the_gradients_leaves_the_reported_ones_as_they_were(run: trackside.Run) -> None:
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    run.watch(model, optimizer)
    wanted = []
    for step in range(2):
        optimizer.zero_grad()
        backward(model)
        wanted.append(norm(model.parameters()))
        optimizer.step()
        run.push(step=step, loss=1.0)
    assert norm(model.parameters()) != pytest.approx(wanted[-1], rel=1e-3)
    assert [row["grad_norm"] for _, row in unsent_rows(run)[0]] == pytest.approx(wanted, rel=FLOAT)


@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_are_sent_unscaled_and_none_of_a_step_that_the_scaler_skips(
    run: trackside.Run, pace: Callable[..., None], *, fused: bool
) -> None:
    pace()
    model = made()
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    run.watch(model, optimizer)
    wanted = []
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 8)).square().mean()).backward()
        wanted.append(norm(model.parameters()) / scaler.get_scale())
        if step == 2:
            model[1].inner.weight.grad[2, 3] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        run.push(step=step, loss=1.0)
    assert not bad_gradients(run)
    del wanted[2]
    assert [row["grad_norm"] for _, row in unsent_rows(run)[0] if "grad_norm" in row] == pytest.approx(wanted, rel=1e-5)


def test_what_is_trained_only_later_is_counted_from_then_on(run: trackside.Run, pace: Callable[..., None]) -> None:
    pace()
    model = made().requires_grad_(requires_grad=False)
    model[2].requires_grad_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer)
    wanted = []
    for step in range(3):
        model.requires_grad_(requires_grad=step > 0)
        model[2].requires_grad_()
        optimizer.zero_grad()
        backward(model)
        trained = [one for one in model.parameters() if one.requires_grad]
        wanted.append(norm(iter(trained)))
        optimizer.step()
        wanted.append(float(nn.utils.parameters_to_vector(trained).detach().norm()))
        run.push(step=step, loss=1.0)
    reported = [row[key] for _, row in unsent_rows(run)[0] for key in ("grad_norm", "param_norm")]
    assert reported == pytest.approx(wanted, rel=FLOAT)


def test_without_an_optimizer_its_steps_are_timed_and_steps_within_a_backward_send_nothing(
    run: trackside.Run,
) -> None:
    model = made()
    each = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}
    run.watch(model)
    handles = [one.register_post_accumulate_grad_hook(lambda one: each[one].step()) for one in each]
    backward(model)
    run.push(step=0, loss=1.0)
    for handle in handles:
        handle.remove()
    backward(model)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    run.push(step=1, loss=1.0)
    rows, totals = unsent_rows(run)
    assert [set(row) for _, row in rows] == [{"loss"}, {"loss", "grad_norm", "param_norm", "update_ratio"}]
    assert totals.phases["optimizer"] > 0


def test_an_optimizer_that_is_made_anew_is_found_and_one_that_is_not_named_is_not_missed(run: trackside.Run) -> None:
    model = made()
    run.watch(model, layers="2")
    for step in range(4):
        if step % 2 == 0:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        backward(model)
        optimizer.step()
        run.push(step=step, loss=1.0)
        if step % 2:
            del optimizer
            gc.collect()
    rows, _ = unsent_rows(run)
    assert ["grad_norm/2" in row for _, row in rows] == [True, True, True, True]


def test_the_norms_are_no_part_of_the_optimizer_s_time(
    run: trackside.Run, pace: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pace(3, 3)
    model, optimizer = trainable()
    run.watch(model, optimizer)
    before: list[str] = []

    def measured(tensors: list[torch.Tensor]) -> Norms:
        before.append(marks(run)[-1])
        return Norms(tensors)

    monkeypatch.setattr("trackside.pytorch.watcher.Norms", measured)
    with undrained(run):
        for _ in range(7):
            backward(model)
            optimizer.step()
    assert before == ["-backward", "-optimizer"] * 2  # of the gradients and of the weights


def test_an_optimizer_that_steps_within_the_backward_has_its_end(run: trackside.Run) -> None:
    model = made()
    optimizer = torch.optim.SGD([model[0].inner.weight], lr=0.1)
    model[0].inner.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    run.watch(model, optimizer)
    with undrained(run):
        backward(model, times=2)
        assert marks(run) == ["+forward", "-forward", "+backward", "+optimizer", "-optimizer", "-backward"] * 2


def test_a_model_that_is_watched_anew_is_measured_once(run: trackside.Run) -> None:
    model, optimizer = trainable()
    watchers = [run.watch(model, optimizer) for _ in range(2)]
    backward(model)
    optimizer.step()
    assert [one.measures_for(run.queue) for one in watchers] == [False, True]


def test_the_users_own_norm_counts_and_none_is_sent_beside_it(run: trackside.Run) -> None:
    model, optimizer = trainable()
    run.watch(model, optimizer)
    for step in range(3):
        backward(model)
        optimizer.step()
        run.push(step=step, loss=1.0)
        if step < 2:
            run.push(step=step, grad_norm=-1.0)
    reported = [(step, row["grad_norm"]) for step, row in unsent_rows(run)[0] if "grad_norm" in row]
    assert [step for step, one in reported if one != -1.0] == [0]


def test_what_joins_a_push_without_a_step_does_not_make_it_the_next_one(run: trackside.Run) -> None:
    for _ in range(2):
        run.queue.join_next_push({"found": 1.0})
        run.push(loss=0.5)
        run.queue.join_next_push({"found": 2.0})
        run.push(accuracy=0.5)
    assert unsent_rows(run)[0] == [
        (0, {"found": 1.0, "loss": 0.5}),
        (0, {"found": 2.0, "accuracy": 0.5}),
        (1, {"found": 1.0, "loss": 0.5}),
        (1, {"found": 2.0, "accuracy": 0.5}),
    ]


def test_the_first_layer_with_an_infinite_or_nan_gradient_is_named_at_its_step_and_once(
    run: trackside.Run, pace: Callable[..., None]
) -> None:
    pace()
    model, optimizer = trainable()
    run.watch(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        backward(model)
        if step > 0:
            model[1].inner.weight.grad[2, 3] = float("inf")
            model[2].weight.grad[0, 0] = float("nan")
        optimizer.step()
        run.push(step=step, loss=1.0)
    assert bad_gradients(run) == [(1, {"layer": "1.inner", "parameter": "1.inner.weight", "parameters": 2, "of": 10})]


def test_layers_are_sent_by_name_by_pattern_and_for_some_steps_when_a_daemon_asks(run: trackside.Run) -> None:
    model, optimizer = trainable(0.0)
    run.watch(model, optimizer, layers=["0", "*.outer", "none"])
    wanted = []
    for step in range(5):
        optimizer.zero_grad()
        backward(model)
        if step == 2:
            run.queue.session.request_layers(1)  # from the next one on
        optimizer.step()
        wanted.append({name: one.grad.norm().item() for name, one in model.named_parameters()})
        run.push(step=step, loss=1.0)
    rows, _ = unsent_rows(run)
    usual = {"grad_norm/0", "grad_norm/0.outer", "grad_norm/1.outer"}
    every = {f"grad_norm/{name}" for name in ("0.inner", "0.outer", "1.inner", "1.outer", "2")}
    found = [{key for key in row if key.startswith("grad_norm/")} for _, row in rows]
    assert found == [usual, usual, usual, every, usual]
    for (_, row), norms in zip(rows, wanted, strict=True):
        outer = sqrt(norms["1.outer.weight"] ** 2 + norms["1.outer.bias"] ** 2)
        assert row["grad_norm/1.outer"] == pytest.approx(outer, rel=FLOAT)
        whole = sqrt(sum(one**2 for name, one in norms.items() if name.startswith("0.")))
        assert row.get("grad_norm/0", whole) == pytest.approx(whole, rel=FLOAT)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
def test_a_compiled_step_of_the_optimizer_is_as_it_would_be_unwatched_and_sends_nothing(run: trackside.Run) -> None:
    counted = []
    for watches in (False, True):
        count_graphs_anew()
        model, optimizer = trainable()
        if watches:
            run.watch(model, optimizer)
        step = torch.compile(optimizer.step, backend="eager")
        for _ in range(2):
            backward(model)
            step()
        counted.append(graphs())
    assert counted[0] == counted[1]
    run.push(step=0, loss=1.0)
    assert unsent_rows(run)[0] == [(0, {"loss": 1.0})]


def test_a_compiled_model_has_no_graph_breaks(run: trackside.Run) -> None:
    count_graphs_anew()
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
    breaks, counted = graphs()
    assert (breaks, counted["unique_graphs"]) == ({}, 1)
    rows = unsent_rows(run)[0]
    assert rows[-1][1]["grad_norm"] == pytest.approx(wanted, rel=FLOAT)
    assert "grad_norm/0" in rows[-1][1]


def test_nothing_of_the_model_is_kept_alive_and_hooks_go_with_it_or_with_the_run(run: trackside.Run) -> None:
    model = made()
    optimizer = torch.optim.Adam(model.parameters())
    every = hooks_after_any_step()
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
    assert not watchers[1].measures_for(run.queue)
    assert len(every) == hooks
    run.finish()
    again.step()
    assert not watcher.measures_for(run.queue)


def test_a_failure_costs_only_itself_and_is_logged_once(
    run: trackside.Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        run.watch("gpt")
    model = made()
    run.watch(model, MagicMock()).stop()  # which has a wrapped optimizer within each wrapped optimizer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = run.watch(model, optimizer)
    monkeypatch.setattr("trackside.pytorch.watcher.Norms", MagicMock(side_effect=ValueError("bad")))
    for _ in range(2):
        backward(model)
        optimizer.step()
    assert caplog.text.count("the model is no longer watched, training goes on") == 1
    assert (watcher.measures_for(run.queue), [one.is_alive for one in run.queue.timers]) == (False, [False])
    assert module_hooks(model) == []


def test_values_on_a_device_are_sent_as_tensors_of_the_same_numbers(
    run: trackside.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[dict[str, Any]] = []
    for here in (True, False):
        reported.append({})
        monkeypatch.setattr("trackside.pytorch.norms.is_here", lambda _, here=here: here)
        monkeypatch.setattr(RowQueue, "join_next_push", lambda _, values: reported[-1].update(values))
        model, optimizer = trainable()
        watcher = run.watch(model, optimizer, layers=["0", "*.outer"])
        backward(model)
        optimizer.step()
        watcher.stop()
    numbers, tensors = reported
    assert {type(one) for one in tensors.values()} == {torch.Tensor}
    assert {key: float(one) for key, one in tensors.items()} == pytest.approx(numbers, rel=FLOAT)
    bad = Norms([torch.ones(2), torch.tensor([float("inf")]), torch.tensor([float("nan")])])
    assert [int(one) for one in bad.nonfinite()] == [2, 1]
    assert float(Norms([torch.ones(2), torch.ones(7)]).total_squared) == pytest.approx(9.0)


def test_norms_of_several_devices_are_put_together_where_reading_is_not_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trackside.pytorch.norms.is_here", lambda one: one.device.type == "cpu")
    norms = Norms([torch.ones(2), torch.ones(3, device="meta"), torch.ones(4)])
    assert norms.each is None
    assert norms.total.device.type == "meta"


class Event:
    """One of a GPU of ours; *places* has where each was recorded."""

    places: ClassVar[list[Any]] = []

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, place: Any) -> None:
        self.places.append(place)

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Event) -> float:
        return 1e6


class Still(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer that changes nothing."""

    def step(self, closure: None = None) -> None:
        pass


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> tuple[Stream, Any, torch.optim.Optimizer]:
    """A GPU, and a model on it with gradients and an optimizer."""
    stream = Stream()
    monkeypatch.setattr("trackside.device_scalars.Cuda", lambda: stream)
    monkeypatch.setattr("trackside.pytorch.norms.is_here", lambda _: False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", str)
    monkeypatch.setattr(Event, "places", [])
    model = nn.Linear(4, 1)
    for name, one in list(model.named_parameters()):
        setattr(model, name, nn.Parameter(one.detach().as_subclass(OnDevice)))
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    return stream, model, Still(model.parameters(), {})


def test_on_a_gpu_each_kind_of_measurement_has_its_pace_by_events_on_the_model_s_own(
    run: trackside.Run, on_gpu: tuple[Stream, Any, torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model, optimizer = on_gpu
    budgets: list[OverheadBudget] = []
    monkeypatch.setattr(
        "trackside.pytorch.watcher.OverheadBudget",
        lambda share: budgets.append(OverheadBudget(share)) or budgets[-1],  # type: ignore[func-returns-value]
    )
    run.watch(model, optimizer)
    for _ in range(3):
        optimizer.step()
    assert [budget.every for budget in budgets] == [1024, 1024]
    assert set(Event.places) == {"cpu"}  # where the model is


def test_layers_leave_room_for_the_user_s_values_where_a_gpu_is_far_behind(
    run: trackside.Run,
    on_gpu: tuple[Stream, Any, torch.optim.Optimizer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream, model, optimizer = on_gpu
    own = {f"value/{number}": on_device(1.0) for number in range(SLOTS // 4 - 20)}
    run.watch(model, optimizer, layers=["weight", "bias"])
    for step in range(4):
        optimizer.step()
        run.push(own, step=step, loss=on_device(2.0))
    assert not caplog.messages
    stream.advance()
    rows, _ = unsent_rows(run)
    assert ["loss" in row for _, row in rows] == [True] * 4
    assert ["grad_norm/weight" in row for _, row in rows] == [True, True, True, False]


@pytest.mark.parametrize("skips", [0.0, 1.0, None])
def test_the_last_values_of_a_gpu_are_sent_at_the_end_and_none_of_a_step_that_the_scaler_skips(
    run: trackside.Run, on_gpu: tuple[Stream, Any, torch.optim.Optimizer], skips: float | None
) -> None:
    stream, model, optimizer = on_gpu
    run.watch(model, optimizer)
    model.bias.grad = torch.full_like(model.bias, float("inf"))
    optimizer.found_inf = None if skips is None else on_device(skips)
    optimizer.step()
    run.push(step=3, loss=on_device(2.0))
    stream.advance()
    rows, _ = unsent_rows(run)
    (row,) = [row for _, row in rows if row]
    gradients = set() if skips else {"grad_norm"}
    assert set(row) == {"loss", "param_norm", "update_ratio"} | gradients
    assert [fields["layer"] for _, fields in bad_gradients(run)] == ([] if skips else ["bias"])


def test_a_weight_of_a_sample_counts_for_all_that_it_stands_for() -> None:
    large, small = torch.ones(16 * SAMPLED), torch.ones(100)
    roots: dict[Any, Any] = {}
    before = WeightSample.read([large, small], roots)
    after = WeightSample.read([1.5 * large, small], roots)
    assert before.update_ratio(after) == pytest.approx(0.5 * sqrt(16 * SAMPLED / (16 * SAMPLED + 100)), rel=1e-3)


def test_gradients_that_are_sums_not_yet_made_are_not_sent(
    run: trackside.Run, caplog: pytest.LogCaptureFixture
) -> None:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Module()
    model.scale = nn.Parameter(DTensor.from_local(torch.ones(4), mesh, (Replicate(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watcher = run.watch(model, optimizer)
    for step in range(2):
        model.scale.grad = DTensor.from_local(torch.ones(4), mesh, (Partial(),))
        optimizer.step()
        run.push(step=step, loss=1.0)
    distributed.destroy_process_group()
    assert watcher.measures_for(run.queue)
    assert next(set(row) for _, row in unsent_rows(run)[0]) == {"loss", "param_norm", "update_ratio"}
    assert caplog.text.count("gradients are not measured: scale is") == 1


def test_the_users_own_norm_of_what_is_sharded_counts_too(
    run: trackside.Run, pace: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pace()
    monkeypatch.setattr(
        "trackside.pytorch.watcher.Parameters",
        lambda *given: vars(found := Parameters(*given)).update(sharded=True) or found,
    )
    model, optimizer = trainable()
    run.watch(model, optimizer)
    for step in range(2):
        backward(model)
        optimizer.step()
        run.push(step=step, grad_norm=1.0)
    first, second = (set(row) for _, row in unsent_rows(run)[0])
    assert "grad_norm_local_squared" in first - second


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
        counted.append([name for name, _ in parameters.trained()])
        assert parameters.sharded
        del model.shards, model.plain
        run = trackside.init(endpoint=nowhere)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run.watch(model, optimizer)
        model.grouped.grad = model.grouped.detach().clone()
        optimizer.step()
        run.push(loss=1.0)
        ((_, row),) = unsent_rows(run)[0]
        assert row["grad_norm_local_squared"] == (4.0 if rank < 2 else 0.0)
    distributed.destroy_process_group()
    assert counted == [["shards", "grouped", "plain"], ["shards", "grouped"], ["shards"], ["shards"]]


def test_halves_are_summed_as_floats_and_sparse_gradients_are_read() -> None:
    halves = [torch.full((100,), 3e4, dtype=torch.float16), torch.ones(9, dtype=torch.float64)]
    assert Norms(halves).total == pytest.approx(sqrt(100 * 9e8 + 9), rel=1e-3)
    table = nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 1, 2])).sum().backward()
    assert Norms([local_values(table.weight.grad)]).total == pytest.approx(sqrt(4 * 4 + 4), rel=FLOAT)
    assert isnan(Norms([torch.tensor([float("nan")]), torch.tensor([float("inf")])]).total)


def test_samples_of_weights_see_every_column_and_layers_are_not_too_many() -> None:
    weights = torch.arange(64 * 96).reshape(64, 96)
    assert {int(one) % 96 for one in strided_sample(weights, 1000)} == set(range(96))
    assert len(strided_sample(weights, 1000)) <= 1000
    assert strided_sample(weights.t(), 10**6).sort().values.equal(weights.reshape(-1))
    deep = nn.Sequential(*(nn.Sequential(*(nn.Linear(1, 1) for _ in range(4))) for _ in range(LAYERS // 2)))
    layers = Parameters(deep, 0).layers(None)
    assert [name for name, _ in layers] == [str(number) for number in range(LAYERS // 2)]
    assert {len(names) for _, names in layers} == {8}
