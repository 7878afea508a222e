"""Checkpoints as loops save them by `torch.save`: each is an event of the run, and saving works as before."""

from __future__ import annotations

import io
import pickle
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from trackside import default_run
from trackside.auto import pytorch
from trackside.auto.hooks import failures, hooks
from trackside.auto.method_wrapping import replace_methods

if TYPE_CHECKING:
    from pathlib import Path


class Run:
    """In place of the process's run: the fields of each event."""

    def __init__(self) -> None:
        self.step = 0
        self.events: list[dict[str, Any]] = []
        self.queue: Any = SimpleNamespace(event=lambda _, fields: self.events.append(fields))

    def open(self) -> bool:
        return True

    def paths(self, folder: Path) -> list[str]:
        return [event["path"].removeprefix(f"{folder}/") for event in self.events]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The hook in this process, in a training that works in the test's directory."""
    made = Run()
    for owner in (torch, torch.serialization):
        monkeypatch.setattr(owner, "save", torch.save)
    monkeypatch.setattr(pytorch, "auto_run", lambda: made)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pytorch, "monotonic", lambda: 0.0)
    monkeypatch.setitem(sys.modules, pytorch.CLIENT, default_run)
    monkeypatch.setattr(pytorch, "watches", [SimpleNamespace(is_paused=False)])
    replace_methods("torch", [("save", "pytorch.save")])
    return made


def test_each_saved_path_is_a_checkpoint_with_its_size(run: Run, tmp_path: Path) -> None:
    state = {"weight": torch.arange(3.0)}
    for step in (5, 10):
        run.step = step
        torch.save(state, f"step-{step}.pt")
    torch.save(obj=state, f=tmp_path / "last.pt.tmp")  # renamed when it is complete
    assert run.paths(tmp_path) == ["step-5.pt", "step-10.pt", "last.pt"]
    assert run.events[0] == {
        "path": f"{tmp_path}/step-5.pt",
        "auto": True,
        "bytes": (tmp_path / "step-5.pt").stat().st_size,
    }
    assert torch.equal(torch.load("step-10.pt")["weight"], state["weight"])


def test_a_folder_is_reported_once_a_step_and_what_is_no_checkpoint_never(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        run.step = number
        (tmp_path / f"checkpoint_{number}").mkdir()
        for name in ("optimizer.bin", "pytorch_model.bin", "random_states_0.pkl"):
            torch.save({}, f"checkpoint_{number}/{name}")
    torch.save({}, io.BytesIO())
    torch.save({}, "training_args.bin")
    (tmp_path / ".cache").mkdir()
    torch.save({}, ".cache/x.pt")
    monkeypatch.chdir("/")
    torch.save({}, tmp_path / "results.pt")  # in a temporary directory, as pytest's are
    assert run.paths(tmp_path) == ["checkpoint_1", "checkpoint_2"]
    monkeypatch.chdir(tmp_path)
    for number in range(30):
        torch.save({}, f"prediction-{number}.pt")
    assert len(run.events) == 1 + pytorch.EACH_STEP
    run.step = 3
    with monkeypatch.context() as without:
        without.delitem(sys.modules, pytorch.CLIENT)  # nothing has trained
        torch.save({}, "early.pt")
    run.queue = None  # no run is open, and this opens none
    torch.save({}, "late.pt")
    assert len(run.events) == 1 + pytorch.EACH_STEP


def test_saving_raises_and_is_pickled_as_before_and_a_fault_is_reported_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trackside.auto.hooks.auto_run", lambda: SimpleNamespace(open=lambda: True))
    failures.clear()
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.save({}, "none/x.pt")
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save
    run.queue.event = lambda *_: 1 / 0
    for name in ("one.pt", "two.pt"):
        torch.save({"name": name}, name)
        assert torch.load(name) == {"name": name}
    assert failures == [("torch: save", "ZeroDivisionError: division by zero")]
    assert not hooks["torch: save"].is_on
    failures.clear()
    assert run.events == []
