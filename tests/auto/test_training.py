"""Steps and losses as real PyTorch loops make them, each seen by the watch alone."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from client.router import marks, undrained
from client.torch_state import count_graphs_anew, graphs, hooks_after_any_step, module_hooks, step_hooks
from client_process import client_process
from torch import distributed, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import trackside
from trackside.auto import pytorch, training
from trackside.auto.hooks import hooks
from trackside.auto.method_wrapping import replace_methods
from trackside.auto.run import Direct
from trackside.auto.startup.trackside_patched_methods import PATCHED_METHODS
from trackside.pytorch.overhead_budget import StepSampler
from trackside.row_queue import RowQueue
from trackside.totals import loader_workers
from trackside.transport.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Found:
    """In place of the process's run and its rows: the values of each step, of this run and those before."""

    step = 0

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.ended: list[list[dict[str, Any]]] = []
        self.queue: Any = SimpleNamespace(session=SimpleNamespace(rows=None), thread=0)

    @property
    def runs(self) -> list[list[dict[str, Any]]]:
        return [*self.ended, self.steps]

    @property
    def is_new(self) -> bool:
        return not self.steps

    @property
    def has_steps(self) -> bool:
        return bool(self.steps)

    @property
    def direct(self) -> Direct | None:
        queue: Any = SimpleNamespace(is_open=True, is_led=False)
        return Direct(self, tuple(self.steps[-1]), queue, SimpleNamespace(queue=queue)) if self.steps else None  # type: ignore[arg-type]

    def __len__(self) -> int:
        return 0

    def append(self, row: tuple[int, int, dict[str, Any]]) -> None:
        self.steps.append(row[2])

    def begin_next(self) -> bool:
        self.ended.append(self.steps)
        self.steps = []
        return True

    def found_before(self, steps: list[tuple[int, dict[str, Any]]]) -> None:
        self.steps += [values for _, values in steps]

    def found(self, values: dict[str, Any]) -> Any:
        self.steps.append(values)
        return self.queue if isinstance(self.queue, RowQueue) else None

    def found_in_step(self, values: dict[str, Any]) -> None:
        self.steps[-1].update(values)

    def column(self, key: str) -> list[Any]:
        return [step.get(key) for step in self.steps]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[Found]:
    """The hooks in this process, for one test."""
    made = Found()
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    owners: list[tuple[Any, str]] = [(torch.autograd, "backward"), (iterator, "__next__")]
    owners += [(torch.utils.data.dataloader._MultiProcessingDataLoaderIter, "__init__")]
    owners += [(torch, "save"), (torch.serialization, "save")]
    owners += [(torch.amp.GradScaler, name) for name in ("scale", "step")]
    for owner, name in owners:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(training, "auto_run", lambda: made)
    monkeypatch.setattr(pytorch, "watches", [])
    after_steps = hooks_after_any_step()
    before = dict(after_steps)
    hooks.clear()
    replace_methods("torch", PATCHED_METHODS["torch"])
    yield made
    assert all(hook.is_on for hook in hooks.values())
    after_steps.clear()
    after_steps.update(before)
    hooks.clear()


def test_a_loaders_workers_are_values_of_a_step_about_once_a_second(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_workers, "EVERY", 0)
    model, optimizer = trainable()
    for inputs, targets in DataLoader(batches(6).dataset, batch_size=4, num_workers=2):
        mse_loss(model(inputs), targets).backward()
        optimizer.step()
    keys = ["data/workers", "data/batches_ready", "data/transform_seconds", "data/transform_cpu_seconds"]
    assert found.column("data/workers") == [2.0] * 6
    assert all(sum(value is not None for value in found.column(key)) >= 1 for key in keys)
    assert max(found.column("data/batches_ready")) <= 4
    for inputs, targets in batches(2):
        mse_loss(model(inputs), targets).backward()
        optimizer.step()
    assert found.column("data/workers")[6:] == [None, None], "a loader without workers"


