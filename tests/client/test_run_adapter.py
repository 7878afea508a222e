"""Code that integrations share: the run that they join, the checkpoints that they record, and wrapped methods."""

from __future__ import annotations

import copy
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import trackside
from trackside.default_run import own_default
from trackside.integrations import run_adapter
from trackside.integrations.method_patch import MethodPatch
from trackside.integrations.run_adapter import AFTER_TRAINING, RunAdapter, save_checkpoint, size_of
from trackside.totals.phases import EVALS, PAUSES, SAVES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trackside.process_state import ProcessState


pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, nowhere: str, process: ProcessState) -> Iterator[None]:
    """A process without a daemon, and without the leftovers of other tests."""
    monkeypatch.setattr(run_adapter, "_failed", set())
    monkeypatch.setenv("TRACKSIDE_ENDPOINT", nowhere)
    monkeypatch.setenv("TRACKSIDE_FLUSH_TIMEOUT", "0")
    yield
    run_adapter._resting.clear()


class Owner:
    """An object with a method."""

    def add(self, one: int, *, other: int = 1) -> int:
        """Return a sum."""
        return one + other


def twice(method: Any, *given: int, **named: int) -> int:
    return 2 * int(method(*given, **named))


def test_a_training_after_another_ends_the_resting_run_of_that() -> None:
    first, second = RunAdapter("first", {}), RunAdapter("second", {})
    run = first.open()
    first.rest()
    assert run.is_open
    assert run.queue.session is not None
    assert second.open() is not run
    assert not run.is_open
    resumed = first.open()  # which has joined the second's
    assert resumed is second.run


def test_trainings_one_after_the_other_in_threads_are_runs_of_their_own() -> None:
    def train(name: str) -> trackside.Run:
        adapter = RunAdapter(name, {})
        run = adapter.begin()
        adapter.rest()
        return run

    with ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as another:  # both alive, as in a web server
        runs = [pool.submit(train, "served").result() for pool in (other, another)]
    assert [run.is_open for run in runs] == [False, True]


def test_trials_beside_each_other_leave_their_runs_alone() -> None:
    first, second = RunAdapter("first", {}), RunAdapter("second", {})
    with ThreadPoolExecutor(1) as beside, own_default():
        beside.submit(first.begin).result()
        beside.submit(first.rest).result()
        assert second.begin() is not first.run
        assert first.run is not None
        assert first.run.is_open


def test_an_adapter_that_rests_keeps_no_model_alive() -> None:
    adapter, model = RunAdapter(None, {}), Owner()
    adapter.model = model
    adapter.open()
    adapter.rest()
    assert pickle.loads(pickle.dumps(adapter)).model is None
    assert adapter.model is model
    del model
    assert adapter.model is None


def test_a_run_that_the_user_has_ended_is_resumed_by_the_next_training_and_not_by_a_push() -> None:
    own = RunAdapter("own", {})
    run = own.begin()
    trackside.finish()
    assert own.open() is run
    resumed = own.begin()
    assert (resumed.is_open, resumed.id) == (True, run.id)
    assert resumed is not run


def test_a_run_that_the_user_has_opened_is_joined_and_stays_open() -> None:
    run = trackside.init("own")
    joined = RunAdapter("other", {})
    assert joined.open() is run
    joined.end()
    assert run.is_open


def test_a_rest_is_an_evaluation_and_no_checkpoint() -> None:
    assert AFTER_TRAINING in EVALS & PAUSES
    assert AFTER_TRAINING not in SAVES


def test_a_failure_behind_a_checkpoint_does_not_reach_the_training(caplog: pytest.LogCaptureFixture) -> None:
    run = trackside.init("saves")

    def where(_: object) -> Any:
        raise KeyError("where")

    with caplog.at_level(logging.WARNING, logger="trackside"):
        assert save_checkpoint(run, lambda: "made", where) == "made"
        assert save_checkpoint(run, lambda: "made", lambda _: "a\0b") == "made"
    assert [one.getMessage() for one in caplog.records] == [
        "trackside: a checkpoint: KeyError: 'where'; training goes on without these values"
    ]
    with pytest.raises(OSError, match="full"):
        save_checkpoint(run, lambda: _raise(OSError("full")), where)


def _raise(error: Exception) -> None:
    raise error


def test_a_checkpoint_s_size_is_read_within_limits(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for number in range(3):
        (tmp_path / "shards" / str(number)).write_bytes(b"four")
    assert size_of(tmp_path) == 12
    assert size_of(tmp_path / "shards" / "0") == 4
    assert size_of(tmp_path / "none") is None
    assert (size_of(tmp_path, files=3), size_of(tmp_path, files=2), size_of(tmp_path, seconds=-1.0)) == (12, None, None)


def test_a_method_is_led_and_given_back_and_none_of_it_is_in_a_copy() -> None:
    owner = Owner()
    led = MethodPatch(owner, "add", twice)
    assert owner.add(1, other=2) == 6
    assert owner.add.__doc__ == "Return a sum."
    for copied in (pickle.loads(pickle.dumps(owner)), copy.deepcopy(owner)):
        assert copied.add(1, other=2) == 3
        assert getattr(copied.add, "__self__", None) is copied
    on_top = MethodPatch(owner, "add", twice)
    assert owner.add(1) == 8
    led.restore()  # on top of which there is another
    assert owner.add(1) == 8
    on_top.restore()
    assert owner.add(1) == 4
    led.restore()
    assert "add" not in vars(owner)
    with pytest.raises(AttributeError):
        MethodPatch(owner, "none", twice)


def resumed_run_id(state: object, **arguments: Any) -> str:
    """Return the id of the run that is opened after a checkpoint with this state was loaded."""
    adapter = RunAdapter("resumed", {"enabled": False, **arguments})
    adapter.resume(state)
    return adapter.open().id


def test_a_checkpoint_carries_the_id_of_its_run() -> None:
    before = RunAdapter("resumed", {"enabled": False})
    assert before.state() == {}
    run = before.open()
    assert resumed_run_id(before.state()) == run.id


@pytest.mark.parametrize(
    "run", ["", "x" * 129, "two\nlines", "\x1b[2J", "\udcff", "ünïcode", 7, ["a"], {"a": 1}, b"bytes", True]
)
def test_an_id_that_no_client_writes_begins_a_new_run(run: object, caplog: pytest.LogCaptureFixture) -> None:
    assert len(resumed_run_id({"run": run})) == 12
    [line] = caplog.messages
    assert line.isprintable()


@pytest.mark.parametrize("state", [None, {}, [], "run", 3, {"run": None}])
def test_a_checkpoint_without_an_id_begins_a_new_run(state: object, caplog: pytest.LogCaptureFixture) -> None:
    assert len(resumed_run_id(state)) == 12
    assert not caplog.messages


def test_an_id_that_the_user_sets_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resumed_run_id({"run": "checkpoint"}, id="argument") == "argument"
    monkeypatch.setenv("TRACKSIDE_RUN_ID", "variable")
    assert resumed_run_id({"run": "checkpoint"}) == "variable"
