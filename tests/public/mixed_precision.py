# In the manner of PyTorch's recipe for automatic mixed precision: a gradient scaler, and gradients of four batches a step.
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--iters-to-accumulate", type=int, default=4)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--out", default="model.pt")
args = parser.parse_args()

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
count = args.steps * args.iters_to_accumulate * 16
inputs = torch.randn(count, 32)
loader = DataLoader(TensorDataset(inputs, inputs @ torch.randn(32, 4)), batch_size=16)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler(device, init_scale=2.0**120)  # so large that the first steps overflow, and are skipped
loss_fn = nn.MSELoss()

for i, (input, target) in enumerate(loader):
    with torch.autocast(device_type=device, dtype=torch.bfloat16):
        output = model(input.to(device))
        loss = loss_fn(output.float(), target.to(device))
        loss = loss / args.iters_to_accumulate
    scaler.scale(loss).backward()
    if (i + 1) % args.iters_to_accumulate == 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(f"step {i // args.iters_to_accumulate} loss {loss.item() * args.iters_to_accumulate:.6f}")
torch.save(model.state_dict(), args.out)
