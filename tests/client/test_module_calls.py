"""The calls of a watched model's modules: recorded for some steps, without compiled parts, and no hook stays."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from client.test_observer import made, train
from client.torch_state import graphs, module_hooks

from trackside.captures.modules import NO_STEP, NOT_IMPORTED, UNWATCHED, modules
from trackside.wire import ModulesQuestion

if TYPE_CHECKING:
    from collections.abc import Callable

    import trackside
    from trackside.wire import ModuleCalls


def recorded(
    model: Any, run: Any, steps: int, seconds: float = 60.0, more: Callable[[], object] = lambda: None
) -> ModuleCalls:
    """Return the answer to a question that is asked while the model trains."""
    found: list[ModuleCalls] = []
    asking = threading.Thread(target=lambda: found.append(modules(ModulesQuestion(steps, seconds))))
    asking.start()
    while asking.is_alive():
        train(model, 1, run)
        more()
    return found[0]


def hooks(model: Any) -> int:
    """Return the number of hooks of inner modules, where those of a watched model are none."""
    return len(module_hooks(*(module for module in model.modules() if module is not model)))


def test_each_call_has_its_module_its_time_and_the_bytes_of_its_outputs(run: trackside.Run) -> None:
    model = made(1)
    run.watch(model)
    during: list[int] = []
    found = recorded(model, run, 2, more=lambda: during.append(hooks(model)))
    train(model, 1, run)
    assert (found.error, found.steps, hooks(model), max(during)) == ("", 2, 0, 2 * 7)
    by_name = {found.names[call.place]: call for call in found.calls}
    assert {"Sequential", "0", "0.attn", "0.attn.mixed", "0.mlp", "0.mlp.0", "0.mlp.1", "0.mlp.2"} == set(by_name)
    assert [
        sum(found.names[call.place] == "0.mlp.0" for call in found.calls if call.step == step) for step in (0, 1)
    ] == [1, 1]
    assert by_name["0.mlp.0"].output_bytes == 4 * 12 * 16 * 4
    assert by_name["0.mlp"].output_bytes == sum(by_name[f"0.mlp.{place}"].output_bytes for place in range(3))
    assert by_name["0.mlp"].seconds > by_name["0.mlp.1"].seconds > 0


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compiled_modules_are_left_out_and_not_compiled_anew(run: trackside.Run) -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    compiled = torch.compile(inner, backend="eager", fullgraph=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), compiled)
    run.watch(model)
    train(model, 1, run)
    compiled_before = graphs()
    found = recorded(model, run, 1)
    assert graphs() == compiled_before
    assert (found.error, found.compiled) == ("", sum(1 for _ in compiled.modules()))
    assert {name.split(".")[0] for name in found.names} == {"Sequential", "0"}


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_model_that_is_compiled_as_a_whole_reports_it(run: trackside.Run) -> None:
    model = torch.compile(made(1), backend="eager")
    run.watch(model)
    assert "compiled" in recorded(model, run, 1).error


def test_a_module_that_raises_keeps_its_error_and_the_rest_is_recorded(run: trackside.Run) -> None:
    class Whole(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.spare = made(1), torch.nn.Linear(3, 3)

        def forward(self, batch: torch.Tensor) -> Any:
            return self.inner(batch)

    model = Whole()

    def fail() -> None:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model.spare(torch.ones(2))

    run.watch(model)
    found = recorded(model, run, 2, more=fail)
    assert found.error == ""
    assert {"inner.0.mlp", "spare"} <= {found.names[call.place] for call in found.calls}


def test_without_a_watched_model_or_a_step_there_is_a_reason(
    run: trackside.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(1)
    run.watch(model)
    assert modules(ModulesQuestion(2, 0.01)).error == NO_STEP.format(0.01)
    train(model, 3, run)
    assert hooks(model) == 0
    run.finish()
    assert modules(ModulesQuestion(2, 0.01)).error == UNWATCHED
    for library in (None, SimpleNamespace(__spec__=SimpleNamespace(_initializing=True))):
        monkeypatch.setitem(sys.modules, "torch", library)
        assert modules(ModulesQuestion(2, 0.01)).error == NOT_IMPORTED
