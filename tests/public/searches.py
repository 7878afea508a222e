# Twenty trials of Optuna, eight at two a time, and a grid search of scikit-learn over skorch, each keeping its models.
import json
import sys
import threading

import numpy
import optuna
import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetRegressor
from torch import nn

kept = []
meets = threading.Barrier(1)


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x)


def objective(trial):
    rate, width = trial.suggest_float("lr", 1e-3, 1e-1, log=True), trial.suggest_int("width", 4, 16)
    meets.wait()
    torch.manual_seed(0)
    model = Net(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    kept.append((model, optimizer))
    for step in range(8):
        loss = (model(torch.randn(16, 4)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trial.report(loss.item(), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss.item()


if sys.argv[1] == "optuna":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(study_name="tune", sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(objective, n_trials=20)
    meets = threading.Barrier(2)
    study.optimize(objective, n_trials=8, n_jobs=2)
    for trial in study.trials:
        losses = [*trial.intermediate_values.values()]
        print(json.dumps([trial.number, losses, trial.params, trial.value, trial.state.name]))
else:
    inputs = numpy.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    net = NeuralNetRegressor(Net, max_epochs=3, train_split=None, batch_size=32)
    grid = {"lr": [0.01, 0.05], "module__width": [2, 4]}
    GridSearchCV(net, grid, cv=3, scoring="r2").fit(inputs, inputs.sum(1, keepdims=True))
