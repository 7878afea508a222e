# In the manner of timm's train.py: mixed precision, accumulated gradients, clipping, a learning rate per update, a CSV.
import argparse
import copy
import csv
import math
import os
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, first, count):
        self.first, self.count = first, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.first + index)
        target = index % 10
        return torch.randn(3, 16, 16, generator=generator) + 0.3 * math.sin(target), target


class ModelEma:
    def __init__(self, model, decay):
        self.module, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model):
        for ours, theirs in zip(self.module.parameters(), model.parameters()):
            ours.lerp_(theirs, 1 - self.decay)


def learning_rate(args, update, updates):
    if update < args.warmup_updates:
        return args.lr * (update + 1) / args.warmup_updates
    return args.lr * 0.5 * (1 + math.cos(math.pi * update / updates))


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, amp_autocast, model_ema):
    model.train()
    optimizer.zero_grad()
    updates_per_epoch = (len(loader) + args.grad_accum_steps - 1) // args.grad_accum_steps
    num_updates = epoch * updates_per_epoch
    update_sample_count, losses, total = 0, 0.0, 0
    data_start_time = time.time()
    for batch_idx, (input, target) in enumerate(loader):
        need_update = (batch_idx + 1) % args.grad_accum_steps == 0 or batch_idx + 1 == len(loader)
        with amp_autocast():
            loss = loss_fn(model(input), target) / args.grad_accum_steps
        loss.backward()
        losses, total = losses + loss.item() * args.grad_accum_steps * len(input), total + len(input)
        update_sample_count += len(input)
        if not need_update:
            continue
        nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        lr = learning_rate(args, num_updates, args.epochs * updates_per_epoch)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()
        num_updates += 1
        model_ema.update(model)
        if (num_updates - 1) % args.log_interval == 0:
            loss_now = loss.item() * args.grad_accum_steps
            rate = update_sample_count / (time.time() - data_start_time)
            print(
                f"Train: {epoch} [{num_updates:>4d}/{args.epochs * updates_per_epoch}]  "
                f"Loss: {loss_now:#.6f} ({losses / total:#.6f})  {rate:>7.2f}/s  LR: {lr:.3e}"
            )
        update_sample_count, data_start_time = 0, time.time()
    return {"loss": losses / total}


@torch.no_grad()
def validate(model, loader, loss_fn, amp_autocast):
    model.eval()
    losses, right = 0.0, 0
    for input, target in loader:
        with amp_autocast():
            output = model(input)
        losses += loss_fn(output.float(), target).item() * len(input)
        right += (output.argmax(dim=1) == target).sum().item()
    return {"loss": losses / len(loader.dataset), "top1": 100 * right / len(loader.dataset)}


def main():
    parser = argparse.ArgumentParser(description="Training on pictures")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--grad-accum-steps", type=int, default=2)
    parser.add_argument("--clip-grad", type=float, default=1.0)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--warmup-updates", type=int, default=0)
    parser.add_argument("--size", type=int, default=3200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--output", default=".")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = (nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.GELU(), nn.Conv2d(16, 16, 3, 2), nn.GELU())
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 9, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    model_ema = ModelEma(model, 0.99)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)

    def amp_autocast():
        return torch.amp.autocast(device_type=device, dtype=torch.bfloat16, enabled=args.amp)

    loader_train = DataLoader(Pictures(0, args.size), args.batch_size, shuffle=True, num_workers=args.workers)
    loader_eval = DataLoader(Pictures(10**6, 128), args.batch_size)
    with open(os.path.join(args.output, "summary.csv"), "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "train_loss", "eval_loss", "eval_top1"])
        for epoch in range(args.epochs):
            train_metrics = train_one_epoch(
                epoch, model, loader_train, optimizer, loss_fn, args, amp_autocast, model_ema
            )
            eval_metrics = validate(model_ema.module, loader_eval, nn.CrossEntropyLoss(), amp_autocast)
            writer.writerow([epoch, train_metrics["loss"], eval_metrics["loss"], eval_metrics["top1"]])
            torch.save(model.state_dict(), os.path.join(args.output, "last.pth.tar"))


if __name__ == "__main__":
    main()
