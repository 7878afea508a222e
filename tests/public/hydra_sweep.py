# Jobs of Hydra's multirun, in one process: python hydra_sweep.py -m lr=0.1,0.2,0.3 width=2,4
from dataclasses import dataclass

import hydra
import torch
from hydra.core.config_store import ConfigStore
from torch import nn


@dataclass
class Config:
    lr: float = 0.1
    width: int = 2


ConfigStore.instance().store(name="config", node=Config)


@hydra.main(version_base=None, config_path=None, config_name="config")
def train(config):
    torch.manual_seed(0)
    model = nn.Linear(4, config.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    for _ in range(20):
        loss = (model(torch.randn(16, 4)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{config.lr} {config.width} loss {loss.item():.9g}")


train()
