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
from client.router import kept, undrained
from torch.utils.checkpoint import checkpoint

import trackside
from trackside.pytorch import step_stages as stages_module
from trackside.pytorch.overhead_budget import StepSampler
from trackside.pytorch.step_stages import StepStages
from trackside.totals.phases import Mark
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


class Told:
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
        rows = [self.run.queue._rows.popleft() for _ in range(len(self.run.queue._rows))]
        return [f"{'+' if said.enters else '-'}{said.phase}" for _, said, _ in rows if isinstance(said, Mark)]

    def work(self) -> list[Device]:
        """Return the GPU rows since the last call; drop the others."""
        rows = [self.run.queue._rows.popleft() for _ in range(len(self.run.queue._rows))]
        return [said for _, said, _ in rows if isinstance(said, Device)]


def stages_of(run: trackside.Run) -> list[StepStages]:
    return [timer for timer in run.queue.timers if isinstance(timer, StepStages)]


@pytest.fixture
def run(nowhere: str) -> trackside.Run:
    return trackside.init(endpoint=nowhere)


@pytest.fixture
def told(run: trackside.Run, request: pytest.FixtureRequest) -> Iterator[Told]:
    """A run whose models are watched with the limits of the parameter."""
    with undrained(run):
        yield Told(run, **getattr(request, "param", {}))


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
def test_the_stages_of_a_training_that(told: Told, training: Callable[..., None], words: list[str]) -> None:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told.watch(model, optimizer)
    for _ in range(2):
        training(model, optimizer)
        assert told.words() == words


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
def test_a_backward_is_seen_from_whatever_the_model_returns(told: Told, wrap: Callable[[torch.Tensor], Any]) -> None:
    class Model(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            return wrap(super().forward(x))

    out = told.watch(Model(4, 1))(X)
    loss = out["loss"] if isinstance(out, dict) else out.loss if isinstance(out, Output) else out[1][0]["loss"]
    loss.backward()
    assert told.words() == [*FORWARD, *BACKWARD]


def test_a_model_that_calls_itself_has_one_forward_and_one_that_generates_has_none(told: Told) -> None:
    class Tree(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, depth: int = 2) -> Any:
            return self(super().forward(x), depth - 1) if depth else x

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def generate(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = self(x)
            return x

    model = told.watch(Tree(4, 4))
    model(X).sum().backward()
    model.generate(X)
    assert told.words() == [*FORWARD, *BACKWARD]


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


def test_stages_that_fail_end_and_the_next_step_is_as_any(told: Told) -> None:
    model = Failing(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told.watch(model, optimizer)
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
    assert told.words() == FORWARD
    for model.at in ("backward", "backward"):
        step()
    assert told.words() == [*FORWARD, "+backward", "-backward", *FORWARD, "+backward"]
    told.run.push(loss=1.0)
    assert told.words() == ["-backward"]
    model.at = KeyboardInterrupt
    step()
    step()
    assert told.words() == [*FORWARD, *OPTIMIZER]  # from Ctrl-C on until the optimizer's next
    step()
    assert told.words() == STEP
    told.gpu.now = 1.0
    assert told.work() == []


def test_a_backward_lasts_until_what_others_have_it_do_at_its_end(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    model = told.watch(Network())

    def wait_for_peers(_: object) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: told.run.phase("peers").__enter__())

    next(model.parameters()).register_hook(wait_for_peers)
    model(X).sum().backward()
    assert told.words() == [*FORWARD, "+backward", "+peers", "-backward"]


@pytest.mark.parametrize("how", ["outer", "in place", "watched before"])
def test_a_compiled_model_has_no_graph_break_and_no_other_graph(told: Told, how: str) -> None:
    from torch._dynamo.utils import counters

    def steps(*, watch: bool) -> tuple[dict[str, int], dict[str, int]]:
        torch._dynamo.reset()
        counters.clear()
        model = Network()
        if how == "outer":
            model = torch.compile(model, backend="aot_eager")
        elif how == "in place":
            model.compile(backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if watch:
            told.watch(model, optimizer)
        called = torch.compile(model, backend="aot_eager", fullgraph=True) if how == "watched before" else model
        for _ in range(3):
            called(X).sum().backward()
            optimizer.step()
        return dict(counters["graph_break"]), dict(counters["stats"])

    plain = steps(watch=False)
    assert plain[0] == {}
    assert plain[1]["unique_graphs"] == 1
    assert steps(watch=True) == plain
    assert told.words() == (OPTIMIZER if how == "watched before" else STEP) * 3


@pytest.mark.parametrize("how", ["", "outer", "in place", "watched before"])
def test_in_steps_that_are_not_timed_no_hook_is_there_but_in_a_graph_and_no_graph_is_made_anew(
    told: Told, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.utils import counters

    drawn = iter([True, False, True, False, False, True])
    monkeypatch.setattr(StepSampler, "step_finished", lambda sampler, _: setattr(sampler, "is_sampled", next(drawn)))
    torch._dynamo.reset()
    counters.clear()
    model = Network()
    if how == "outer":
        model = torch.compile(model, backend="aot_eager")
    elif how == "in place":
        model.compile(backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told.watch(model, optimizer)
    (stages,) = stages_of(told.run)
    called = torch.compile(model, backend="aot_eager", fullgraph=True) if how == "watched before" else model
    words, hooks = [], []
    for step in range(6):
        hooks.append((len(model._forward_hooks), len(optimizer._optimizer_step_pre_hooks)))
        called(X).sum().backward()
        optimizer.step()
        words.append(told.words())
        stages.step_finished(step)
    seen = OPTIMIZER if how == "watched before" else STEP
    mark = {True: ["+"], False: ["-"]}
    assert words == [seen, seen, mark[False], mark[True] + seen, mark[False], []]
    assert told.words() == ["+"]
    kept = 1 if how == "watched before" else 0
    assert hooks == [(1, 1), (1, 1), (kept, 0), (1, 1), (kept, 0), (kept, 0)]
    assert counters["graph_break"] == {}
    assert counters["stats"].get("unique_graphs", 0) == (1 if how else 0)


def test_a_timed_stage_of_a_gpu_counts_for_those_that_were_not(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    model = told.watch(Slow(told.gpu))
    (stages,) = stages_of(told.run)

    monkeypatch.setattr(StepSampler, "step_finished", lambda sampler, number: setattr(sampler, "weight", number))
    model(X)
    stages.step_finished(3)
    model(X)
    told.gpu.advance()
    told.run.push(loss=1.0)
    assert sum(done.phases["forward"] for done in told.work()) == 1 + 3


def test_of_two_models_that_are_watched_each_step_is_timed(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepSampler, "step_finished", lambda sampler, _: setattr(sampler, "is_sampled", False))
    models = [told.watch(Network())]
    stages_of(told.run)[0].step_finished(1)
    assert told.words() == ["-"]
    models.append(told.watch(Network()))
    assert told.words() == ["+"]
    for step in (2, 3):
        for model, stages in zip(models, stages_of(told.run), strict=True):
            stages.step_finished(step)
            model(X)
    assert told.words() == FORWARD * 4
    del models[1], model
    gc.collect()
    stages_of(told.run)[0].step_finished(4)
    models[0](X)
    assert told.words() == ["-"]
    del models[0]
    gc.collect()
    told.watch(Network())
    assert told.words() == ["+"]
    assert len(stages_of(told.run)) == 1


def test_copies_and_pickles_of_a_model_know_nothing_of_its_watching(told: Told) -> None:
    model = Network()
    model.compile(backend="eager")
    told.watch(model)
    pickled = pickle.dumps(model)
    assert b"trackside" not in pickled
    for other in (copy.deepcopy(model), pickle.loads(pickled)):
        assert torch.equal(other(X), model.forward(X))
    assert told.words() == []


def test_of_one_run_or_after_one_a_model_has_one_that_watches_and_beside_a_living_one_two(
    told: Told, nowhere: str
) -> None:
    model = Network()
    model.compile(backend="eager")
    for _ in range(2):
        out = told.watch(model)(X)
        assert told.words() == FORWARD
    stages_of(told.run)[-1].stop()
    out.sum().backward()
    model(X)
    assert told.words() == []
    told.watch(model)
    others = [Told(trackside.init(endpoint=nowhere)) for _ in range(2)]
    with undrained(others[0].run), undrained(others[1].run):
        others[0].watch(model)
        others[0].run.finish()
        others[1].watch(model)
        assert len(model._forward_hooks) == 2
        model(X).sum().backward()
        assert (others[0].words(), others[1].words()) == ([], [*FORWARD, *BACKWARD])


def test_what_cannot_be_hooked_costs_itself_alone_and_is_said_once(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    class Strange(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            return Graphless(super().forward(x))

    class Graphless:
        grad_fn = "none"

        def __init__(self, out: torch.Tensor) -> None:
            self.out = out

    model = told.watch(Strange(4, 1))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            model(X).out.sum().backward()
    assert told.words() == FORWARD * 2
    (said,) = caplog.messages
    assert said.startswith("trackside: watching a model: AttributeError")


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
    _, totals = kept(run)
    assert list(totals.phases) == ["other", "backward", "forward", "eval", "optimizer"]
    assert totals.device is None
    model(X).sum().backward()  # after the end there is nobody to tell
    assert not run.queue._rows


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
def train(told: Told) -> Callable[[], None]:
    """A function that runs one step of a watched model on a GPU."""
    model = Slow(told.gpu)
    optimizer = Optimizer(model)
    told.watch(model, optimizer)

    def step() -> None:
        model(X).sum().backward()
        optimizer.step()
        told.gpu.now += 8

    return step


def test_the_gpu_s_seconds_are_told_at_pushes_when_they_are_over(told: Told, train: Callable[[], None]) -> None:
    for _ in range(3):
        train()
        told.run.push(loss=1.0)
    assert told.work() == []
    told.gpu.advance(4)
    told.run.push(loss=1.0)
    assert [one.phases for one in told.work()] == [{"forward": 1.0, "backward": 2.0}]
    told.gpu.advance()
    told.run.push(loss=1.0)
    told.run.push(loss=1.0)
    assert [one.phases for one in told.work()] == [{"forward": 2.0, "backward": 4.0, "optimizer": 12.0}]
    assert set().union(*(event.threads for event in told.gpu.events)) == {threading.get_ident()}
    made = len(told.gpu.events)
    train()
    assert len(told.gpu.events) == made == 18


def test_the_last_seconds_and_memory_are_told_at_the_end(run: trackside.Run) -> None:
    told = Told(run)
    told.gpu.fill(allocated=3, peak=5)
    model = told.watch(Slow(told.gpu))
    model(X)
    told.gpu.fill(allocated=4, peak=6, ooms=1)
    told.gpu.advance()
    _, totals = kept(run)
    assert totals.device == Device(phases={"forward": 1.0}, memory={"GPU-aa": Memory(4, 40, 6, 1)})


@pytest.mark.parametrize("told", [{"events": 4}], indirect=True)
def test_a_stage_for_which_there_is_no_event_is_not_timed_and_nothing_waits(
    told: Told, train: Callable[[], None]
) -> None:
    for _ in range(3):
        train()
    assert len(told.gpu.events) == 4
    told.gpu.advance()
    told.run.push(loss=1.0)
    train()
    told.gpu.advance()
    told.run.push(loss=1.0)
    work = told.work()
    assert [one.phases for one in work] == [{"forward": 1.0, "backward": 2.0}] * 2


@pytest.mark.parametrize("told", [{"events": 6}], indirect=True)
def test_where_pushes_are_seldom_events_are_asked_when_there_is_none_left(
    told: Told, train: Callable[[], None]
) -> None:
    for _ in range(3):
        train()
        told.gpu.advance()
    told.run.push(loss=1.0)
    assert len(told.gpu.events) == 6
    assert [one.phases for one in told.work()] == [{"forward": 1.0, "backward": 2.0, "optimizer": 4.0}] * 3


@pytest.mark.parametrize("told", [{"memory_every": 0}], indirect=True)
def test_an_allocator_that_has_no_figures_is_said_once_and_costs_only_those(
    told: Told, train: Callable[[], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(told.gpu, "memory", lambda _: 1 / 0)
    for _ in range(2):
        train()
        told.gpu.advance()
        told.run.push(loss=1.0)
    assert [set(one.phases) for one in told.work()] == [{"forward", "backward", "optimizer"}] * 2
    assert caplog.messages == ["trackside: GPU memory cannot be read: ZeroDivisionError: division by zero"]


def test_while_a_graph_is_captured_no_event_is_recorded_or_asked(told: Told, train: Callable[[], None]) -> None:
    train()
    told.gpu.advance()
    told.gpu.capturing = True
    asked = [event.threads.copy() for event in told.gpu.events]
    train()
    told.run.push(loss=1.0)
    assert [event.threads for event in told.gpu.events] == asked
    told.gpu.capturing = False
    told.run.push(loss=1.0)
    assert [one.phases for one in told.work()] == [{"forward": 1.0, "backward": 2.0, "optimizer": 4.0}]


def test_a_gpu_that_has_failed_is_said_once_and_the_host_s_stages_go_on(
    told: Told, train: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    train()
    told.words()
    told.gpu.failed = True
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            train()
            told.run.push(loss=1.0)
    assert told.words() == STEP * 2
    assert caplog.messages == ["trackside: watching a model: RuntimeError: the device has failed"]


@pytest.mark.parametrize("told", [{"memory_every": 0}], indirect=True)
def test_of_a_gpu_nothing_is_asked_until_it_is_used(told: Told) -> None:
    told.gpu.begun = False
    model = told.watch(Slow(told.gpu))
    for told.gpu.begun in (False, True):
        model(X)
        told.run.push(loss=1.0)
        assert told.gpu.events == []
    model(X)
    told.gpu.advance()
    told.run.push(loss=1.0)
    assert [one.phases for one in told.work()] == [{"forward": 1.0}]


# Memory


@pytest.mark.parametrize("told", [{"memory_every": 0}], indirect=True)
def test_the_maximum_and_the_failures_are_the_run_s_own_whatever_is_reset(told: Told) -> None:
    told.gpu.fill(allocated=10, peak=90, ooms=2)
    told.watch(Network())
    seen = []
    for allocated, peak, ooms in ((20, 90, 2), (30, 95, 3), (30, 30, 3), (0, 40, 1), (50, 50, 1)):
        told.gpu.fill(allocated=allocated, peak=peak, ooms=ooms)
        told.run.push(loss=1.0)
        seen += [one.memory["GPU-aa"] for one in told.work()]
    assert seen == [
        *(Memory(20, 200, 20, 0), Memory(30, 300, 95, 1), Memory(30, 300, 95, 1), Memory(0, 0, 95, 2)),
        Memory(50, 500, 95, 2),
    ]


def test_it_is_told_once_a_second_at_most_of_the_gpus_that_are_used(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    told.watch(Network())
    told.run.push(loss=1.0)
    assert told.work() == []
    told.gpu.fill(allocated=1, peak=2)
    told.run.push(loss=1.0)
    assert told.work() == []
    monkeypatch.setattr(stages_module, "monotonic_ns", lambda: 2**62)
    for _ in range(2):
        told.run.push(loss=1.0)
    assert [one.memory for one in told.work()] == [{"GPU-aa": Memory(1, 10, 2, 0)}]


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
def test_a_gpu_that_tells_no_uuid_has_the_name_that_the_environment_has_for_it(
    told: Told, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], name: str
) -> None:
    for variable in ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    told.gpu.uuids = {}
    told.gpu.fill(allocated=1, peak=2)
    told.watch(Network())
    told.run.push(loss=1.0)
    assert [list(one.memory) for one in told.work()] == [[name]]
