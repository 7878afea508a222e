"""Short trainings of Trainer, one after the other in one process, each named after its subject."""

from __future__ import annotations

import copy
import gc
import json
import os
import subprocess
import sys
import time
import warnings
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import trackside
from trackside import default_run
from trackside.integrations import trainer_hooks
from trackside.integrations.transformers import TracksideCallback

LENGTH = 4
BATCH = 2


class Line(nn.Module):
    """A line through points, as a model of Transformers that has no configuration."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Linear(LENGTH, 1)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss for inputs of shape [batch, LENGTH] and labels of shape [batch]."""
        return {"loss": (self.slope(input_ids.float())[:, 0] - labels).square().mean()}


def trainer(name: str, folder: Path, *callbacks: Any, kind: type[Any] = Trainer, **arguments: Any) -> Any:
    """Return a Trainer that makes three steps."""
    chosen = {"max_steps": 3, "save_strategy": "no", "report_to": "none", **arguments}
    return kind(
        model=Line(),
        args=TrainingArguments(
            output_dir=str(folder / name),
            run_name=name,
            logging_steps=1,
            per_device_train_batch_size=BATCH,
            use_cpu=True,
            disable_tqdm=True,
            **chosen,
        ),
        train_dataset=[{"input_ids": torch.arange(LENGTH), "labels": torch.tensor(1.0)} for _ in range(BATCH * 8)],
        callbacks=list(callbacks),
    )


class Failing(Trainer):
    """A Trainer whose first step fails."""

    def training_step(self, *_: Any, **__: Any) -> Any:
        """Fail."""
        raise RuntimeError("out of luck")


class Rolling(Trainer):
    """A Trainer with the methods of TRL's GRPOTrainer: batches of a step are made from prompts, for two steps at once."""

    rollout: Any = None

    def _prepare_inputs(self, inputs: Any) -> Any:
        if self.state.global_step % 2 == 0:
            self.rollout = self._generate_and_score_completions(inputs)
        return self.rollout

    def _generate_and_score_completions(self, prompts: list[Any]) -> dict[str, torch.Tensor]:
        time.sleep(0.01)
        self._calculate_rewards()
        count = len(prompts)
        return {"prompt_ids": torch.ones(count, LENGTH, dtype=torch.long), "completion_ids": torch.ones(count, 3)}

    def _calculate_rewards(self) -> None:
        time.sleep(0.02)

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return model(inputs["prompt_ids"], torch.ones(len(inputs["prompt_ids"])))["loss"]


class RecordingCallback(TrainerCallback):
    """A callback that records the wrapped methods of a trainer, and a copy of one."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.found: dict[str, Any] = {}

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record the methods of the trainer that are wrapped, and the name of a copied one."""
        self.found["begun"] = led(self.trainer)
        self.found["copied"] = copy.copy(self.trainer.training_step).__func__.__name__


def led(trainer: Any) -> list[str]:
    """Return the methods that are set on the trainer instead of its class."""
    return sorted(
        name for name, value in vars(trainer).items() if callable(getattr(type(trainer), name, None)) and value
    )


def torn_then_resumed(folder: Path) -> int:
    """Train, cut off the last checkpoint, and resume from that which the command prints; return the step of it."""
    trainer("torn", folder, TracksideCallback(), save_strategy="steps", save_steps=2, max_steps=4).train()
    (weights,) = (folder / "torn/checkpoint-4").glob("model.*")
    os.truncate(weights, weights.stat().st_size - 100)
    asked = ("checkpoints", "latest", "torn", "--good", f"--storage.path={folder}/history")
    printed = ""
    while not printed:  # until the daemon has the events of the run
        command = [sys.executable, "-m", "trackside_daemon", *asked]
        printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    again = trainer("torn", folder, TracksideCallback(), max_steps=5)
    again.train(resume_from_checkpoint=printed)
    return int(printed.rpartition("-")[2])


def main(folder: Path) -> None:
    """Train; print the values that the process itself has recorded."""
    found: dict[str, Any] = {}
    by_name = trainer("report-to", folder, report_to="trackside")
    by_name.train()
    twice = trainer("twice", folder, TracksideCallback(), report_to="trackside")
    twice.train()
    found["accumulated"] = trainer(
        "accumulated",
        folder,
        TracksideCallback(watch={"every": 1, "activations": "slope"}),
        gradient_accumulation_steps=2,
    )
    found["accumulated"].train()
    found["accumulated"] = [one["loss"] for one in found["accumulated"].state.log_history if "loss" in one]

    rolling = trainer("rolling", folder, TracksideCallback(), kind=Rolling, max_steps=4)
    rolling.data_collator = list
    rolling.train()
    found["rolling"] = led(rolling)

    failing = trainer("failing", folder, TracksideCallback(), kind=Failing)
    try:
        failing.train()
    except RuntimeError as error:
        found["raised"] = str(error)

    looking, callback = RecordingCallback(), TracksideCallback()
    own = looking.trainer = trainer("own", folder, callback, looking, save_strategy="steps", save_steps=2)
    run = trackside.init("mine")
    own.train()
    found["opened"] = default_run.open_run() is run
    found["led"] = {**looking.found, "over": led(own)}
    own.evaluate(own.train_dataset)
    own.args.max_steps = 5
    own.train(resume_from_checkpoint=True)
    run.finish()
    gone, looking.trainer = weakref.ref(own), None
    del own
    gc.collect()
    found["freed"] = gone() is None and callback is not None

    trainer("carried", folder, TracksideCallback(), save_strategy="steps", save_steps=2).train()
    again = trainer("carried", folder, TracksideCallback(), max_steps=5)
    again.train(resume_from_checkpoint=True)

    found["resumed"] = torn_then_resumed(folder)
    trainer("epochs", folder, TracksideCallback(epoch_line=True, resource_line=6), max_steps=16).train()

    broken = trainer("broken", folder, TracksideCallback(), max_steps=2)
    with (
        patch.object(trainer_hooks.TrainerHooks, "_count_batch", None),
        patch.object(trackside.integrations.transformers, "_describe", None),
    ):
        broken.train()  # as if a later Transformers had changed
    found["broken"] = broken.state.global_step
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
