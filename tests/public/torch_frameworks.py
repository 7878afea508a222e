# A training of each of the frameworks that run a loop of PyTorch; each prints its own log as JSON.
import gc
import json
import logging
import pickle
import sys
import tempfile
import weakref

import torch
from torch.utils.data import DataLoader, TensorDataset

kind, ours = sys.argv[1], []
if "line" in sys.argv[2:]:
    module = __import__(f"trackside.integrations.{kind}", fromlist=["TracksideCallback"])
    names = [name for name in ("TracksideCallback", "TracksideLogger") if hasattr(module, name)]
    ours = [getattr(module, names[0])(kind)] if kind != "torchtitan" else [module.TracksideMetrics]
torch.manual_seed(0)
X = torch.randn(100, 4)
y = (X.sum(1) > 0).long()
train, valid = TensorDataset(X[:72], y[:72]), TensorDataset(X[72:], y[72:])
loss_of = torch.nn.CrossEntropyLoss()
losses = []

if kind == "ignite":
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Accuracy, Loss

    for rate in (0.1, 0.2) if not ours else (0.1,):
        losses, scores = [], {"eval/accuracy": [], "eval/nll": [], "train/nll": []}
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        trainer = create_supervised_trainer(model, optimizer, loss_of)
        evaluator = create_supervised_evaluator(model, metrics={"accuracy": Accuracy(), "nll": Loss(loss_of)})

        @trainer.on(Events.ITERATION_COMPLETED)
        def keep(engine):
            losses.append(engine.state.output)

        @trainer.on(Events.EPOCH_COMPLETED)
        def evaluate(engine):
            probe = torch.nn.Linear(4, 2)  # what trains within a training is no run
            create_supervised_trainer(probe, torch.optim.SGD(probe.parameters()), loss_of).run(DataLoader(train, 24))
            evaluator.run(DataLoader(train, 16))
            scores["train/nll"].append(evaluator.state.metrics["nll"])
            evaluator.run(DataLoader(TensorDataset(X[72:], y[72:]), 16))  # made anew
            for key in ("accuracy", "nll"):
                scores[f"eval/{key}"].append(evaluator.state.metrics[key])

        for one in ours:
            one.attach(trainer, optimizer, eval=evaluator)
        trainer.run(DataLoader(train, 16), max_epochs=3)
        print(json.dumps({"loss": losses, "samples": [16, 16, 16, 16, 8] * 3, "learning_rate": [rate] * 15, **scores}))
    trained = weakref.ref(model)
    del model, optimizer, trainer, evaluator, keep, evaluate
    gc.collect()
    print("kept in memory:", trained() is not None)
elif kind == "skorch":
    from skorch import NeuralNetClassifier
    from skorch.callbacks import EarlyStopping

    for rate in (0.1, 10.0) if not ours else (0.1,):
        stop = EarlyStopping(patience=3)
        net = NeuralNetClassifier(torch.nn.Linear, module__in_features=4, module__out_features=2)
        net.set_params(criterion=loss_of.__class__, lr=rate, batch_size=16, max_epochs=9, verbose=0)
        net.set_params(iterator_train__shuffle=True, callbacks=[stop, *ours]).fit(X.numpy(), y.numpy())
        net.partial_fit(X.numpy(), y.numpy())
        rows = [batch for row in net.history for batch in row["batches"] if "train_loss" in batch]
        scores = {f"eval/{key}": [row[f"valid_{key}"] for row in net.history] for key in ("acc", "loss")}
        print(json.dumps({"loss": [row["train_loss"] for row in rows], "learning_rate": [rate] * len(rows), **scores}))
    trained = weakref.ref(net.module_)
    pickle.dumps(net)  # as scikit-learn does for other processes
    del net
    gc.collect()
    print("kept in memory:", trained() is not None)
elif kind == "mmengine":
    import os

    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # which a resume of MMEngine needs since PyTorch 2.6
    from mmengine.evaluator import BaseMetric
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    class Model(BaseModel):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(4, 2)

        def forward(self, x, y, mode):
            out = self.line(x)
            return {"loss": loss_of(out, y), "loss_twice": loss_of(out, y) * 2} if mode == "loss" else (out, y)

    class Accuracy(BaseMetric):
        default_prefix = "top"

        def process(self, data_batch, data_samples):
            out, y = data_samples
            self.results.append(((out.argmax(1) == y).sum().item(), len(y)))

        def compute_metrics(self, results):
            return {"accuracy": sum(right for right, _ in results) / sum(count for _, count in results)}

    def runner_of(epochs, **more):
        return Runner(
            **{"model": Model(), "work_dir": folder, "log_level": logging.ERROR, "custom_hooks": ours},
            **{"train_dataloader": DataLoader(train, 16), "val_dataloader": DataLoader(valid, 16)},
            **{"train_cfg": {"by_epoch": True, "max_epochs": epochs}, "val_cfg": {}, "val_evaluator": [Accuracy()]},
            optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}},
            param_scheduler={"type": "LinearLR", "by_epoch": False, "begin": 0, "end": 9},
            **more,
        )

    ours = [{"type": "TracksideCallback", "name": kind}] if ours else []  # as in a configuration
    with tempfile.TemporaryDirectory() as folder:
        runners = [runner_of(3)]
        runners[0].train()
        if ours:
            runners.append(runner_of(4, resume=True, experiment_name="resumed"))
            runners[1].train()
    logs = [{key: [float(x) for x in kept._log_history] for key, kept in one.message_hub.log_scalars.items()} for one in runners]
    log, scores = logs[-1], logs[0]["val/top/accuracy"]  # a checkpoint lacks the score of its epoch
    print(json.dumps({key: log[f"train/{key}"] for key in ("loss", "loss_twice")}))
    print(json.dumps({"learning_rate": log["train/lr"], "eval/top/accuracy": scores + log["val/top/accuracy"][-1:] * bool(ours)}))
