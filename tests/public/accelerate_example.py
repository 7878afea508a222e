# In the manner of Accelerate's own complete_cv_example.py; instead of photographs it takes random ones.
import argparse
import os

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset


def training_function(config, args):
    dataloader_config = DataLoaderConfiguration()
    if args.with_tracking:
        accelerator = Accelerator(
            cpu=args.cpu,
            mixed_precision=args.mixed_precision,
            log_with="all",
            project_dir=args.project_dir,
            dataloader_config=dataloader_config,
        )
    else:
        accelerator = Accelerator(
            cpu=args.cpu, mixed_precision=args.mixed_precision, dataloader_config=dataloader_config
        )

    lr, num_epochs, seed, batch_size = config["lr"], config["num_epochs"], config["seed"], config["batch_size"]
    if args.with_tracking:
        run = os.path.split(__file__)[-1].split(".")[0]
        accelerator.init_trackers(run, config)

    torch.manual_seed(seed)
    images, labels = torch.rand(640, 3 * 16 * 16), torch.randint(10, (640,))
    train_dataloader = DataLoader(TensorDataset(images[:512], labels[:512]), shuffle=True, batch_size=batch_size)
    eval_dataloader = DataLoader(TensorDataset(images[512:], labels[512:]), batch_size=batch_size)
    model = torch.nn.Sequential(torch.nn.Linear(3 * 16 * 16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(params=model.parameters(), lr=lr / 25)
    lr_scheduler = OneCycleLR(optimizer=optimizer, max_lr=lr, epochs=num_epochs, steps_per_epoch=len(train_dataloader))
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )

    overall_step, starting_epoch = 0, 0
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
        starting_epoch = int(os.path.basename(args.resume_from_checkpoint).replace("epoch_", "")) + 1
        overall_step = starting_epoch * len(train_dataloader)

    for epoch in range(starting_epoch, num_epochs):
        model.train()
        total_loss = 0
        for x, y in train_dataloader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            overall_step += 1
        model.eval()
        accurate, num_elems = 0, 0
        for x, y in eval_dataloader:
            with torch.no_grad():
                predictions, references = accelerator.gather_for_metrics((model(x).argmax(dim=-1), y))
            num_elems += references.shape[0]
            accurate += (predictions == references).long().sum().item()
        eval_metric = accurate / num_elems
        accelerator.print(f"epoch {epoch}: {100 * eval_metric:.2f} {total_loss.item() / len(train_dataloader):.6f}")
        if args.with_tracking:
            accelerator.log(
                {"accuracy": 100 * eval_metric, "train_loss": total_loss.item() / len(train_dataloader), "epoch": epoch},
                step=overall_step,
            )
        if args.checkpointing_steps == "epoch":
            accelerator.save_state(os.path.join(args.output_dir, f"epoch_{epoch}"))

    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--mixed_precision", type=str, default=None, choices=["no", "fp16", "bf16"])
    parser.add_argument("--checkpointing_steps", type=str, default=None)
    parser.add_argument("--output_dir", type=str, default=".")
    parser.add_argument("--resume_from_checkpoint", type=str, default=None)
    parser.add_argument("--with_tracking", action="store_true")
    parser.add_argument("--project_dir", type=str, default="logs")
    args = parser.parse_args()
    training_function({"lr": 3e-2, "num_epochs": 3, "seed": 42, "batch_size": 64}, args)


if __name__ == "__main__":
    main()
