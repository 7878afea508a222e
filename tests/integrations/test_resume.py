"""A training that `trackside run --restart` has started again loads the checkpoint of the restart."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trackside.integrations.run_adapter import resume_by


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "output" / "checkpoint-4"
    path.mkdir(parents=True)
    monkeypatch.setenv("TRACKSIDE_RESUME", str(path))
    return str(path)


def made(directory: Path) -> tuple[Any, list[Any]]:
    """Return a training whose `train` records the checkpoint that it gets."""
    got: list[Any] = []

    class Training:
        output = directory

        def train(self, other: int = 0, resume: Any = None) -> int:
            got.append(resume)
            return other

    resume_by(Training, "train", "resume", lambda training: [training.output])
    return Training(), got


def test_the_first_training_of_the_process_gets_it(checkpoint: str, tmp_path: Path) -> None:
    training, got = made(tmp_path / "output")
    assert [training.train(3), training.train(4, resume=True)] == [3, 4]
    assert got == [checkpoint, True]


@pytest.mark.parametrize("given", [True, "last"])
def test_the_last_checkpoint_is_that_of_the_restart(checkpoint: str, tmp_path: Path, given: Any) -> None:
    training, got = made(tmp_path / "output")
    training.train(0, given)
    assert got == [checkpoint]


@pytest.mark.usefixtures("checkpoint")
def test_a_checkpoint_that_the_training_names_stays(tmp_path: Path) -> None:
    training, got = made(tmp_path / "output")
    training.train(resume="mine")
    training.train(resume=False)
    assert got == ["mine", False]


@pytest.mark.usefixtures("checkpoint")
def test_that_of_another_training_is_left_alone(tmp_path: Path) -> None:
    training, got = made(tmp_path / "other")
    training.train()
    assert got == [None]


def test_without_a_restart_nothing_is_changed() -> None:
    class Training:
        def train(self) -> None: ...

    before = Training.train
    resume_by(Training, "train", "resume", lambda _: ["/"])
    assert Training.train is before


@pytest.mark.usefixtures("only_soak")
def test_the_frameworks_have_these_arguments_and_directories(tmp_path: Path) -> None:
    from accelerate import Accelerator
    from lightning.pytorch import Trainer as LightningTrainer
    from transformers import Trainer, TrainingArguments

    for method, parameter in (
        (Trainer.train, "resume_from_checkpoint"),
        (LightningTrainer.fit, "ckpt_path"),
        (Accelerator.load_state, "input_dir"),
    ):
        assert signature(method).parameters[parameter].default is None
    from trackside.integrations.lightning import _directories

    assert TrainingArguments(output_dir=str(tmp_path), report_to=[]).output_dir == str(tmp_path)
    assert Accelerator(project_dir=str(tmp_path)).project_dir == str(tmp_path)
    trainer = SimpleNamespace(default_root_dir=str(tmp_path), checkpoint_callbacks=[SimpleNamespace(dirpath="a")])
    assert _directories(trainer) == [str(tmp_path), "a"]
