# Small loops as the quick starts of W&B, TensorBoard and MLflow show them, each with that tracker alone.
import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("tracker", choices=["wandb", "tensorboard", "tensorboardX", "mlflow", "trackio", "swanlab", "aim", "tensorflow", "clu"])
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--dir", default=".")
args = parser.parse_args()
config = {"epochs": args.epochs, "lr": args.lr}

if args.tracker == "wandb":
    import wandb

    run = wandb.init(project="quick-start", name="first-try", config=config, tags=["baseline"], mode="offline", dir=args.dir)
    log_batch = lambda values, step: wandb.log(values)
    log_epoch = lambda values, epoch: run.log({**values, "epoch": epoch})
    end = wandb.finish
elif args.tracker in ("tensorboard", "tensorboardX"):
    if args.tracker == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter
    else:
        from tensorboardX import SummaryWriter
    writer = SummaryWriter(os.path.join(args.dir, "tb"))

    def log_batch(values, step):
        for tag, value in values.items():
            writer.add_scalar(tag, value, step)

    log_epoch = log_batch
    end = writer.close
elif args.tracker == "mlflow":
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{args.dir}/mlflow.db")
    mlflow.set_experiment("quick-start")
    mlflow.start_run(run_name="first-try", tags={"kind": "baseline"})
    mlflow.log_params(config)
    log_batch = lambda values, step: mlflow.log_metrics(values, step=step)
    log_epoch = lambda values, epoch: [mlflow.log_metric(key, value, step=epoch) for key, value in values.items()]
    end = mlflow.end_run
elif args.tracker == "trackio":
    import trackio

    trackio.init(project="quick-start", name="first-try", config=config, embed=False)
    log_batch = lambda values, step: trackio.log(values)
    log_epoch = log_batch
    end = trackio.finish
elif args.tracker == "swanlab":
    import swanlab

    swanlab.init(project="quick-start", name="first-try", config=config, mode="offline", log_dir=args.dir)
    log_batch = lambda values, step: swanlab.log(values)
    log_epoch = lambda values, epoch: swanlab.log(values)
    end = swanlab.finish
elif args.tracker == "tensorflow":
    import tensorflow as tf

    places = {place: tf.summary.create_file_writer(os.path.join(args.dir, "logs", place)) for place in ("train", "test")}
    written = tf.function(lambda value: tf.summary.scalar("graph", value, step=0))

    def log_batch(values, step):
        with places["train"].as_default(step=step):
            [tf.summary.scalar(tag, value) for tag, value in values.items()]
            written(tf.constant(1.0))

    def log_epoch(values, epoch):
        for place in places.values():
            with place.as_default():
                [tf.summary.scalar(tag, tf.constant(value), step=epoch) for tag, value in values.items()]

    end = places["train"].close
elif args.tracker == "clu":
    from clu import metric_writers

    writer = metric_writers.create_default_writer(args.dir)
    writer.write_hparams(config)
    log_batch = lambda values, step: writer.write_scalars(step, values)
    log_epoch = lambda values, epoch: writer.write_scalars(epoch, values)
    end = writer.close
else:
    from aim import Run

    run = Run(repo=args.dir, experiment="quick-start", system_tracking_interval=None)
    run["hparams"] = config

    def log_batch(values, step):
        for name, value in values.items():
            run.track(value, name=name)

    log_epoch = lambda values, epoch: [run.track(value, name=name, epoch=epoch) for name, value in values.items()]
    end = run.close

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
step = 0
for epoch in range(args.epochs):
    total = 0.0
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        log_batch({"train/loss": loss.item()}, step)
        print(f"step {step} loss {loss.item():.6f}")
        step += 1
    log_epoch({"train/epoch_loss": total / len(loader)}, epoch)
end()
