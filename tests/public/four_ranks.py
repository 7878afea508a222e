# In the manner of PyTorch's tutorials on DDP: ranks that train together, one or all of which are slowed down as `--slow` says.
import argparse
import time
from collections import deque

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--slow", default="", choices=["", "data", "before", "forward", "backward", "optimizer", "memory"])
parser.add_argument("--seconds", type=float, default=0.06)
parser.add_argument("--times", type=float, default=0, help="at least so many times the usual rest of a step, however busy the machine is")
parser.add_argument("--rank", type=int, default=-1, help="the slow rank; -1 for all of them")
parser.add_argument("--workers", type=int, default=0, help="of the data loader")
args = parser.parse_args()
rests, begun = deque([0.0], maxlen=9), time.monotonic()


def slow(part):
    global begun
    if part == args.slow and args.rank in {-1, dist.get_rank()}:
        rests.append(time.monotonic() - begun)
        time.sleep(max(args.seconds, args.times * sorted(rests)[len(rests) // 2]))
        begun = time.monotonic()


class Samples(Dataset):
    def __len__(self):
        return args.steps * 16

    def __getitem__(self, index):
        if index % 16 == 0:
            slow("data")
        return torch.randn(32), torch.randn(1)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        slow("backward")
        return grad


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        time.sleep(0.01)
        slow("forward")
        return Slow.apply(self.layers(x))


class PlainDescent(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        slow("optimizer")
        for group in self.param_groups:
            for one in group["params"]:
                one.sub_(one.grad, alpha=group["lr"])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(Network())
    optimizer = PlainDescent(model.parameters(), lr=0.01)
    kept = []
    for x, y in DataLoader(Samples(), batch_size=16, num_workers=args.workers):
        slow("before")
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.slow == "memory":
            kept.append(torch.ones(256, 1024))
            time.sleep(args.seconds)
    dist.barrier()
    print("done", flush=True)
    time.sleep(0.5)  # for gloo's threads: PyTorch 2.13 may abort or hang if their last collective is not freed yet
    dist.destroy_process_group()


main()
