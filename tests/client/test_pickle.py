"""Copies and pickles of runs, phases and timed loaders, as launchers of other processes make them."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
from client.router import unsent_rows

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.process_state import ProcessState

ENDS = ("pickle", "cloudpickle", "deepcopy")


def copied(value: Any, way: str) -> Any:
    """Return *value* as another process gets it, or as a framework copies it."""
    if way == "deepcopy":
        return copy.deepcopy(value)
    return pickle.loads((pickle if way == "pickle" else cloudpickle).dumps(value))


class Model:
    """A module, dataset or actor that keeps a run."""

    def __init__(self, run: trackside.Run) -> None:
        self.run = run
        self.evaluation = run.phase("eval")
        self.batches = run.data([1, 2])


@pytest.fixture
def elsewhere(nowhere: str, monkeypatch: pytest.MonkeyPatch, process: ProcessState) -> Callable[[], None]:
    """A function that makes this the process that unpickles: it has no run yet."""
    monkeypatch.setenv("TRACKSIDE_ENDPOINT", nowhere)
    return lambda: setattr(process, "default", None)


@pytest.mark.parametrize("way", ["pickle", "cloudpickle"])
def test_a_run_elsewhere_is_the_default_run_there_and_opens_it_at_its_first_use(
    elsewhere: Callable[[], None], process: ProcessState, way: str
) -> None:
    model = Model(trackside.init("here"))
    elsewhere()
    there = copied(model, way)
    assert process.default is None
    assert isinstance(there.run, trackside.Run)
    assert there.run.queue.direct_rows is None  # which each push reads
    assert process.default is None
    there.run.push(step=1, loss=0.5)
    with there.evaluation:
        assert list(there.batches) == [1, 2]
    opened = process.default
    assert opened is not None
    assert (there.run.id, there.run.name, there.run.rank) == (opened.id, opened.name, opened.rank)
    assert opened.id != model.run.id
    there.run.finish()
    assert process.default is None
    assert set(unsent_rows(opened)[1].phases) == {"data", "eval", "other"}
    assert unsent_rows(opened)[0] == [(1, {"loss": 0.5})]
    assert model.run.is_open


def test_a_deep_copy_of_a_run_is_the_run(elsewhere: Callable[[], None]) -> None:
    first, _ = trackside.init("first"), trackside.init("second")
    model = copy.deepcopy(Model(first))
    copy.copy(model.run).push(step=3, loss=0.5)
    with model.evaluation:
        list(model.batches)
    rows, totals = unsent_rows(first)
    assert rows == [(3, {"loss": 0.5})]
    assert set(totals.phases) == {"data", "eval", "other"}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_run_that_does_nothing_does_nothing_elsewhere(
    elsewhere: Callable[[], None], process: ProcessState, protocol: int
) -> None:
    run = trackside.init("off", enabled=False)
    elsewhere()
    there = pickle.loads(pickle.dumps(run, protocol))
    there.push(loss=0.5)
    with there:
        assert (there.id, there.name, there.is_open) == (run.id, "off", False)
    assert process.default is None


@pytest.mark.parametrize("way", ENDS)
def test_functions_and_loaders_of_the_module_are_carried_without_a_run(
    elsewhere: Callable[[], None], process: ProcessState, way: str
) -> None:
    # As a script's own function: it is sent by its code, with all that it refers to.
    names: dict[str, Any] = {"__name__": "__main__", "trackside": trackside}
    exec("@trackside.phase('eval')\ndef evaluate(x):\n    return x + 1", names)
    functions = [names["evaluate"]] if way != "pickle" else []
    functions, phase, batches = copied((functions, trackside.phase("save"), trackside.data([1])), way)
    assert process.default is None
    assert [function(1) for function in functions] == [2] * len(functions)
    with phase:
        list(batches)
    run = process.default
    assert run is not None
    assert {"save", "data"} < set(unsent_rows(run)[1].phases)


@pytest.mark.parametrize("way", ENDS)
def test_a_copy_of_a_model_retains_its_watcher(nowhere: str, way: str) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    model.watcher = trackside.init(endpoint=nowhere).watch(model)
    there = copied(model, way)
    there(torch.ones(2)).sum().backward()
    there.watcher.layers_for(3)
    there.watcher.stop()  # none of these calls raises: that is what is tested
