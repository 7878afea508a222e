"""The run of the hooks: the source that counts its steps, the value of a key that counts, and its description."""

from __future__ import annotations

import sys
from time import monotonic_ns
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trackside.auto import hooks
from trackside.auto import run as auto_run
from trackside.auto.run import AutoRun
from trackside.default_run import default
from trackside.limits import ROWS_WAITING
from trackside.row_queue import RowQueue
from trackside.run import Run
from trackside.transport.session import Session
from trackside.wire import HOOK_FAILED, Clock, Identity, Pushes, TrainingEvent, decode_body

if TYPE_CHECKING:
    from collections.abc import Iterator

SENDER: Any = SimpleNamespace(end=lambda *_, **__: None)


class Process:
    """In place of the default run of this process: runs that nothing sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run: Run | None = None
        self.opened: list[dict[str, Any]] = []
        monkeypatch.setattr(auto_run, "init", self.init)
        monkeypatch.setattr(
            auto_run, "open_run", lambda: self.run if self.run is not None and self.run.is_open else None
        )
        monkeypatch.setattr(default, "queue", default.queue)

    def init(self, name: str | None = None, **details: Any) -> Run:
        self.opened.append({"name": name, **details})
        self.run = Run(RowQueue(Session(Identity("id", name or "train")), SENDER))
        default.queue = self.run.queue
        return self.run

    def rows(self) -> list[tuple[int, dict[str, float], bool]]:
        """Return what the run would send: step, values and whether the step is of another count."""
        assert self.run is not None
        session = self.run.queue.session
        session.drain(Clock(1, 1))
        found = []
        for message in session.pending:
            pushes = decode_body("batch", message.frames[2])
            assert isinstance(pushes, Pushes)
            for block in pushes.blocks:
                steps, _, values = block.columns()
                width = len(block.keys)
                for row, step in enumerate(steps):
                    numbers = dict(zip(block.keys, values[row * width : (row + 1) * width], strict=True))
                    found.append((step, numbers, block.aside))
        return found


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    made = Process(monkeypatch)
    yield made
    if made.run is not None:
        made.run.finish()


@pytest.fixture
def auto(process: Process) -> AutoRun:
    return AutoRun([])


def test_the_first_step_opens_the_run_with_what_trackers_have_reported(auto: AutoRun, process: Process) -> None:
    auto.describe(name="baseline", config={"lr": 0.1}, tags=["a"])
    auto.describe(config={"layers": 2}, tags=["b", "a"])
    assert process.opened == []
    auto.found({"loss": 2.0})
    assert process.opened == [
        {"name": "baseline", "config": {"lr": 0.1, "layers": 2}, "tags": ("a", "b"), "enabled": True}
    ]
    auto.found({"loss": 1.0})
    assert process.rows() == [(0, {"loss": 2.0}, False), (1, {"loss": 1.0}, False)]


def test_a_tracker_s_steps_stand_aside_and_its_value_of_a_key_counts(auto: AutoRun, process: Process) -> None:
    for step in range(4):
        auto.found({"loss": float(step), "samples": 8})
        if step == 1:
            auto.tracked({"loss": 0.5, "epoch loss": 0.7, "note": "text", "image": object()}, 100)
    assert process.rows() == [
        (0, {"loss": 0.0, "samples": 8.0}, False),
        (1, {"loss": 1.0, "samples": 8.0}, False),
        (100, {"loss": 0.5, "epoch loss": 0.7}, True),
        (2, {"samples": 8.0}, False),
        (3, {"samples": 8.0}, False),
    ]
    assert process.run is not None
    assert process.run.queue.session.totals.steps == 4


@pytest.mark.parametrize("has_torch", [True, False])
def test_a_training_without_optimizers_has_the_tracker_s_steps(
    auto: AutoRun, process: Process, monkeypatch: pytest.MonkeyPatch, *, has_torch: bool
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # restored after the test
    if not has_torch:
        del sys.modules["torch"]
    for step in (10, 20, 30):
        auto.tracked({"reward": float(step)}, step)
    auto.found({"loss": 1.0})
    first, *others = process.rows()
    assert first == (10, {"reward": 10.0}, has_torch)  # with PyTorch, an optimizer might have followed
    assert others == [(20, {"reward": 20.0}, False), (30, {"reward": 30.0}, False), (30, {"loss": 1.0}, False)]


def test_nested_values_have_the_tracker_s_keys(auto: AutoRun, process: Process) -> None:
    auto.tracked({"a": {"b": 1, "c": {"d": True}}, "e": "no"}, 3, ".")
    auto.tracked({"a": {"b": 1}}, 4, "/")
    assert [row[:2] for row in process.rows()] == [(3, {"a.b": 1.0, "a.c.d": 1.0}), (4, {"a/b": 1.0})]


def test_the_training_s_own_pushes_count_the_steps_and_win(auto: AutoRun, process: Process) -> None:
    for _ in range(3):
        auto.found({"loss": 9.0, "learning_rate": 0.1, "samples": 8})
    auto.tracked({"accuracy": 0.1}, 7)
    assert process.run is not None
    process.run.push(step=100, loss=1.0, accuracy=0.9)
    for step in range(2):
        auto.found({"loss": 9.0, "learning_rate": 0.2, "samples": 8})
        auto.tracked({"accuracy": 0.2, "f1": 0.3}, 8 + step)
    process.run.push(step=102, loss=0.5)
    rows = process.rows()
    assert rows[4:] == [
        (100, {"loss": 1.0, "accuracy": 0.9}, False),
        (8, {"f1": 0.3}, True),
        (9, {"f1": 0.3}, True),
        (102, {"loss": 0.5, "learning_rate": 0.2, "samples": 16.0}, False),
    ]
    assert process.run.queue.session.hello(Clock(1, 1))


def test_of_the_first_step_too_the_training_s_own_values_count(auto: AutoRun, process: Process) -> None:
    auto.found({"loss": 2.0, "samples": 4})
    default.push(step=0, loss=200.0)
    auto.found({"loss": 1.5, "samples": 4})
    default.push(step=1, loss=150.0)
    rows = [(step, values) for step, values, _ in process.rows() if values]
    assert rows == [(0, {"loss": 200.0}), (0, {"samples": 4.0}), (1, {"loss": 150.0, "samples": 4.0})]


def test_a_tracker_that_has_the_loss_or_the_rate_has_that_of_the_first_step_too(
    auto: AutoRun, process: Process
) -> None:
    auto.found({"loss": 2.0, "learning_rate": 0.1, "samples": 4})
    auto.tracked({"loss": 2.0, "train/lr": 0.1}, 1)
    auto.found({"loss": 1.0, "learning_rate": 0.1, "samples": 4})
    assert [(step, values) for step, values, aside in process.rows() if values and not aside] == [
        (0, {"samples": 4.0}),
        (1, {"samples": 4.0}),
    ]


def test_a_run_of_one_step_has_its_values(auto: AutoRun, process: Process) -> None:
    auto.found({"loss": 2.0})
    assert process.run is not None
    run = process.run
    run.finish()
    assert [(step, values) for step, values, _ in process.rows() if values] == [(0, {"loss": 2.0})]


def test_the_next_training_is_a_run_named_as_the_first_with_steps_of_its_own(
    auto: AutoRun, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert auto.begin_next()  # nothing was found yet
    for training in range(3):
        auto.found({"loss": 2.0})
        auto.found_before([(monotonic_ns(), {"loss": float(training)})])
        assert auto.step == 2
        assert auto.begin_next("fold-b" if training == 1 else "", {"fold": training})
    assert [opened["name"] for opened in process.opened] == [None, "train-2", "train-fold-b"]
    assert [opened["config"] for opened in process.opened] == [None, {"fold": 0}, {"fold": 1}]
    assert all("id" not in opened for opened in process.opened)
    monkeypatch.setenv("TRACKSIDE_RUN_ID", "theirs")
    auto.found({"loss": 1.0})
    assert (process.opened[-1]["name"], process.opened[-1]["id"]) == ("train-4", "theirs-4")


def test_a_run_of_the_user_s_is_followed_by_none(auto: AutoRun, process: Process) -> None:
    run = process.init("theirs")
    auto.found({"loss": 1.0})
    assert not auto.begin_next()
    assert run.is_open


def test_each_run_of_a_tracker_is_a_run_with_its_name_and_configuration(auto: AutoRun, process: Process) -> None:
    for fold in range(2):
        auto.begin_tracked()
        auto.describe(name=f"fold-{fold}", config={"fold": fold})
        for step in range(2):
            auto.tracked({"loss": 1.0}, step)
        auto.end_tracked()
    assert [(opened["name"], opened["config"]) for opened in process.opened] == [
        ("fold-0", {"fold": 0}),
        ("fold-1", {"fold": 1}),
    ]


def test_tags_of_a_search_and_of_a_tracker_s_run_are_those_of_their_runs_alone(auto: AutoRun, process: Process) -> None:
    auto.found({"loss": 1.0})
    for trial in range(2):
        auto.begin_next(f"trial-{trial}", {"lr": trial}, ("study",))
        auto.begin_tracked()  # the tracker's run of the trial, after that of the trial before
        auto.describe(tags=[f"tag-{trial}"])
        auto.tracked({"loss": 1.0}, trial)
        auto.end_tracked()
        auto.begin_next(config={})
    auto.found({"loss": 1.0})
    assert [(opened["name"], opened["tags"]) for opened in process.opened] == [
        (None, ()),
        ("train-trial-0", ("study", "tag-0")),
        ("train-trial-1", ("study", "tag-1")),
        ("train-4", ()),
    ]


def test_a_run_of_the_user_s_is_joined_and_retains_its_description(auto: AutoRun, process: Process) -> None:
    process.init("mine", config={"own": 1})
    auto.describe(name="other", config={"lr": 0.1}, tags=["b"])
    auto.found({"loss": 2.0})
    assert [one["name"] for one in process.opened] == ["mine"]
    assert process.run is not None
    hello = decode_body("hello", process.run.queue.session.hello(Clock(1, 1))[2])
    assert (hello.config, hello.tags) == ("", ())


def test_the_hello_names_the_keys_that_were_found_until_another_layer_has_them(auto: AutoRun, process: Process) -> None:
    def named() -> tuple[str, ...]:
        assert process.run is not None
        found: tuple[str, ...] = decode_body("hello", process.run.queue.session.hello(Clock(1, 1))[2]).about.auto
        return found

    auto.found({"loss": 2.0, "samples": 4})
    assert named() == ("loss", "samples")
    auto.tracked({"loss": 1.0}, 1)
    auto.found({"loss": 2.0, "samples": 4})
    auto.found_in_step({"loss/2": 2.0})
    assert named() == ("loss/2", "samples")


def test_what_a_framework_passes_on_is_left_out(auto: AutoRun, process: Process) -> None:
    with auto.muted():
        auto.tracked({"train/loss": 1.0}, 1)
        auto.describe(name="tracker's")
    assert process.opened == []
    auto.found({"loss": 1.0})
    assert process.opened[0]["name"] is None


def test_an_error_with_a_text_that_raises_leaves_a_hook_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class BadError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    monkeypatch.setattr(hooks, "failures", [])
    monkeypatch.setattr(hooks, "_run", None)
    hooks.report_failure("early", BadError())
    assert hooks.failures == [("early", "BadError: BadError")]


def test_a_failed_hook_is_reported_once_there_is_a_run(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[tuple[str, str]] = []
    auto = AutoRun(failures)
    monkeypatch.setattr(hooks, "failures", failures)
    monkeypatch.setattr(hooks, "_run", auto)
    hooks.report_failure("early", ValueError("odd\nlines"))
    assert (failures, process.run) == ([("early", "ValueError: odd")], None)
    hook = hooks.LibraryHook("here", lambda: 1 / 0)
    hook()
    hook()
    assert process.run is not None
    events = [row[1] for row in process.run.queue.session.rows if isinstance(row[1], TrainingEvent)]
    assert [(event.kind, event.fields) for event in events] == [
        (HOOK_FAILED, '{"hook": "here", "error": "ZeroDivisionError: division by zero"}'),
        (HOOK_FAILED, '{"hook": "early", "error": "ValueError: odd"}'),
    ]
    assert failures == []


def test_where_no_run_can_be_opened_nothing_is_tried_again(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    auto = AutoRun([])
    closed = Run(RowQueue(Session(Identity("id", "train")), None))
    tries = iter([closed])
    monkeypatch.setattr(auto_run, "init", lambda *_, **__: next(tries))
    for _ in range(3):
        assert auto.found({"loss": 1.0}) is None


def test_the_queue_stays_within_its_limit_while_nothing_is_sent(auto: AutoRun, process: Process) -> None:
    for _ in range(ROWS_WAITING + 20):
        auto.found({"loss": 0.5})
    assert process.run is not None
    assert (auto.step, len(process.run.queue.session.rows)) == (ROWS_WAITING + 20, ROWS_WAITING)


def test_a_forked_child_appends_nothing_to_its_parent_s_rows(auto: AutoRun, process: Process) -> None:
    auto.found({"loss": 1.0})
    auto.found({"loss": 1.0})
    parents = process.run
    assert parents is not None
    parents.queue.forked()
    auto.forked()
    before = len(parents.queue.session.rows)
    auto.found({"loss": 1.0})
    assert len(process.opened) == 2
    assert len(parents.queue.session.rows) == before
