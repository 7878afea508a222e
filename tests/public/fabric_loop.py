# In the manner of the examples of Lightning Fabric: an own loop, with the model, the optimizer and the loader set up by Fabric.
import argparse
import os

import torch
from lightning.fabric import Fabric, seed_everything
from lightning.fabric.loggers import CSVLogger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--size", type=int, default=3200)
    parser.add_argument("--folder", default=".")
    args = parser.parse_args()
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed", loggers=CSVLogger(args.folder))
    fabric.launch()
    seed_everything(1)
    features = torch.randn(args.size + 320, 20)
    labels = (features[:, :4].sum(dim=1) > 0).long()
    train_loader = DataLoader(TensorDataset(features[: args.size], labels[: args.size]), 32, shuffle=True)
    test_loader = DataLoader(TensorDataset(features[args.size :], labels[args.size :]), 32)
    train_loader, test_loader = fabric.setup_dataloaders(train_loader, test_loader)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    step = 0
    for epoch in range(args.epochs):
        model.train()
        for data, target in train_loader:
            loss = F.cross_entropy(model(data), target)
            optimizer.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            fabric.log_dict({"loss": loss.item(), "epoch": epoch, "samples": len(data)}, step=step)
            print(f"step {step}: {loss.item():.6f}")
            step += 1
        model.eval()
        with torch.no_grad():
            tested = sum(F.cross_entropy(model(data), target) for data, target in test_loader) / len(test_loader)
        fabric.log("eval/loss", tested.item(), step=step - 1)
        print(f"epoch {epoch}: {tested.item():.6f}")
        fabric.save(os.path.join(args.folder, "fabric.ckpt"), {"model": model, "optimizer": optimizer, "step": step})


if __name__ == "__main__":
    main()