def trainable() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and its optimizer."""
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def batches(count: int, size: int = 4) -> DataLoader[Any]:
    torch.manual_seed(0)
    inputs = torch.randn(count * size, 3)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=size)


def test_each_step_has_its_loss_rate_and_samples(found: Found) -> None:
    model, optimizer = trainable()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    losses = []
    for inputs, targets in batches(3):
        loss = mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    assert found.column("loss") == losses
    assert found.column("learning_rate") == [0.1, 0.05, 0.025]
    assert found.column("samples") == [4, 4, 4]


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("way", ["divide", "multiply"])
def test_of_accumulated_batches_the_last_loss_counts_undivided(found: Found, way: str, *, divides: bool) -> None:
    model, optimizer = trainable()
    losses = []
    for number, (inputs, targets) in enumerate(batches(10), 1):  # of the last step, only two of four are there
        loss = mse_loss(model(inputs), targets)
        losses.append(loss.item())
        if divides:
            loss = loss / 4 if way == "divide" else loss * 0.25
        loss.backward()
        if number % 4 == 0 or number == 10:
            optimizer.step()
            optimizer.zero_grad()
    assert found.column("loss") == pytest.approx([losses[3], losses[7], losses[9]])
    assert found.column("samples") == [16, 16, 8]


def test_a_division_that_belongs_to_the_loss_stays(found: Found) -> None:
    model, optimizer = trainable()
    for inputs, targets in batches(2):
        loss = (model(inputs) - targets).square().sum() / 4
        loss.backward()
        optimizer.step()
        assert found.steps[-1]["loss"] == loss.item()


def test_a_gradient_scaler_changes_neither_loss_nor_steps(found: Found) -> None:
    model, optimizer = trainable()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)  # the first steps overflow
    losses: list[float] = []
    stepped: list[int] = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(len(losses)))
    for inputs, targets in batches(6):
        loss = mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        losses.append(loss.item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert found.column("loss") == losses
    assert 0 < len(stepped) < len(losses)


def test_each_optimizer_of_a_gan_has_its_own_loss_and_the_first_one_s_losses_are_summed(found: Found) -> None:
    first, second = nn.Linear(3, 1), nn.Linear(3, 1)
    one, other = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second))
    sums, others = [], []
    for inputs, targets in batches(3):
        parts = [mse_loss(first(inputs), targets), first(inputs).square().mean()]
        for part in parts:
            part.backward()
        one.step()
        loss = mse_loss(second(inputs), targets)
        loss.backward()
        other.step()
        sums.append(sum(part.item() for part in parts))
        others.append(loss.item())
    assert found.column("loss") == pytest.approx(sums)
    assert found.column("loss/2") == others


def test_optimizers_are_numbered_as_they_step_also_if_the_third_shares_models_with_the_others(found: Found) -> None:
    made, read = nn.Linear(3, 3), nn.Linear(3, 1)
    parts = [made.parameters(), read.parameters(), [*made.parameters(), *read.parameters()]]
    optimizers = [torch.optim.SGD(part, lr=0.1) for part in parts]  # as of an InfoGAN
    expected: list[list[float]] = [[], [], []]
    for inputs, targets in batches(4):
        for optimizer, losses in zip(optimizers, expected, strict=True):
            loss = mse_loss(read(made(inputs)), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert [found.column(key) for key in ("loss", "loss/2", "loss/3")] == expected


def test_two_optimizers_of_one_loss_make_one_step(found: Found) -> None:
    model = nn.Linear(3, 1)
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
    for inputs, targets in batches(2):
        mse_loss(model(inputs), targets).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert len(found.steps) == 2


def test_an_optimizer_that_stops_leaves_the_steps_to_the_next(found: Found) -> None:
    model = nn.Linear(3, 1)
    first, second = (torch.optim.SGD(model.parameters(), lr=rate) for rate in (0.1, 0.01))
    for number, (inputs, targets) in enumerate(batches(24)):
        mse_loss(model(inputs), targets).backward()
        (first if number < 4 else second).step()
    assert found.column("learning_rate").count(0.01) == 20 - training.OTHERS
    assert first is not second


def trains(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Train, and return the losses."""
    losses = []
    for inputs, targets in batches(steps):
        loss = mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("keeps", [True, False], ids=["all models are kept", "each is freed"])
