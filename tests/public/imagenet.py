# In the manner of the ImageNet example of pytorch/examples with --dummy: random pictures, two workers of the loader.
import argparse
import os
import shutil
import time

import torch
import torch.nn as nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

best_acc1 = 0


class FakeData(Dataset):
    def __init__(self, size, shape, classes):
        self.size, self.shape, self.classes = size, shape, classes

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.shape, generator=generator), index % self.classes


class AverageMeter:
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return f"{self.name} {self.val:{self.fmt[1:]}} ({self.avg:{self.fmt[1:]}})"


def accuracy(output, target, k):
    found = output.topk(k).indices == target[:, None]
    return 100 * found.any(dim=1).float().mean()


def train(train_loader, model, criterion, optimizer, epoch, device, args):
    batch_time, data_time = AverageMeter("Time", ":6.3f"), AverageMeter("Data", ":6.3f")
    losses, top1, top5 = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f"), AverageMeter("Acc@5", ":6.2f")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        data_time.update(time.time() - end)
        images, target = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(accuracy(output, target, 1).item(), images.size(0))
        top5.update(accuracy(output, target, 5).item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            meters = "\t".join(str(meter) for meter in (batch_time, data_time, losses, top1, top5))
            print(f"Epoch: [{epoch}][{i + 1}/{len(train_loader)}]\t{meters}")


def validate(val_loader, model, criterion, device, args):
    losses, top1 = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f")
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            images, target = images.to(device), target.to(device)
            output = model(images)
            losses.update(criterion(output, target).item(), images.size(0))
            top1.update(accuracy(output, target, 1).item(), images.size(0))
    print(f" * Acc@1 {top1.avg:.3f} Loss {losses.avg:.6f}")
    return top1.avg


def save_checkpoint(state, is_best, folder):
    path = os.path.join(folder, "checkpoint.pth.tar")
    torch.save(state, path)
    if is_best:
        shutil.copyfile(path, os.path.join(folder, "model_best.pth.tar"))


def main():
    global best_acc1
    parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
    parser.add_argument("--workers", "-j", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--start-epoch", type=int, default=0)
    parser.add_argument("--batch-size", "-b", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--print-freq", "-p", type=int, default=10)
    parser.add_argument("--size", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default=".")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers = (nn.Conv2d(3, 8, 5, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 7, 10))
    model = nn.Sequential(*layers).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    train_dataset, val_dataset = FakeData(args.size, (3, 32, 32), 10), FakeData(64, (3, 32, 32), 10)
    loading = {"batch_size": args.batch_size, "num_workers": args.workers}
    train_loader = DataLoader(train_dataset, shuffle=True, **loading)
    val_loader = DataLoader(val_dataset, shuffle=False, **loading)
    for epoch in range(args.start_epoch, args.epochs):
        train(train_loader, model, criterion, optimizer, epoch, device, args)
        acc1 = validate(val_loader, model, criterion, device, args)
        scheduler.step()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        state = {"epoch": epoch + 1, "state_dict": model.state_dict(), "best_acc1": best_acc1}
        save_checkpoint({**state, "optimizer": optimizer.state_dict()}, is_best, args.folder)


if __name__ == "__main__":
    main()
