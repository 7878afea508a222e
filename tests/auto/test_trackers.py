"""The hooks of trackers on classes with the trackers' signatures; test_public_scripts.py has the trackers themselves."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trackside.auto import trackers
from trackside.auto.hooks import hooks
from trackside.auto.method_wrapping import replace_methods
from trackside.auto.startup.trackside_patched_methods import PATCHED_METHODS
from trackside.auto.trackers import TrackerSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class RecordedRun:
    """In place of the process's run: what the hooks push and describe."""

    def __init__(self) -> None:
        self.pushed: list[tuple[dict[str, Any], int]] = []
        self.described: list[dict[str, Any]] = []
        self.ended = 0
        self.queue: object = None

    def end_tracked(self) -> None:
        self.ended += 1

    def begin_tracked(self) -> None: ...

    def tracked(self, values: Mapping[str, Any], step: int, _separator: str = "") -> None:
        self.pushed.append((dict(values), step))

    def describe(self, **details: Any) -> None:
        self.described.append(details)


class WandbRun:
    """Class with the signatures of W&B's run."""

    starting_step = 0

    def __init__(self) -> None:
        self.config = {"lr": 0.1}

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> str:
        """Log, and fail for no data."""
        if not data:
            raise ValueError("no data")
        return f"{len(data)} {step} {commit}"

    def finish(self) -> None: ...


class SummaryWriter:
    """Class with the signatures of PyTorch's writer."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any = None, walltime: Any = None) -> None: ...
    def add_scalars(self, main_tag: str, tag_scalar_dict: Any, global_step: Any = None) -> None: ...
    def add_hparams(self, hparam_dict: Any, metric_dict: Any) -> None: ...


class MlflowClient:
    """Class with the signatures of MLflow's client."""

    def create_run(
        self, experiment_id: str, start_time: Any = None, tags: Any = None, run_name: Any = None
    ) -> None: ...
    def log_metric(self, run_id: str, key: str, value: Any, timestamp: Any = None, step: Any = None) -> None: ...
    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None: ...
    def log_param(self, run_id: str, key: str, value: Any) -> None: ...
    def set_tag(self, run_id: str, key: str, value: Any) -> None: ...
    def set_terminated(self, run_id: str, status: Any = None) -> None: ...


class AimRun:
    """Class with the signatures of Aim's run."""

    def track(
        self, value: Any, name: Any = None, step: Any = None, epoch: Any = None, *, context: Any = None
    ) -> None: ...
    def add_tag(self, value: str) -> None: ...
    def __setitem__(self, key: str, value: Any) -> None: ...


def module(name: str, base: type, *aliases: str) -> ModuleType:
    """Return a module with a class of its own, so that no other test gets hooks."""
    made = ModuleType(name)
    kind = type(base.__name__, (base,), dict(vars(base)))
    for alias in aliases or (base.__name__,):
        setattr(made, alias, kind)
    return made


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> RecordedRun:
    made = RecordedRun()
    monkeypatch.setattr(trackers, "auto_run", lambda: made)
    return made


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType], Any]:
    """A function that installs the hooks of a module, and returns it."""

    def installed(made: ModuleType) -> ModuleType:
        monkeypatch.setitem(sys.modules, made.__name__, made)
        replace_methods(made.__name__, PATCHED_METHODS[made.__name__])
        return made

    return installed


def test_wandb_s_run_returns_raises_and_prints_as_before(
    recorded: RecordedRun, install: Callable[[ModuleType], Any]
) -> None:
    kind = install(module("wandb.sdk.wandb_run", WandbRun, "Run")).Run
    run = kind()
    assert run.log({"loss": 1.0}) == "1 None None"
    assert run.log({"loss": 2.0}, 7, commit=False) == "1 7 False"
    run.log({"acc": 3.0})
    run.log({"loss": 4.0})
    with pytest.raises(ValueError, match="no data"):
        run.log({})
    assert [step for _, step in recorded.pushed] == [0, 7, 7, 8]
    assert recorded.described == [{"config": {"lr": 0.1}}]
    assert inspect.signature(kind.log) == inspect.signature(WandbRun.log)
    assert (kind.log.__name__, kind.log.__doc__) == ("log", WandbRun.log.__doc__)


