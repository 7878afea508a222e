"""One run of Ray Train with two ranks, then two trials of Ray Tune; argument: a folder for results."""

from __future__ import annotations

import os
import sys
from typing import Any

import ray
from ray import train, tune
from ray.train.torch import TorchTrainer

import trackside


def train_loop(config: dict[str, Any]) -> None:
    """Train on each worker, with the lines of docs/integrations.md."""
    run = trackside.init(total_steps=config["steps"], config=config)
    for step in range(config["steps"]):
        run.push(step=step, loss=1 / (step + 1))
    run.finish()


def trial(config: dict[str, Any]) -> dict[str, float]:
    """Train one trial, and leave its end to the exit of the process."""
    trackside.init(config=config)
    for step in range(20):
        trackside.push(step=step, loss=config["x"] / (step + 1))
    return {"score": config["x"]}


if __name__ == "__main__":
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
    )
    storage = sys.argv[1]
    TorchTrainer(
        train_loop,
        train_loop_config={"steps": 20},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(name="linear", storage_path=storage),
    ).fit()
    grid = {"x": tune.grid_search([1.0, 2.0])}
    tune.Tuner(trial, param_space=grid, run_config=tune.RunConfig(storage_path=storage)).fit()
