# Four trials of Optuna, each a fit of Lightning or a training of Transformers; it prints the losses of each.
import json

import lightning as L
import optuna
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

optuna.logging.set_verbosity(optuna.logging.ERROR)
batches = [torch.randn(4, generator=torch.Generator().manual_seed(number)) for number in range(32)]


class Line(L.LightningModule):
    def __init__(self, rate):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.rate = rate
        self.losses = []

    def training_step(self, batch, _):
        loss = self.layer(batch).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.rate)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return {"loss": self.layer(x).square().mean()}


class Losses(TrainerCallback):
    def __init__(self):
        self.losses = []

    def on_log(self, args, state, control, logs=None, **_):
        self.losses += [float(logs["loss"])] if "loss" in logs else []


quiet = {name: False for name in ("enable_progress_bar", "enable_checkpointing", "enable_model_summary", "logger")}
trainer = L.Trainer(max_epochs=0, accelerator="cpu", **quiet)  # of all trials


def objective(trial):
    rate = trial.suggest_float("rate", 0.01, 0.1)
    if trial.number % 2:
        kept = Line(rate)
        trainer.fit_loop.max_epochs += 2
        trainer.fit(kept, DataLoader(batches, 8))
    else:
        kept = Losses()
        settings = {"num_train_epochs": 2, "logging_steps": 1, "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
        arguments = TrainingArguments("out", learning_rate=rate, report_to=[], **settings)
        Trainer(Model(), arguments, train_dataset=[{"x": one} for one in batches], callbacks=[kept]).train()
    print(json.dumps([trial.number, kept.losses, trial.params]))
    return kept.losses[-1]


optuna.create_study(study_name="tune", sampler=optuna.samplers.RandomSampler(seed=1)).optimize(objective, n_trials=4)