@pytest.mark.parametrize("steps", [8, 20])
def test_trainings_that_follow_each_other_are_runs(found: Found, steps: int, *, keeps: bool) -> None:
    kept, expected = [], []
    for seed in range(4):
        torch.manual_seed(seed)
        made = trainable()
        expected.append(trains(*made, steps))
        kept.append(made if keeps else None)
    del made
    assert [[step["loss"] for step in run] for run in found.runs] == expected
    assert {step["samples"] for run in found.runs for step in run} == {4}


def test_models_that_were_all_made_before_the_first_step_follow_each_other(found: Found) -> None:
    expected = [trains(*made, 20) for made in [trainable() for _ in range(3)]]
    assert [[step["loss"] for step in run] for run in found.runs] == expected


def test_copies_of_one_model_are_trained_one_after_the_other(found: Found) -> None:
    base, folds = nn.Linear(3, 1), 5
    for _ in range(folds):
        model = deepcopy(base)
        trains(model, torch.optim.SGD(model.parameters(), lr=0.1), 6)
    assert [len(run) for run in found.runs] == [6] * folds


def test_a_short_training_that_another_follows_is_a_run(found: Found) -> None:
    kept = [trainable() for _ in range(1)]
    trains(*kept[0], 12)
    for _ in range(3):
        kept.append(trainable())
        trains(*kept[-1], 2)
    pytorch.watches[0]._settle()  # as at the end of the process
    assert [len(run) for run in found.runs] == [12, 2, 2, 2]


@pytest.mark.parametrize("critics", [1, 5], ids=["in turn", "five steps of the critic"])
@pytest.mark.parametrize("later", [False, True], ids=["made before", "the second made later"])
def test_optimizers_that_take_turns_are_one_run(found: Found, critics: int, *, later: bool) -> None:
    one, first = trainable()
    other, second = trainable()
    if later:
        trains(one, first, critics)
        other, second = trainable()
    for _ in range(6):
        trains(one, first, critics)
        trains(other, second, 1)
    assert len(found.runs) == 1
    assert len(found.steps) == critics * (6 + later)
    assert [step["loss/2"] for step in found.steps if "loss/2" in step]


@pytest.mark.parametrize("critics", [1, 5])
def test_two_gans_one_after_the_other_are_two_runs(found: Found, critics: int) -> None:
    kept: list[Any] = []
    expected: list[Any] = []
    for _ in range(2):
        (critic, first), (made, second) = trainable(), trainable()
        kept.append((critic, made))
        expected.append([])
        for _ in range(8):
            expected[-1] += trains(critic, first, critics)
            trains(made, second, 1)
    assert [[step["loss"] for step in run if "loss" in step] for run in found.runs] == expected
    assert all(sum("loss/2" in step for step in run) >= 5 for run in found.runs)


def test_a_second_training_of_which_one_optimizer_stops_is_a_run_of_its_own(found: Found) -> None:
    trains(*trainable(), 12)
    (warmed, first), (model, second) = trainable(), trainable()
    trains(warmed, first, 1)
    trains(model, second, 40)
    assert len(found.runs) == 3
    assert sum(len(run) for run in found.runs[1:]) >= 30
    del warmed


def test_an_optimizer_at_the_address_of_one_that_has_gone_is_another(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "id", lambda _: 1, raising=False)
    trains(*trainable(), 12)
    trains(*trainable(), 12)
    assert [len(run) for run in found.runs] == [12, 12]


@pytest.mark.parametrize("steps", [4, 40])
def test_a_second_phase_of_fine_tuning_is_the_same_run(found: Found, steps: int) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    trains(model, torch.optim.SGD(model[1].parameters(), lr=0.1), 12)  # the head alone
    trains(model, torch.optim.SGD(model[0].parameters(), lr=0.1), steps)
    assert len(found.runs) == 1
    assert max(step.get("samples", 0) for step in found.steps) == 4


def test_what_is_optimized_within_a_step_is_no_run(found: Found) -> None:
    model, optimizer = trainable()
    for inputs, targets in batches(4):
        change = torch.zeros_like(inputs, requires_grad=True)
        attack = torch.optim.SGD([change], lr=0.1)
        for _ in range(5):
            (-mse_loss(model(inputs + change), targets)).backward()
            attack.step()
        trains(model, optimizer, 1)
        del targets
    assert len(found.runs) == 1