elif kind == "composer":
    from composer import Trainer
    from composer.loggers import InMemoryLogger
    from composer.models import ComposerClassifier

    log = InMemoryLogger()
    trainer = Trainer(
        model=ComposerClassifier(torch.nn.Linear(4, 2), num_classes=2),
        **{"train_dataloader": DataLoader(train, 12), "eval_dataloader": DataLoader(valid, 14), "device": "cpu"},
        **{"max_duration": "3ep", "loggers": [log, *ours], "progress_bar": False},
    )
    trainer.fit()
    for key in ("loss/train/total", "metrics/eval/MulticlassAccuracy"):
        print(json.dumps({key: [float(value) for value in log.get_timeseries(key)[key]]}))
elif kind in ("torchtune", "torchtitan"):
    if kind == "torchtitan":
        from torchtitan.components.metrics import MetricsProcessor

        # Its __init__ needs a GPU, and what follows is all of it that logs; neither TensorBoard nor W&B is on.
        processor = (ours or [MetricsProcessor])[0]
        settings = processor.Config(**({"run_name": kind} if ours else {}))
        given = {"config": settings, "parallel_dims": None, "dump_folder": ".", "pp_schedule": "1F1B"}
        logger = processor.__new__(processor)._build_metric_logger(**given)
        log = lambda values, step: logger.log(values, step)
    else:
        from omegaconf import OmegaConf
        from torchtune import config

        settings = {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": ".", "filename": "log.txt"}
        if ours:
            settings |= {"_component_": "trackside.integrations.torchtune.TracksideLogger", "name": kind}
            del settings["filename"]
        recipe = OmegaConf.create({"metric_logger": settings, "output_dir": ".", "lr": 0.1})
        logger = config.instantiate(recipe.metric_logger)
        logger.log_config(recipe)
        log = lambda values, step: logger.log_dict(values, step=step)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (inputs, targets) in enumerate(DataLoader(train, 12), 1):
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        log({"own_loss": loss.item(), "lr": 0.1}, step)
    logger.close()
    print(json.dumps({"own_loss": losses}))
else:
    import os
    from pathlib import Path

    import numpy as np
    from PIL import Image

    folder = Path(tempfile.mkdtemp(dir="."))
    os.environ |= {"YOLO_CONFIG_DIR": str(folder), "YOLO_VERBOSE": "false"}
    from ultralytics import YOLO

    rng = np.random.default_rng(0)
    for place, count in (("train", 10), ("val", 4)):
        for part in ("images", "labels"):
            (folder / part / place).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / place / f"{number}.png")
            (folder / "labels" / place / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    (folder / "data.yaml").write_text(f"path: {folder.resolve()}\ntrain: images/train\nval: images/val\nnames: [square]\n")
    model = YOLO("yolov8n.yaml", verbose=False)
    for one in ours:
        one.attach(model)
    parts = {"box_loss": [], "cls_loss": []}

    def keep(trainer):
        losses.append(trainer.loss.item())
        for key, values in parts.items():
            values.append(float(trainer.loss_items[key]))

    scores = {"eval/box_loss": [], "eval/mAP50(B)": []}

    def keep_scores(trainer):
        for key, values in scores.items():
            values += [trainer.metrics.get(f"{place}/{key[5:]}") for place in ("val", "metrics")]

    model.add_callback("on_train_batch_end", keep)
    model.add_callback("on_fit_epoch_end", keep_scores)
    settings = {"amp": False, "plots": False, "verbose": False, "workers": 0, "device": "cpu", "warmup_epochs": 0}
    model.train(data=str(folder / "data.yaml"), epochs=2, imgsz=32, batch=4, project=str(folder.resolve()), **settings)
    print(json.dumps({"loss": losses, "samples": [4, 4, 2] * 2, **parts}))
    print(json.dumps({key: [x for x in found if x is not None][:2] for key, found in scores.items()}))
