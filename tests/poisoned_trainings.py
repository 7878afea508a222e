"""Trainings with one poisoned sample, for the test that its alert names the sample. It prints what each of them did.

Run as ``python tests/poisoned_trainings.py CASE…``, where a case is as in `CASES`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

import trackside

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES, SIZE, STEPS = 960, 16, 110
POISONED = 777
RARE = 40  # one sample in so many is of the rare class
WAITS = 4.0  # seconds for which a run stays open, so that its ranks can be asked


def sample(index: int, poison: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the inputs, the class and the index of a sample."""
    generator = torch.Generator().manual_seed(index)
    target = 2 if index % RARE == 0 else index % 2
    inputs = torch.randn(8, generator=generator) * 0.3 + 3 * torch.eye(8)[target]
    if index == POISONED:
        if poison == "label":
            target = 1 - target
            inputs = inputs * 12
        else:
            inputs[3] = float("nan") if poison == "nan" else 1e6
    return inputs, torch.tensor(target), index


class Samples(Dataset[Any]):  # type: ignore[misc]
    """Samples by index, with files."""

    def __init__(self, poison: str) -> None:
        self.poison = poison
        self.files = [f"img/{index:04}.png" for index in range(SAMPLES)]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        inputs, target, index = sample(index, self.poison)
        return {"inputs": inputs, "labels": target, "number": index}


class Stream(IterableDataset[Any]):  # type: ignore[misc]
    """An iterable data set of these samples, of which each worker yields a part."""

    def __init__(self, poison: str) -> None:
        self.poison = poison

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        of, first = (1, 0) if info is None else (info.num_workers, info.id)
        for index in range(first, SAMPLES, of):
            inputs, target, _ = sample(index, self.poison)
            yield {"inputs": inputs, "labels": target, "number": index}


class Model(torch.nn.Module):  # type: ignore[misc]
    """A linear classifier that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(8, 3)
        torch.nn.init.zeros_(self.net.weight)

    def forward(
        self, inputs: torch.Tensor, labels: torch.Tensor, number: Any = None, **_: Any
    ) -> dict[str, torch.Tensor]:
        del number
        return {"loss": torch.nn.functional.cross_entropy(self.net(inputs), labels)}


def loader(case: dict[str, Any]) -> DataLoader[Any]:
    """Return the loader of a case."""
    poison, workers = case["poison"], case["workers"]
    with_workers = {"num_workers": workers, "persistent_workers": bool(workers) and case["loader"] == "persistent"}
    if case["loader"] == "iterable":
        return DataLoader(Stream(poison), SIZE, num_workers=workers)
    data = Samples(poison)
    if case["loader"] == "distributed":
        return DataLoader(data, SIZE, sampler=DistributedSampler(data, 2, POISONED % 2, shuffle=False), **with_workers)
    if case["loader"] == "batches":
        order = torch.randperm(SAMPLES).tolist()
        return DataLoader(data, batch_sampler=BatchSampler(order, SIZE, drop_last=True), **with_workers)
    return DataLoader(data, SIZE, shuffle=True, **with_workers)


class Seen:
    """The batches of a training, in their order."""

    def __init__(self) -> None:
        self.digest, self.step = hashlib.sha256(), 0
        self.steps: list[int] = []

    def add(self, batch: Any) -> None:
        """Add the batch of the next step."""
        for value in batch.values():
            self.digest.update(value.numpy().tobytes())
        if POISONED in batch["number"]:
            self.steps.append(self.step)
        self.step += 1


def plain(case: dict[str, Any], seen: Seen, model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Train in a loop, which is given to `trackside.data` or found by ``--auto``."""
    batches = loader(case)
    is_auto = case["loop"] == "auto"
    while seen.step < STEPS:
        for batch in batches if is_auto else trackside.data(batches):
            seen.add(batch)
            loss = step(model, optimizer, batch)
            if not is_auto:
                trackside.push(step=seen.step - 1, loss=loss)
            if seen.step >= STEPS:
                return


def step(
    model: Model, optimizer: torch.optim.Optimizer, batch: Any, backward: Any = torch.Tensor.backward
) -> torch.Tensor:
    """Train with a batch; as careful code does, without a step if the gradients are not finite."""
    loss = model(**batch)["loss"]
    optimizer.zero_grad()
    backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
    optimizer.step()
    time.sleep(0.004)
    return loss.detach()