def test_trainings_that_take_turns_later_are_separated_no_longer(found: Found) -> None:
    made = [trainable() for _ in range(2)]
    for _ in range(5):
        for one in made:
            trains(*one, 30)
    assert len(found.runs) == 2


def test_a_copy_with_averaged_weights_changes_nothing(found: Found) -> None:
    model, optimizer = trainable()
    mean = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(3):
        trains(model, optimizer, 4)
        mean.update_parameters(model)
    assert [len(run) for run in found.runs] == [12]


def test_a_closure_s_first_loss_counts(found: Found) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    [(inputs, targets)] = batches(1)
    losses = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        losses.append(loss.item())
        return loss

    optimizer.step(closure)
    assert len(losses) > 1
    assert found.column("loss") == losses[:1]


def test_batches_of_an_evaluation_are_no_samples_also_with_gradients(found: Found) -> None:
    model, optimizer = trainable()
    for _ in range(2):
        for inputs, targets in batches(2):
            mse_loss(model(inputs), targets).backward()
            optimizer.step()
        for inputs, _ in batches(3, size=5):
            model(inputs)
        with torch.no_grad():
            for inputs, _ in batches(3, size=5):
                model(inputs)
    assert found.column("samples") == [4] * 4


def trained(loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for inputs, targets in loader:
        mse_loss(model(inputs), targets).backward()
        optimizer.step()


def evaluated(loader: Any, model: nn.Module, *, least: int = 99) -> None:
    for number, (inputs, _) in enumerate(loader, 1):
        with torch.no_grad():
            model(inputs)
        if number == least:
            break


def ahead(loader: Any) -> Iterator[Any]:
    """Yield batches, each after the next one was fetched, as Accelerate does."""
    batches = iter(loader)
    current = next(batches)
    for following in batches:
        yield current
        current = following
    yield current


def test_an_evaluation_with_gradients_off_within_its_loop_is_one(timed: trackside.Run) -> None:
    (model, optimizer), train, other = trainable(), batches(3), batches(4)
    evaluated(other, model)  # as a check before the first step
    for _ in range(3):
        trained(train, model, optimizer)
        evaluated(other, model)
    trained(train, model, optimizer)
    evaluated(other, model, least=2)
    assert evaluations(timed) == ["+eval", "-eval"] * 3 + ["+eval"]
    trained(train, model, optimizer)
    assert evaluations(timed) == ["-eval"]
    evaluated(batches(1), model)
    assert evaluations(timed) == ["+eval", "-eval"], "of one batch"


def test_an_evaluation_on_the_samples_of_the_training_is_found_too(timed: trackside.Run) -> None:
    (model, optimizer), train = trainable(), batches(9)
    for _ in range(2):
        trained(train, model, optimizer)
        evaluated(train, model)
    trained(train, model, optimizer)
    assert evaluations(timed) == ["+eval", "-eval"] * 2


def test_trainings_on_other_samples_are_no_evaluations(timed: trackside.Run) -> None:
    folds = [(trainable(), batches(4)) for _ in range(4)]
    trained(folds[0][1], *folds[0][0])
    trained(folds[1][1], *folds[1][0])
    assert evaluations(timed) == ["+eval", "-eval"], "until its first backward pass"
    for made, batches_of_it in folds[2:] * 2:
        trained(batches_of_it, *made)
    assert evaluations(timed) == []


def test_batches_that_are_fetched_ahead_accumulated_or_mixed_are_trained_on(timed: trackside.Run) -> None:
    (model, optimizer), train, other = trainable(), batches(6), batches(6)
    for _ in range(2):
        for (inputs, targets), (others, _) in zip(train, other, strict=True):
            (mse_loss(model(inputs), targets) + model(others).mean()).backward()
            optimizer.step()
    for _ in range(2):
        trained(ahead(train), model, optimizer)
        for number, (inputs, targets) in enumerate(train):
            mse_loss(model(inputs), targets).backward()
            if number % 3 == 2:
                optimizer.step()
    assert evaluations(timed) == []


def evaluations(run: trackside.Run) -> list[str]:
    """Return the beginnings and ends of evaluations since the last call."""
    return [word for word in marks(run) if word.endswith("eval")]


def test_a_batch_is_prepared_from_its_arrival_to_the_call_of_the_model(timed: trackside.Run) -> None:
    (model, optimizer), train = trainable(), batches(3)
    trained(train, model, optimizer)
    marks(timed)
    for inputs, targets in train:
        mse_loss(model(inputs), targets).backward()
        optimizer.step()
        words = [word for word in marks(timed) if not word.endswith("data")]
        assert words == ["+prepare", "-prepare", *STAGES]
    marks(timed)
    evaluated(batches(3), model)
    assert [word for word in marks(timed) if word.endswith("prepare")] == []
    for inputs, targets in train:  # by a way that no hook sees
        mse_loss(torch.nn.functional.linear(inputs, model.weight, model.bias), targets).backward()
        optimizer.step()
    assert [word for word in marks(timed) if word.endswith("prepare")] == ["+prepare", "-prepare"], "before it is known"


def test_tokens_are_those_of_input_ids(found: Found) -> None:
    model = nn.Embedding(9, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = [{"input_ids": torch.arange(7), "labels": torch.tensor(1.0)} for _ in range(4)]
    for batch in DataLoader(rows, batch_size=2):
        model(batch["input_ids"]).mean().backward()
        optimizer.step()
    assert found.column("tokens") == [14, 14]
    assert found.column("samples") == [2, 2]


def test_what_is_not_a_scalar_is_no_loss_and_several_of_one_call_are_summed(found: Found) -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    (parameter * 2).backward(torch.ones(2))
    optimizer.step()
    losses = [(parameter * 3).sum(), (parameter * 4).sum()]
    torch.autograd.backward(losses)
    optimizer.step()
    assert found.column("loss") == [None, losses[0].item() + losses[1].item()]


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_compiled_code_has_the_same_graphs_and_its_steps_are_found(found: Found) -> None:
    def train() -> tuple[object, ...]:
        count_graphs_anew()
        parameter = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1)

        def step() -> None:
            (parameter * 2).sum().backward()
            optimizer.step()

        compiled = torch.compile(step, backend="eager")
        for _ in range(3):
            compiled()
        return graphs(), parameter.tolist()

    replace_methods("torch._dynamo.trace_rules", PATCHED_METHODS["torch._dynamo.trace_rules"])
    watched = train()
    assert len(found.steps) == 3
    torch.autograd.backward = torch.autograd.backward.__wrapped__
    hooks_after_any_step().clear()
    assert watched == train()
    assert len(found.steps) == 3


class Nested(torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # mypy does not look into PyTorch
    """A dataset whose items come from a loader of its own, in the worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(len(batches(2))), float(len(pytorch.watches[0]._rows or ()))])


def test_a_loader_s_worker_stores_no_rows(found: Found) -> None:
    watch = pytorch.watches[0]
    watch._rows = deque([(0, 1, {})] * 3)
    rows = [batch.tolist() for batch in DataLoader(Nested(), num_workers=1, multiprocessing_context="fork")]
    assert rows == [[[2.0, 0.0]]] * 4


STAGES = ["+forward", "-forward", "+backward", "-backward", "+optimizer", "-optimizer"]
X = torch.ones(4, 3)


@pytest.fixture
def timed(found: Found, place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[trackside.Run]:
    """A run that sends nothing; each step of its training is timed."""
    monkeypatch.setattr(StepSampler, "step_finished", lambda *_: True)
    with client_process():
        run = trackside.init(endpoint=f"ipc://{place}/nobody.sock")
        found.queue = run.queue
        with undrained(run):
            yield run


def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    mse_loss(model(X), X[:, :1]).backward()
    optimizer.step()


class Agent(nn.Module):  # type: ignore[misc]  # mypy does not look into PyTorch
    """Two networks of one optimizer, each of which the training calls."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
        self.critic = nn.Linear(2, 1)


def test_the_stages_of_the_steps_after_the_first_are_phases(timed: trackside.Run) -> None:
    other, _ = trainable()
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    assert marks(timed) == []
    for _ in range(2):
        step(model, optimizer)
        assert marks(timed) == STAGES
    model.eval()
    with torch.no_grad():
        model(X)
    assert marks(timed) == []
    assert (len(module_hooks(model)), len(module_hooks(other, *model))) == (2, 0)
    pytorch.pause(on=True)
    assert (module_hooks(model), step_hooks(optimizer)) == ([], [])


def test_of_modules_that_only_hold_others_the_parts_are_timed(timed: trackside.Run) -> None:
    count_graphs_anew()
    agent = Agent()
    optimizer = torch.optim.SGD(agent.parameters(), lr=0.1)
    words = []
    for _ in range(3):
        step(lambda x: agent.critic(agent.actor(x)), optimizer)
        words.append(marks(timed))
    assert words == [[], STAGES[2:], ["+forward", "-forward", *STAGES]]


def test_collectives_of_the_training_and_the_end_of_a_backward_of_ddp_are_waits(
    timed: trackside.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    replaced = "torch.distributed.distributed_c10d"
    monkeypatch.setattr(distributed.distributed_c10d.Work, "wait", distributed.distributed_c10d.Work.wait)
    replace_methods(replaced, PATCHED_METHODS[replaced])
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            step(model, optimizer)
        assert marks(timed) == [*STAGES[:3], "+sync", "-sync", *STAGES[3:]]
        distributed.all_reduce(torch.ones(1))
        distributed.all_reduce(torch.ones(1), async_op=True).wait()
        assert marks(timed) == ["+sync", "-sync"] * 2
    finally:
        distributed.destroy_process_group()


def test_a_training_that_watches_its_model_is_timed_once(timed: trackside.Run) -> None:
    model, optimizer = trainable()
    step(model, optimizer)
    timed.watch(nn.Linear(1, 1))
    step(model, optimizer)
    assert (marks(timed), module_hooks(model)) == ([], [])
    first, first_optimizer = trainable()
    timed.watch(first, first_optimizer)
    for _ in range(3):
        step(first, first_optimizer)
    assert marks(timed) == STAGES * 3


def test_a_training_that_marks_its_stages_is_not_timed(timed: trackside.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = trainable()
    step(model, optimizer)
    monkeypatch.setattr(Session, "has_own_phases", True)
    for _ in range(2):
        step(model, optimizer)
    marks(timed)
    step(model, optimizer)
    assert (marks(timed), module_hooks(model)) == ([], [])


def test_what_cannot_be_timed_costs_itself_alone(timed: trackside.Run, found: Found) -> None:
    class Unhookable(nn.Linear):  # type: ignore[misc]  # the same
        def register_forward_pre_hook(self, *_: object, **__: object) -> Any:
            raise RuntimeError("takes no hooks")

    model = Unhookable(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        step(model, optimizer)
    assert len([loss for loss in found.column("loss") if loss is not None]) == 3
    assert not hooks.pop("torch: stages of a step").is_on


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
@pytest.mark.parametrize(
    "how",
    [
        "outer",
        "a function",
        *(pytest.param(how, marks=[pytest.mark.only_soak]) for how in ("in place", "a function, later")),
    ],
)
def test_compiled_models_have_the_same_graphs_with_stages(timed: trackside.Run, found: Found, how: str) -> None:
    def train() -> tuple[Any, ...]:
        count_graphs_anew()
        torch.manual_seed(0)
        model = called = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        if how == "outer":
            called = torch.compile(model, backend="aot_eager")
        elif how == "in place":
            model.compile(backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if how == "a function, later":
            step(model, optimizer)
        if how.startswith("a function"):
            called = torch.compile(lambda x: model(x) * 1, backend="aot_eager", fullgraph=True)
        for _ in range(4):
            step(called, optimizer)
        return graphs(), [one.tolist() for one in model.parameters()]

    replace_methods("torch._dynamo.trace_rules", PATCHED_METHODS["torch._dynamo.trace_rules"])
    watched = train()
    words = marks(timed)
    found.queue = None
    assert watched == train()
    assert watched[0][0] == {}
    assert words.count("+backward") == words.count("+optimizer") >= 3
    assert words.count("+forward") == (0 if how.startswith("a function") else 3)
