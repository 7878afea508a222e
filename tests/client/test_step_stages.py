"""The stages of a step of a watched model: their beginning and end, their time on a GPU, and its utilization."""

from __future__ import annotations

import copy
import dataclasses
import gc
import logging
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from client.gpu import Gpu
from client.router import marks, undrained, unsent_rows
from client.torch_state import count_graphs_anew, graphs, module_hooks, step_hooks
from torch.utils.checkpoint import checkpoint

import trackside
from trackside.auto.models import Models
from trackside.auto.stages import AutoStages
from trackside.pytorch import step_stages as stages_module
from trackside.pytorch.cuda_timer import CudaDevices
from trackside.pytorch.overhead_budget import StepSampler
from trackside.pytorch.step_stages import StepStages
from trackside.wire import Device, Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEP = ["+forward", "-forward", "+backward", "-backward", "+optimizer", "-optimizer"]
X = torch.ones(2, 4)


class Network(torch.nn.Module):  # type: ignore[misc]
    """A network of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(torch.relu(self.first(x)))


class QueuedRows:
    """A run that sends nothing, and the rows in its queue.

    Attributes:
        gpu: The GPU of the watched models.
    """

    def __init__(self, run: trackside.Run, **limits: int) -> None:
        self.run = run
        self.gpu = Gpu()
        self._limits = limits

    def watch(self, model: Any, optimizer: Any = None) -> Any:
        stages = StepStages(self.run.queue, model, optimizer, self.gpu, **self._limits)
        self.run.queue.register(stages)
        if optimizer is not None:
            optimizer.register_step_post_hook(lambda *_: stages.optimizer_stepped())
        return model

    def words(self) -> list[str]:
        """Return the marks since the last call."""
        return marks(self.run)

    def work(self) -> list[Device]:
        """Return the GPU rows since the last call; drop the others."""
        rows = self.run.queue.session.rows
        taken = [rows.popleft()[1] for _ in range(len(rows))]
        return [work for work in taken if isinstance(work, Device)]


def stages_of(run: trackside.Run) -> list[StepStages]:
    return [timer for timer in run.queue.timers if isinstance(timer, StepStages)]


@pytest.fixture
def queued(run: trackside.Run, request: pytest.FixtureRequest) -> Iterator[QueuedRows]:
    """A run whose models are watched with the limits of the parameter."""
    with undrained(run):
        yield QueuedRows(run, **getattr(request, "param", {}))


# Where the stages are, as a training goes


def accumulates(model: Any, optimizer: Any) -> None:
    for _ in range(2):
        model(X).sum().backward()
    optimizer.step()


def has_two_losses(model: Any, optimizer: Any) -> None:
    out = model(X)
    out.sum().backward(retain_graph=True)
    out.mean().backward()
    optimizer.step()


def is_called_twice_for_one_loss(model: Any, optimizer: Any) -> None:
    (model(X) + model(-X)).sum().backward()
    optimizer.step()


def has_a_penalty(model: Any, optimizer: Any) -> None:
    inner = X.clone().requires_grad_()
    loss = model(inner).sum()
    (grad,) = torch.autograd.grad(loss, inner, create_graph=True)
    (loss + grad.square().sum()).backward()


def evaluates(model: Any, optimizer: Any) -> None:
    model.eval()
    with torch.no_grad():
        model(X)
    with torch.inference_mode():
        model(X)
    model.train()


def searches_along_a_line(model: Any, optimizer: Any) -> None:
    def closure() -> torch.Tensor:
        loss = model(X).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def calls_in_another_thread(model: Any, optimizer: Any) -> None:
    thread = threading.Thread(target=lambda: model(X))
    thread.start()
    thread.join()


def recomputes_all_of_it(model: Any, optimizer: Any) -> None:
    out = checkpoint(model, X.clone().requires_grad_(), use_reentrant=False)
    out.sum().backward()


FORWARD, BACKWARD, OPTIMIZER = STEP[:2], STEP[2:4], STEP[4:]


@pytest.mark.parametrize(
    ("training", "words"),
    [
        (accumulates, [*FORWARD, *BACKWARD, *FORWARD, *BACKWARD, *OPTIMIZER]),
        (has_two_losses, [*FORWARD, *BACKWARD, *BACKWARD, *OPTIMIZER]),
        (is_called_twice_for_one_loss, [*FORWARD, *FORWARD, *BACKWARD, *OPTIMIZER]),
        (has_a_penalty, [*FORWARD, *BACKWARD, *BACKWARD]),
        (evaluates, []),
        (searches_along_a_line, [OPTIMIZER[0], *FORWARD, *BACKWARD, OPTIMIZER[1]]),
        (calls_in_another_thread, []),
        (recomputes_all_of_it, [*FORWARD, *BACKWARD]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_stages_of_a_training_that(queued: QueuedRows, training: Callable[..., None], words: list[str]) -> None:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    queued.watch(model, optimizer)
    for _ in range(2):
        training(model, optimizer)
        assert queued.words() == words


@dataclasses.dataclass
class Output:
    """A model output, as in transformers: a loss and states."""

    loss: torch.Tensor
    states: tuple[torch.Tensor, ...] = ()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda out: {"loss": out.sum(), "logits": out},
        lambda out: (None, [{"loss": out.sum()}, "text", 3]),
        lambda out: Output(out.sum(), (out, out)),
    ],
    ids=["dict", "nested", "dataclass"],
)
def test_a_backward_is_seen_from_whatever_the_model_returns(
    queued: QueuedRows, wrap: Callable[[torch.Tensor], Any]
) -> None:
    class Model(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            return wrap(super().forward(x))

    out = queued.watch(Model(4, 1))(X)
    loss = out["loss"] if isinstance(out, dict) else out.loss if isinstance(out, Output) else out[1][0]["loss"]
    loss.backward()
    assert queued.words() == [*FORWARD, *BACKWARD]


def test_a_model_that_calls_itself_has_one_forward_and_one_that_generates_has_none(queued: QueuedRows) -> None:
    class Tree(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, depth: int = 2) -> Any:
            return self(super().forward(x), depth - 1) if depth else x

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def generate(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = self(x)
            return x

    model = queued.watch(Tree(4, 4))
    model(X).sum().backward()
    model.generate(X)
    assert queued.words() == [*FORWARD, *BACKWARD]


class Fails(torch.autograd.Function):  # type: ignore[misc]
    """A function whose backward fails."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(*_: object) -> torch.Tensor:
        raise RuntimeError("out of memory")


