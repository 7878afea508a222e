# In the manner of PyTorch's tutorial on multi-GPU training with torchrun: a Trainer class of one's own around DDP.
import argparse
import os
import time

import torch
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, train_data, optimizer, snapshot_path):
        self.rank = int(os.environ["RANK"])
        self.train_data, self.optimizer, self.snapshot_path = train_data, optimizer, snapshot_path
        self.model = DDP(model)

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(source), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self.train_data.sampler.set_epoch(epoch)
            losses = [self._run_batch(source, targets) for source, targets in self.train_data]
            print(f"[GPU{self.rank}] Epoch {epoch} | Steps: {len(self.train_data)} | Last: {losses[-1]:.6f}", flush=True)
            if self.rank == 0:
                torch.save(self.model.module.state_dict(), self.snapshot_path)


parser = argparse.ArgumentParser(description="simple distributed training job")
parser.add_argument("--total_epochs", type=int, default=3)
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--snapshot_path", default="snapshot.pt")
args = parser.parse_args()
init_process_group(backend="gloo")
torch.manual_seed(0)
dataset = TensorDataset(torch.rand(512, 20), torch.randint(4, (512,)))
loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=False, sampler=DistributedSampler(dataset))
model = torch.nn.Linear(20, 4)
trainer = Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=1e-2), args.snapshot_path)
trainer.train(args.total_epochs)
time.sleep(0.5)  # for gloo's threads: PyTorch 2.13 may abort or hang if their last collective is not freed yet
destroy_process_group()