class Stand:
    """Class with every method that a hook follows, each of which returns its arguments."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.starting_step = 0


TRACKERS = [
    name
    for name, methods in PATCHED_METHODS.items()
    if any(replacement.startswith("trackers.") for _, replacement in methods)
]


@pytest.mark.parametrize("name", TRACKERS)
def test_a_fault_in_each_hook_is_reported_once_and_the_tracker_works_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def returns(*given: Any, **named: Any) -> Any:
        return given[-2:], named

    made, called = ModuleType(name), []
    for place in dict(PATCHED_METHODS[name]):
        kind, _, method = place.rpartition(".")
        owner: Any = vars(made).setdefault(kind, type(kind, (Stand,), {})) if kind else made
        setattr(owner, method, returns)
        called.append((owner, method, owner.__new__(owner) if kind else None))
    monkeypatch.setitem(sys.modules, name, made)
    reported: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "trackside.auto.hooks.report_failure", lambda hook, error, **_: reported.append((hook, str(error)))
    )
    hooks.clear()
    replace_methods(name, PATCHED_METHODS[name])
    assert len(hooks) == len(called)

    def fault(*_: Any, **__: Any) -> None:
        raise ArithmeticError("fault")

    for hook in hooks.values():
        hook.work = fault
    for owner, method, self in called:
        function = getattr(self or owner, method)
        assert [function("loss", 1.0, step=3) for _ in range(2)] == [(("loss", 1.0), {"step": 3})] * 2
    assert sorted(reported) == sorted((hook, "fault") for hook in hooks)
    hooks.clear()


@pytest.mark.parametrize("name", ["torch.utils.tensorboard.writer", "tensorboardX.writer"])
def test_summary_writers(recorded: RecordedRun, install: Callable[[ModuleType], Any], name: str) -> None:
    writer = install(module(name, SummaryWriter)).SummaryWriter()
    writer.add_scalar("loss", 1.0, 5)
    writer.add_scalar("loss", 2.0)
    writer.add_scalars("acc", {"train": 1, "val": 2}, global_step=6)
    writer.add_hparams({"lr": 0.1}, {"acc": 1})
    assert recorded.pushed == [({"loss": 1.0}, 5), ({"loss": 2.0}, 0), ({"acc/train": 1, "acc/val": 2}, 6)]
    assert recorded.described == [{"config": {"lr": 0.1}}]


def test_a_tag_of_two_writers_is_two_series_named_by_their_directories(
    recorded: RecordedRun, install: Callable[[ModuleType], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "_writers", trackers.Writers())
    made = install(module("torch.utils.tensorboard.writer", SummaryWriter))
    train, val, deep = (made.SummaryWriter() for _ in range(3))
    train.log_dir, val.log_dir, deep.log_dir = "runs/a/train", "runs/a/val", "runs/a/val/2"
    train.add_scalar("loss", 1.0, 0)
    recorded.queue = object()  # the first value opens the run
    for writer in (val, deep, train):
        writer.add_scalar("loss", 2.0, 0)
    val.add_scalar("accuracy", 0.5, 0)
    val.add_scalars("of", {"a": 1.0}, 0)
    assert [key for values, _ in recorded.pushed for key in values] == [
        *("loss", "val/loss", "val/2/loss", "loss"),
        *("accuracy", "of/a"),
    ]
    recorded.queue = object()  # another run
    val.add_scalar("loss", 3.0, 0)
    assert recorded.pushed[-1] == ({"loss": 3.0}, 0)


def test_mlflow_s_client(recorded: RecordedRun, install: Callable[[ModuleType], Any]) -> None:
    client = install(module("mlflow.tracking.client", MlflowClient)).MlflowClient()
    client.create_run("0", tags={"mlflow.user": "me", "kind": "base"}, run_name="first")
    client.log_metric("id", "loss", 1.0, step=3)
    metrics = [
        SimpleNamespace(key=key, value=value, step=step) for key, value, step in (("a", 1, 1), ("b", 2, 1), ("a", 3, 2))
    ]
    client.log_batch("id", metrics, [SimpleNamespace(key="lr", value="0.1")])
    client.log_param("id", "layers", 2)
    client.set_tag("id", "stage", "old")
    assert recorded.pushed == [({"loss": 1.0}, 3), ({"a": 1, "b": 2}, 1), ({"a": 3}, 2)]
    assert recorded.described == [
        {"name": "first", "config": {}, "tags": ["kind=base"]},
        {"name": None, "config": {"lr": "0.1"}, "tags": []},
        {"name": None, "config": {"layers": 2}, "tags": []},
        {"name": None, "config": {}, "tags": ["stage=old"]},
    ]


def test_aim_counts_each_key_by_itself(recorded: RecordedRun, install: Callable[[ModuleType], Any]) -> None:
    run = install(module("aim.sdk.run", AimRun, "Run", "BasicRun")).Run()
    run["hparams"] = {"lr": 0.1}
    run.add_tag("old")
    for value in (1.0, 2.0):
        run.track(value, name="loss", context={"subset": "train"})
    run.track({"acc": 0.5}, step=9)
    assert recorded.pushed == [({"train/loss": 1.0}, 0), ({"train/loss": 2.0}, 1), ({"acc": 0.5}, 9)]
    assert recorded.described == [{"config": {"lr": 0.1}}, {"tags": ("old",)}]


def test_a_step_counter_continues_from_the_steps_that_are_given() -> None:
    counter, run = TrackerSteps(), WandbRun()
    assert [counter.step(run, given, ends=True) for given in (None, None, 10, None, 3, None)] == [0, 1, 10, 11, 3, 13]