class Failing(torch.nn.Linear):  # type: ignore[misc]
    """A layer that fails in a given stage.

    Attributes:
        at: ``"backward"`` to fail there, or an exception to raise in a forward.
    """

    at: object = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.at, type) and issubclass(self.at, BaseException):
            raise self.at("bad")
        out = super().forward(Fails.apply(x) if self.at == "backward" else x)
        assert isinstance(out, torch.Tensor)
        return out


def test_stages_that_fail_end_and_the_next_step_is_as_any(queued: QueuedRows) -> None:
    model = Failing(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    queued.watch(model, optimizer)
    x = X.clone().requires_grad_()

    def step() -> None:
        try:
            model(x).sum().backward()
        except (ValueError, RuntimeError, KeyboardInterrupt):
            model.at = None
        else:
            optimizer.step()

    model.at = ValueError
    step()
    assert queued.words() == FORWARD
    for model.at in ("backward", "backward"):
        step()
    assert queued.words() == [*FORWARD, "+backward", "-backward", *FORWARD, "+backward"]
    queued.run.push(loss=1.0)
    assert queued.words() == ["-backward"]
    model.at = KeyboardInterrupt
    step()
    step()
    assert queued.words() == [*FORWARD, *OPTIMIZER]  # from Ctrl-C on until the optimizer's next
    step()
    assert queued.words() == STEP
    queued.gpu.now = 1.0
    assert queued.work() == []


def test_a_backward_lasts_until_what_others_have_it_do_at_its_end_and_a_wait_for_peers_is_apart(
    queued: QueuedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    model = queued.watch(Network())

    def wait_for_peers(_: object) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: queued.run.phase("peers").__enter__())

    next(model.parameters()).register_hook(wait_for_peers)
    model(X).sum().backward()
    assert queued.words() == [*FORWARD, "+backward", "+sync", "+peers", "-sync", "-backward"]


@pytest.mark.parametrize("how", ["", "outer", "in place", "watched before"])
def test_in_steps_that_are_not_timed_no_hook_is_there_but_in_a_graph_and_graphs_are_as_in_an_unwatched_model(
    queued: QueuedRows, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter([True, False, True, False, False, True])
    monkeypatch.setattr(StepSampler, "step_finished", lambda sampler, _: setattr(sampler, "is_sampled", next(drawn)))

    def steps(*, watch: bool) -> Iterator[tuple[tuple[int, int], list[str]]]:
        count_graphs_anew()
        model = Network()
        if how == "outer":
            model = torch.compile(model, backend="aot_eager")
        elif how == "in place":
            model.compile(backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if watch:
            queued.watch(model, optimizer)
        called = torch.compile(model, backend="aot_eager", fullgraph=True) if how == "watched before" else model
        for step in range(6):
            hooks = len(module_hooks(model)), len(step_hooks(optimizer))
            called(X).sum().backward()
            optimizer.step()
            yield hooks, queued.words()
            for stages in stages_of(queued.run):
                stages.step_finished(step)

    assert list(steps(watch=False)) == [((0, 0), [])] * 6
    unwatched = graphs()
    assert (unwatched[0], unwatched[1].get("unique_graphs", 0)) == ({}, 1 if how else 0)
    hooks, words = zip(*steps(watch=True), strict=True)
    assert graphs() == unwatched
    seen = OPTIMIZER if how == "watched before" else STEP
    assert list(words) == [seen, seen, ["-"], ["+", *seen], ["-"], []]
    assert queued.words() == ["+"]
    kept = 2 if how == "watched before" else 0
    assert hooks == ((2, 1), (2, 1), (kept, 0), (2, 1), (kept, 0), (kept, 0))


def test_a_timed_stage_of_a_gpu_counts_for_those_that_were_not(
    queued: QueuedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = queued.watch(Slow(queued.gpu))
    (stages,) = stages_of(queued.run)

    monkeypatch.setattr(StepSampler, "step_finished", lambda sampler, number: setattr(sampler, "weight", number))
    model(X)
    stages.step_finished(3)
    model(X)
    queued.gpu.advance()
    queued.run.push(loss=1.0)
    assert sum(done.phases["forward"] for done in queued.work()) == 1 + 3


def test_of_two_models_that_are_watched_each_step_is_timed(queued: QueuedRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepSampler, "step_finished", lambda sampler, _: setattr(sampler, "is_sampled", False))
    models = [queued.watch(Network())]
    stages_of(queued.run)[0].step_finished(1)
    assert queued.words() == ["-"]
    models.append(queued.watch(Network()))
    assert queued.words() == ["+"]
    for step in (2, 3):
        for model, stages in zip(models, stages_of(queued.run), strict=True):
            stages.step_finished(step)
            model(X)
    assert queued.words() == FORWARD * 4
    del models[1], model
    gc.collect()
    stages_of(queued.run)[0].step_finished(4)
    models[0](X)
    assert queued.words() == ["-"]
    del models[0]
    gc.collect()
    queued.watch(Network())
    assert queued.words() == ["+"]
    assert len(stages_of(queued.run)) == 1


def test_copies_and_pickles_of_a_model_contain_nothing_of_its_watching(queued: QueuedRows) -> None:
    model = Network()
    model.compile(backend="eager")
    queued.watch(model)
    pickled = pickle.dumps(model)
    assert b"trackside" not in pickled
    for other in (copy.deepcopy(model), pickle.loads(pickled)):
        assert torch.equal(other(X), model.forward(X))
    assert queued.words() == []


def test_of_one_run_or_after_one_a_model_has_one_that_watches_and_beside_a_living_one_two(
    queued: QueuedRows, nowhere: str
) -> None:
    model = Network()
    model.compile(backend="eager")
    for _ in range(2):
        out = queued.watch(model)(X)
        assert queued.words() == FORWARD
    stages_of(queued.run)[-1].stop()
    out.sum().backward()
    model(X)
    assert queued.words() == []
    queued.watch(model)
    others = [QueuedRows(trackside.init(endpoint=nowhere)) for _ in range(2)]
    with undrained(others[0].run), undrained(others[1].run):
        others[0].watch(model)
        others[0].run.finish()
        others[1].watch(model)
        assert len(module_hooks(model)) == 2 * 2
        model(X).sum().backward()
        assert (others[0].words(), others[1].words()) == ([], [*FORWARD, *BACKWARD])


def test_a_module_that_cannot_be_hooked_costs_itself_alone_and_is_logged_once(
    queued: QueuedRows, caplog: pytest.LogCaptureFixture
) -> None:
    class Strange(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            return Graphless(super().forward(x))

    class Graphless:
        grad_fn = "none"

        def __init__(self, out: torch.Tensor) -> None:
            self.out = out

    model = queued.watch(Strange(4, 1))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            model(X).out.sum().backward()
    assert queued.words() == FORWARD * 2
    (answered,) = caplog.messages
    assert answered.startswith("trackside: watching a model: AttributeError")


def test_stages_are_phases_of_the_run_beside_the_user_s_own(run: trackside.Run) -> None:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer)
    with run.phase("backward"):
        model(X).sum().backward()
    with run.phase("eval"):
        model(X)
    optimizer.step()
    run.push(loss=1.0)
    _, totals = unsent_rows(run)
    assert list(totals.phases) == ["other", "backward", "forward", "eval", "optimizer"]
    assert totals.device is None
    model(X).sum().backward()  # after the end there is nobody to tell
    assert not run.queue.session.rows


# On a GPU


class Layer(torch.autograd.Function):  # type: ignore[misc]
    """A function that uses a GPU for one second forward and two backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gpu: Gpu) -> torch.Tensor:
        ctx.gpu = gpu
        gpu.now += 1
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.gpu.now += 2
        return grad, None


class Slow(torch.nn.Linear):  # type: ignore[misc]
    """A linear layer followed by a `Layer`."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(4, 1)
        self.gpu = gpu

    def forward(self, x: torch.Tensor) -> Any:
        return Layer.apply(super().forward(x), self.gpu)


class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer that uses a GPU for four seconds."""

    def __init__(self, model: Slow) -> None:
        super().__init__(model.parameters(), {})
        self.gpu = model.gpu

    def step(self, closure: None = None) -> None:
        self.gpu.now += 4


@pytest.fixture
def train(queued: QueuedRows) -> Callable[[], None]:
    """A function that runs one step of a watched model on a GPU."""
    model = Slow(queued.gpu)
    optimizer = Optimizer(model)
    queued.watch(model, optimizer)

    def step() -> None:
        model(X).sum().backward()
        optimizer.step()
        queued.gpu.now += 8

    return step


def test_a_batch_is_prepared_on_the_gpu_from_its_arrival_to_the_call_of_the_model(
    queued: QueuedRows, train: Callable[[], None]
) -> None:
    (stages,) = stages_of(queued.run)
    train()
    stages.step_finished(1)
    queued.words()
    for _ in range(2):
        stages.batch_arrived()
        queued.gpu.now += 16  # as a copy to the device does
        train()
    queued.gpu.advance()
    queued.run.push(loss=1.0)
    assert [one.phases["prepare"] for one in queued.work()] == [32.0]


def test_the_gpu_s_seconds_are_sent_at_pushes_when_they_are_over(queued: QueuedRows, train: Callable[[], None]) -> None:
    for _ in range(3):
        train()
        queued.run.push(loss=1.0)
    assert queued.work() == []
    queued.gpu.advance(4)
    queued.run.push(loss=1.0)
    assert [one.phases for one in queued.work()] == [{"forward": 1.0, "backward": 2.0}]
    queued.gpu.advance()
    queued.run.push(loss=1.0)
    queued.run.push(loss=1.0)
    assert [one.phases for one in queued.work()] == [{"forward": 2.0, "backward": 4.0, "optimizer": 12.0}]
    assert set().union(*(event.threads for event in queued.gpu.events)) == {threading.get_ident()}
    made = len(queued.gpu.events)
    train()
    assert len(queued.gpu.events) == made == 18


def test_the_last_seconds_and_memory_are_sent_at_the_end(run: trackside.Run) -> None:
    reported = QueuedRows(run)
    reported.gpu.fill(allocated=3, peak=5)
    model = reported.watch(Slow(reported.gpu))
    model(X)
    reported.gpu.fill(allocated=4, peak=6, ooms=1)
    reported.gpu.advance()
    _, totals = unsent_rows(run)
    assert totals.device == Device(phases={"forward": 1.0}, memory={"GPU-aa": Memory(4, 40, 6, 1)})


@pytest.mark.parametrize("queued", [{"events": 4}], indirect=True)
def test_a_stage_for_which_there_is_no_event_is_not_timed_and_nothing_waits(
    queued: QueuedRows, train: Callable[[], None]
) -> None:
    for _ in range(3):
        train()
    assert len(queued.gpu.events) == 4
    queued.gpu.advance()
    queued.run.push(loss=1.0)
    train()
    queued.gpu.advance()
    queued.run.push(loss=1.0)
    work = queued.work()
    assert [one.phases for one in work] == [{"forward": 1.0, "backward": 2.0}] * 2


@pytest.mark.parametrize("queued", [{"events": 6}], indirect=True)
def test_where_pushes_are_seldom_events_are_asked_when_there_is_none_left(
    queued: QueuedRows, train: Callable[[], None]
) -> None:
    for _ in range(3):
        train()
        queued.gpu.advance()
    queued.run.push(loss=1.0)
    assert len(queued.gpu.events) == 6
    assert [one.phases for one in queued.work()] == [{"forward": 1.0, "backward": 2.0, "optimizer": 4.0}] * 3


@pytest.mark.parametrize("queued", [{"memory_every": 0}], indirect=True)
def test_an_allocator_without_figures_is_logged_once_and_costs_only_those(
    queued: QueuedRows, train: Callable[[], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queued.gpu, "memory", lambda _: 1 / 0)
    for _ in range(2):
        train()
        queued.gpu.advance()
        queued.run.push(loss=1.0)
    assert [set(one.phases) for one in queued.work()] == [{"forward", "backward", "optimizer"}] * 2
    assert caplog.messages == ["trackside: GPU memory cannot be read: ZeroDivisionError: division by zero"]


def test_while_a_graph_is_captured_no_event_is_recorded_or_asked(queued: QueuedRows, train: Callable[[], None]) -> None:
    train()
    queued.gpu.advance()
    queued.gpu.capturing = True
    asked = [event.threads.copy() for event in queued.gpu.events]
    train()
    queued.run.push(loss=1.0)
    assert [event.threads for event in queued.gpu.events] == asked
    queued.gpu.capturing = False
    queued.run.push(loss=1.0)
    assert [one.phases for one in queued.work()] == [{"forward": 1.0, "backward": 2.0, "optimizer": 4.0}]


def test_a_gpu_that_has_failed_is_logged_once_and_the_host_s_stages_go_on(
    queued: QueuedRows, train: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    train()
    queued.words()
    queued.gpu.failed = True
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            train()
            queued.run.push(loss=1.0)
    assert queued.words() == STEP * 2
    assert caplog.messages == ["trackside: watching a model: RuntimeError: the device has failed"]


@pytest.mark.parametrize("queued", [{"memory_every": 0}], indirect=True)
def test_of_a_gpu_nothing_is_asked_until_it_is_used(queued: QueuedRows) -> None:
    queued.gpu.begun = False
    model = queued.watch(Slow(queued.gpu))
    for queued.gpu.begun in (False, True):
        model(X)
        queued.run.push(loss=1.0)
        assert queued.gpu.events == []
    model(X)
    queued.gpu.advance()
    queued.run.push(loss=1.0)
    assert [one.phases for one in queued.work()] == [{"forward": 1.0}]


# Memory


@pytest.mark.parametrize("queued", [{"memory_every": 0}], indirect=True)
def test_the_maximum_and_the_failures_are_the_run_s_own_whatever_is_reset(queued: QueuedRows) -> None:
    queued.gpu.fill(allocated=10, peak=90, ooms=2)
    queued.watch(Network())
    seen = []
    for allocated, peak, ooms in ((20, 90, 2), (30, 95, 3), (30, 30, 3), (0, 40, 1), (50, 50, 1)):
        queued.gpu.fill(allocated=allocated, peak=peak, ooms=ooms)
        queued.run.push(loss=1.0)
        seen += [one.memory["GPU-aa"] for one in queued.work()]
    assert seen == [
        *(Memory(20, 200, 20, 0), Memory(30, 300, 95, 1), Memory(30, 300, 95, 1), Memory(0, 0, 95, 2)),
        Memory(50, 500, 95, 2),
    ]


def test_memory_of_the_used_gpus_is_sent_once_a_second_at_most(
    queued: QueuedRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued.watch(Network())
    queued.run.push(loss=1.0)
    assert queued.work() == []
    queued.gpu.fill(allocated=1, peak=2)
    queued.run.push(loss=1.0)
    assert queued.work() == []
    monkeypatch.setattr(stages_module, "monotonic_ns", lambda: 2**62)
    for _ in range(2):
        queued.run.push(loss=1.0)
    assert [one.memory for one in queued.work()] == [{"GPU-aa": Memory(1, 10, 2, 0)}]


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, "0"),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "PCI-0"),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, "3"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb"}, "GPU-bb"),
        ({"CUDA_VISIBLE_DEVICES": "none"}, "0"),
    ],
    ids=str,
)
def test_a_gpu_without_a_uuid_has_the_name_that_the_environment_has_for_it(
    queued: QueuedRows, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], name: str
) -> None:
    for variable in ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    queued.gpu.uuids = {}
    queued.gpu.fill(allocated=1, peak=2)
    queued.watch(Network())
    queued.run.push(loss=1.0)
    assert [list(one.memory) for one in queued.work()] == [[name]]


def test_pushes_poll_the_stages_of_a_training_that_uses_a_gpu_after_its_first_step(
    nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, model, models = trackside.init(endpoint=nowhere), torch.nn.Linear(2, 2), Models()
    models.parameter_registered(model)
    monkeypatch.setattr(CudaDevices, "used", lambda _: False)
    stages = AutoStages(run.queue, models, torch.optim.SGD(model.parameters()))
    run.queue.register(stages)
    assert not run.queue.polls
    monkeypatch.setattr(CudaDevices, "used", lambda _: True)
    monkeypatch.setattr(CudaDevices, "forbids", lambda _: True)
    for step in range(1, 100):  # some of them are not timed
        stages.step_finished(step)
    assert run.queue.polls
