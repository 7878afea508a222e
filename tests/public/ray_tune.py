# In the manner of Ray Tune's examples: a function that trains one trial, for each learning rate of a grid.
import argparse
import os

import ray
import torch
from ray import tune
from torch import nn


def objective(config):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    with open(os.path.join(config["folder"], f"lr{config['lr']}.txt"), "w") as log:
        for step in range(config["steps"]):
            x = torch.randn(32, 8)
            loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.9g}", file=log)
    return {"score": loss.item()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--folder", default=".")
    args = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20)
    grid = {"lr": tune.grid_search([0.003, 0.01, 0.03, 0.1]), "steps": args.steps, "folder": args.folder}
    results = tune.Tuner(objective, param_space=grid, run_config=tune.RunConfig(storage_path=args.folder)).fit()
    print(results.get_best_result("score", "min").config["lr"])
