# In the manner of Ray's example of a linear model in PyTorch: two workers, each with its shard of sorted data, and DDP.
import argparse
import os

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class LinearDataset(Dataset):
    def __init__(self, a, b, size=1000):
        x = torch.arange(0, 10, 10 / size, dtype=torch.float32)
        self.x, self.y = x[:, None], (a * x + b)[:, None]

    def __getitem__(self, index):
        return self.x[index], self.y[index]

    def __len__(self):
        return len(self.x)


def train_epoch(dataloader, model, loss_fn, optimizer, log):
    for x, y in dataloader:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9g}", file=log)


def validate_epoch(dataloader, model, loss_fn):
    with torch.no_grad():
        return sum(loss_fn(model(x), y).item() for x, y in dataloader) / len(dataloader)


def train_func(config):
    train_loader = DataLoader(LinearDataset(2, 5), batch_size=config["batch_size"])
    val_loader = DataLoader(LinearDataset(2, 5, 100), batch_size=config["batch_size"])
    train_loader = train.torch.prepare_data_loader(train_loader)
    model = train.torch.prepare_model(nn.Linear(1, 1))
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    rank = train.get_context().get_world_rank()
    with open(os.path.join(config["folder"], f"rank{rank}.txt"), "w") as log:
        for _ in range(config["epochs"]):
            train_epoch(train_loader, model, loss_fn, optimizer, log)
            train.report({"loss": validate_epoch(val_loader, model, loss_fn)})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--folder", default=".")
    args = parser.parse_args()
    ray.init(num_cpus=args.num_workers, include_dashboard=False, object_store_memory=80 * 2**20)
    config = {"lr": 1e-2, "batch_size": 4, "epochs": args.epochs, "folder": args.folder}
    trainer = TorchTrainer(
        train_func,
        train_loop_config=config,
        scaling_config=train.ScalingConfig(num_workers=args.num_workers),
        run_config=train.RunConfig(name="linear", storage_path=args.folder),
    )
    print(trainer.fit().metrics)