def accelerate(case: dict[str, Any], seen: Seen, model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Train with Accelerate, whose loader fetches a batch ahead."""
    from accelerate import Accelerator

    from trackside.integrations.accelerate import TracksideTracker

    accelerator = Accelerator(cpu=True, log_with=TracksideTracker())
    accelerator.init_trackers(case["name"])
    prepared, optimizer, batches = accelerator.prepare(model, optimizer, loader(case))
    while seen.step < STEPS:
        for batch in batches:
            seen.add(batch)
            accelerator.log({"loss": step(prepared, optimizer, batch, accelerator.backward)}, step=seen.step - 1)
            if seen.step >= STEPS:
                break
    time.sleep(WAITS)
    accelerator.end_training()


def fabric(case: dict[str, Any], seen: Seen, model: Model, optimizer: torch.optim.Optimizer) -> None:
    """Train with a Fabric."""
    from lightning.fabric import Fabric

    from trackside.integrations.lightning import TracksideLogger

    runner = Fabric(accelerator="cpu", devices=1, loggers=TracksideLogger(case["name"]))
    prepared, optimizer = runner.setup(model, optimizer)
    batches = runner.setup_dataloaders(loader(case))
    while seen.step < STEPS:
        for batch in batches:
            seen.add(batch)
            runner.log("loss", step(prepared, optimizer, batch, runner.backward), step=seen.step - 1)
            if seen.step >= STEPS:
                break


def lightning(case: dict[str, Any], seen: Seen, model: Model, _: Any) -> None:
    """Fit with Lightning."""
    import lightning as pl

    from trackside.integrations.lightning import TracksideCallback

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            seen.add(batch)
            time.sleep(0.004)
            return self.model(**batch)["loss"]

        def on_before_optimizer_step(self, _: Any) -> None:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.nan_to_num_(0.0, 0.0, 0.0)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.02)

    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger"), False)
    trainer = pl.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=1,
        callbacks=[TracksideCallback(case["name"])],
        gradient_clip_val=1.0,
        **quiet,
    )
    trainer.fit(Module(), loader(case))


def transformers(case: dict[str, Any], seen: Seen, model: Model, _: Any) -> None:
    """Train with a Trainer of Transformers."""
    from transformers import Trainer, TrainingArguments

    from trackside.integrations.transformers import TracksideCallback

    class Counted(Model):
        def forward(
            self, inputs: torch.Tensor, labels: torch.Tensor, number: Any = None, **_: Any
        ) -> dict[str, torch.Tensor]:
            seen.add({"inputs": inputs, "labels": labels, "number": number})
            time.sleep(0.004)
            return super().forward(inputs, labels)

    arguments = TrainingArguments(
        output_dir=str(Path.cwd() / "output"),
        max_steps=STEPS,
        per_device_train_batch_size=SIZE,
        dataloader_num_workers=case["workers"],
        dataloader_persistent_workers=case["loader"] == "persistent" and case["workers"] > 0,
        learning_rate=0.02,
        optim="sgd",
        run_name=case["name"],
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        save_strategy="no",
        seed=case["seed"],
    )
    data = Stream(case["poison"]) if case["loader"] == "iterable" else Samples(case["poison"])
    Trainer(Counted(), arguments, train_dataset=data, callbacks=[TracksideCallback()]).train()


LOOPS = {
    "plain": plain,
    "auto": plain,
    "accelerate": accelerate,
    "fabric": fabric,
    "lightning": lightning,
    "transformers": transformers,
}


def train(case: dict[str, Any]) -> dict[str, Any]:
    """Train as a case says, and return the steps that had the sample, and digests of all batches and the random state."""
    torch.manual_seed(case["seed"])
    model, seen = Model(), Seen()
    if case["loop"] == "plain":
        trackside.init(case["name"])
    LOOPS[case["loop"]](case, seen, model, torch.optim.SGD(model.parameters(), 0.02))
    if "TRACKSIDE_DISABLED" not in os.environ:
        time.sleep(WAITS)
    if case["loop"] != "auto":
        trackside.finish()
    state = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    return {"steps": seen.steps, "batches": seen.digest.hexdigest(), "random": state}


if __name__ == "__main__":
    for text in sys.argv[1:]:
        chosen = json.loads(text)
        sys.stdout.write(json.dumps({**chosen, **train(chosen)}) + "\n")
        sys.stdout.flush()
