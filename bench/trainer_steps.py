"""Time steps of the Transformers Trainer with and without a callback, in pairs of random order; print JSON.

    python bench/trainer_steps.py trackside ipc:///tmp/push.sock 300     pairs of steps, and as many null pairs
    python bench/trainer_steps.py wandb - 300

The callback is turned on and off between steps of one training, so that both arms see the same machine. It logs every tenth
step.

"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from bench.hooks import Calls, Switch, seen_seldom
from bench.pairs import Pairs, now
from trackside.integrations.method_patch import MethodPatch

WARM_UP = 600
CONTEXT, BATCH, LOGS = 64, 4, 10


class Trackside:
    """Our callback, which watches the model, with a switch."""

    def __init__(self, endpoint: str, calls: Calls) -> None:
        os.environ["TRACKSIDE_ENDPOINT"] = endpoint
        from trackside.integrations import trainer_hooks as trainer
        from trackside.integrations.transformers import TracksideCallback

        calls.time_watching()
        calls.time(TracksideCallback, "on_optimizer_step", "on_step_end", "on_log")
        setattr(trainer, "MethodPatch", lambda owner, name, way: MethodPatch(owner, name, calls.led(way)))  # noqa: B010
        self.callback = TracksideCallback(watch=True)
        self._run: Any = None
        self._led: list[tuple[dict[str, Any], str, Any]] = []
        self._switch: Switch | None = None

    def _begin(self, trainer: Any) -> None:
        owners = vars(trainer), vars(trainer.accelerator)
        self._led = [
            (owner, name, one) for owner in owners for name, one in owner.items() if isinstance(one, MethodPatch)
        ]
        self._switch, self._run = Switch(trainer.model, trainer.optimizer.optimizer), self.callback._run
        seen_seldom(self.callback._watcher)

    def turn(self, trainer: Any, *, on: bool) -> None:
        """Turn the callback on or off before the next step; off, methods and hooks are the training's own."""
        if self._switch is None:
            self._begin(trainer)
        assert self._switch is not None
        if self.callback._run is None:
            self._switch.on()
        self._switch.off()  # whichever comes, the caches hold what this touches
        for owner, name, led in self._led:
            owner.pop(name, None)
            if on:
                owner[name] = led
        self.callback._run = self._run if on else None
        if on:
            self._switch.on()


class Wandb:
    """The callback of wandb, offline, with a switch."""

    def __init__(self, *_: object) -> None:
        from transformers.integrations import WandbCallback

        self.callback = WandbCallback()
        self._wandb = self.callback._wandb

    def turn(self, _: Any, *, on: bool) -> None:
        """Before the next step."""
        self.callback._wandb = self._wandb if on else None


class Turns(TrainerCallback):  # type: ignore[misc]  # mypy does not look into Transformers
    """Turn the callback on and off, and time the steps in wall and CPU time of this thread.

    It runs after the other callbacks.

    """

    def __init__(self, tracker: Trackside | Wandb, arms: list[bool], calls: Calls) -> None:
        self._tracker, self._arms, self._calls = tracker, [*arms, False], calls
        self._begun, self._before = (0.0, 0.0), 0.0
        self.trainer: Any = None
        self.measured: list[tuple[float, float]] = []
        self.spent: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start timing before the first step."""
        self._turn()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Record a step after all other callbacks; what they log afterwards counts for the next step."""
        if len(self.measured) < len(self._arms) - 1:
            wall, cpu = now()
            self.measured.append((wall - self._begun[0], cpu - self._begun[1]))
            self.spent.append(self._calls.spent - self._before)
            self._turn()

    def _turn(self) -> None:
        self._tracker.turn(self.trainer, on=self._arms[len(self.measured)])
        self._begun, self._before = now(), self._calls.spent


class Noise(Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc]  # mypy does not look into PyTorch
    """A dataset of the same codes."""

    def __init__(self, length: int) -> None:
        self._length, self._codes = length, torch.arange(CONTEXT)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._codes, "labels": self._codes}


def main() -> None:
    """Measure what the command line names."""
    kind, endpoint, pairs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    calls, plan = Calls(), Pairs(pairs, WARM_UP)
    tracker = (Trackside if kind == "trackside" else Wandb)(endpoint, calls)
    turns = Turns(tracker, plan.arms, calls)
    train(tracker, turns, len(plan.arms))
    print(json.dumps(plan.figures(turns.measured, turns.spent)))


def train(tracker: Trackside | Wandb, turns: Turns, steps: int) -> None:
    """Train for *steps* of about 10 ms."""
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=CONTEXT, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=2, bos_token_id=0)
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir="out",
            run_name="steps",
            max_steps=steps,
            logging_steps=LOGS,
            per_device_train_batch_size=BATCH,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Noise(steps * BATCH),
        callbacks=[tracker.callback, turns],
    )
    turns.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    trainer.train()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
