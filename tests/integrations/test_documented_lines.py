"""The lines of the pages of frameworks as they are written, each in a training with its real library, alone and under --auto.

Here stands what a user has around the lines; the tests of the page's diffs, of "Any loop" and of scikit-learn are elsewhere.
"""

from __future__ import annotations

import re
from functools import partial
from importlib.util import find_spec
from textwrap import indent
from typing import TYPE_CHECKING, NamedTuple

import pytest
from diffs import section
from integrations.trainings import trained
from processes import eventually

if TYPE_CHECKING:
    from integrations.trainings import Trained

TORCH = """
import torch, trackside
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
X = torch.randn(32, 4)
dataset = TensorDataset(X, X.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loader = DataLoader(dataset, 8)
"""
LOOP = """
for step, (x, y) in enumerate(loader):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
"""
LIGHTNING = f"""{TORCH}
import functools, lightning
class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.log("train_loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
"""
FITS = "trainer.fit(Line(), loader)\n"
TRANSFORMERS = f"""{TORCH}
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x):
        return {{"loss": self.layer(x).square().mean()}}
model = Model()
arguments = TrainingArguments("out", report_to=[], use_cpu=True, max_steps=4, save_strategy="no")
"""
TRAINS = "trainer.train_dataset = [{'x': x} for x in X]\ntrainer.train()\n"
TABLE = """
import numpy as np
rng = np.random.default_rng(0)
X = rng.normal(size=(64, 4)).astype("float32")
y = (X.sum(1) > 0).astype("float32")
X_val, y_val, x, x_val = X[:16], y[:16], X, X[:16]
"""
RAY = f"""{TORCH}
train, evaluate = lambda *_: 0.5, lambda: 1.0
"""


class Lines(NamedTuple):
    """A block of the page.

    Attributes:
        heading: Of its section.
        libraries: What it imports.
        number: Of the block among those of its section.
        before: Code before it, or with a ``{}`` for it, which is indented as this is.
        after: Code after it.
        only: A line that is run, of several that are alternatives.
        replaced: Texts in place of others: an import's alternatives, what an ellipsis stands for.
        key: A key that the run has.
    """

    heading: str
    libraries: str
    number: int = 0
    before: str = TORCH
    after: str = ""
    only: str = ""
    replaced: tuple[tuple[str, str], ...] = ()
    key: str = "loss"

    def script(self) -> str:
        """Return the whole script."""
        block = re.findall(r"```(?:python|yaml)\n(.*?)```", section(self.heading), re.DOTALL)[self.number]
        for old, new in self.replaced:
            assert old in block
            block = block.replace(old, new)
        if self.only:
            kept = [line for line in block.splitlines() if "import " in line or self.only in line]
            assert len(kept) == 2
            block = "\n".join(kept)
        place = re.search(r"^( *)\{\}$", self.before, re.MULTILINE)
        if place is None:
            return f"{self.before}\n{block}\n{self.after}"
        return self.before.replace(place[0], indent(block, place[1])) + self.after


BOOSTERS = "XGBoost, LightGBM and CatBoost"
OTHERS = "Ultralytics, Ignite, skorch and MMEngine"
MOSAIC = "Composer, torchtune and torchtitan"
HYDRA = "import hydra, omegaconf\ncfg = omegaconf.OmegaConf.create('''\n{}\n''')\n"
MMENGINE = f"""{TORCH}
import functools
from mmengine.model import BaseModel
from mmengine.runner import Runner as Original
class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, y, mode):
        return {{"loss": (self.layer(x) - y).square().mean()}}
given = {{"model": Model(), "work_dir": "out", "train_dataloader": loader, "train_cfg": {{"by_epoch": True, "max_epochs": 1}}}}
Runner = functools.partial(Original, **given, optim_wrapper={{"optimizer": {{"type": "SGD", "lr": 0.1}}}})
"""
LOGGED = "{'loss': loss.item()}"

BLOCKS = {
    "jax": Lines(
        "JAX",
        "jax",
        before="import jax, trackside\ntrain_step = jax.jit(lambda state, batch: (state - 0.1, batch * state))\nstate = 1.0\n"
        "for step, batch in enumerate(range(5)):\n    {}\n",
    ),
    "torch": Lines(
        "PyTorch",
        "torch",
        before=f"{TORCH}from torch.nn.utils import clip_grad_norm_\nloader = trackside.data(loader)\n{LOOP}    {{}}\n    optimizer.step()\n",
        key="grad_norm",
    ),
    "transformers": Lines("Transformers", "torch transformers accelerate", before=TRANSFORMERS, after=TRAINS),
    "lightning": Lines(
        "Lightning",
        "torch lightning",
        before=f"{LIGHTNING}Trainer = functools.partial(lightning.Trainer, max_steps=4, accelerator='cpu', log_every_n_steps=1)\n",
        after=FITS,
        key="train_loss",
    ),
    "fabric": Lines(
        "Lightning Fabric",
        "torch lightning",
        before=f"{TORCH}from lightning.fabric import Fabric\nstep, loss, batch = 0, 0.5, X\n",
    ),
    "keras": Lines(
        "Keras 3",
        "keras torch",
        before=f"{TABLE}import keras\nmodel = keras.Sequential([keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\n",
        key="eval/loss",
    ),
    "xgboost": Lines(
        BOOSTERS,
        "xgboost",
        before=f"{TABLE}import xgboost as xgb\nsettings, data = {{'nthread': 1}}, xgb.DMatrix(X, y)\n",
        only="xgb.train",
        key="train/rmse",
    ),
    "lightgbm": Lines(
        BOOSTERS,
        "lightgbm",
        before=f"{TABLE}import lightgbm as lgb\nsettings, data = {{'num_threads': 1, 'verbose': -1}}, lgb.Dataset(X, y)\n"
        "valid = lgb.Dataset(X_val, y_val, reference=data)\n",
        only="lgb.train",
        replaced=((".xgboost", ".lightgbm"),),
        key="valid_0/l2",
    ),
    "catboost": Lines(
        BOOSTERS,
        "catboost",
        before=f"{TABLE}from catboost import CatBoostClassifier\n",
        only="CatBoost",
        replaced=((".xgboost", ".catboost"),),
        key="learn/Logloss",
    ),
    "fastai": Lines(
        "fastai",
        "fastai",
        before=f"{TORCH}from fastai.basics import DataLoader, DataLoaders, Learner\nfrom functools import partial\n"
        "loaders = DataLoaders(DataLoader(dataset, bs=8), DataLoader(dataset, bs=8))\nLearner = partial(Learner, loss_func=torch.nn.MSELoss())\n",
        after="learner.fit(1)\n",
    ),
    "ultralytics": Lines(
        OTHERS,
        "ultralytics",
        before="""
import os
from pathlib import Path
os.environ |= {"YOLO_CONFIG_DIR": os.getcwd(), "YOLO_VERBOSE": "false"}
import numpy as np
from PIL import Image
from ultralytics import YOLO
for part in ("images", "labels"):
    Path(part).mkdir()
for number in range(4):
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(f"images/{number}.png")
    Path(f"labels/{number}.txt").write_text("0 0.5 0.5 0.4 0.4\\n")
Path("data.yaml").write_text(f"path: {os.getcwd()}\\ntrain: images\\nval: images\\nnames: [square]\\n")
model = YOLO("yolov8n.yaml", verbose=False)
settings = {"amp": False, "plots": False, "verbose": False, "workers": 0, "device": "cpu", "project": os.getcwd()}
""",
        only="attach(model)",
        after="\nmodel.train(data='data.yaml', epochs=1, imgsz=32, batch=2, **settings)\n",
    ),
    "ignite": Lines(
        OTHERS,
        "ignite torch",
        before=f"{TORCH}from ignite.engine import create_supervised_evaluator, create_supervised_trainer\n"
        "from ignite.metrics import MeanSquaredError\n"
        "trainer = create_supervised_trainer(model, optimizer, torch.nn.MSELoss())\n"
        "evaluator = create_supervised_evaluator(model, {'mse': MeanSquaredError()})\n",
        only="attach(trainer",
        replaced=((".ultralytics", ".ignite"),),
        after="\ntrainer.run(loader)\nevaluator.run(loader)\n",
    ),
    "skorch": Lines(
        OTHERS,
        "skorch torch",
        before=f"{TORCH}import functools, skorch\nModel = torch.nn.Linear\n"
        "more = {'module__in_features': 4, 'module__out_features': 2, 'max_epochs': 1, 'criterion': torch.nn.CrossEntropyLoss}\n"
        "NeuralNetClassifier = functools.partial(skorch.NeuralNetClassifier, **more)\n",
        only="NeuralNetClassifier",
        replaced=((".ultralytics", ".skorch"), ("NeuralNetClassifier(", "net = NeuralNetClassifier(")),
        after="\nnet.fit(X.numpy(), (X.sum(1) > 0).long().numpy())\n",
    ),
    "mmengine": Lines(
        OTHERS,
        "mmengine torch",
        before=MMENGINE,
        only="Runner",
        replaced=((".ultralytics", ".mmengine"), ("Runner(…, ", "runner = Runner("), ("; in a conf", "  # in a conf")),
        after="\nrunner.train()\n",
    ),
    "composer": Lines(
        MOSAIC,
        "composer",
        before=f"{TORCH}import functools, composer\nfrom composer.models import ComposerClassifier\n"
        "loader = DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), 8)\nmodel = ComposerClassifier(torch.nn.Linear(4, 2), num_classes=2)\n"
        "more = {'model': model, 'train_dataloader': loader, 'max_duration': '1ep', 'device': 'cpu', 'progress_bar': False}\n"
        "Trainer = functools.partial(composer.Trainer, **more)\n",
        replaced=(("…, ", ""),),
        after="trainer.fit()\n",
        key="loss/train/total",
    ),
    "torchtune": Lines(
        MOSAIC,
        "torchtune torch omegaconf",
        1,
        before=f"{TORCH}import omegaconf\nfrom torchtune import config\ncfg = omegaconf.OmegaConf.create('''\n{{}}\n''')\n"
        f"logger = config.instantiate(cfg.metric_logger)\n{LOOP}    logger.log_dict({LOGGED}, step=step + 1)\nlogger.close()\n",
    ),
    "torchtitan": Lines(
        MOSAIC,
        "torchtitan torch",
        2,
        # The rest of MetricsProcessor needs a GPU.
        before=f"{TORCH}from trackside.integrations.torchtitan import TracksideMetrics\n{{}}\n"
        "logger = TracksideMetrics.__new__(TracksideMetrics)._build_metric_logger("
        "config=metrics, parallel_dims=None, dump_folder='.', pp_schedule='1F1B')\n"
        f"{LOOP}    logger.log({LOGGED}, step + 1)\nlogger.close()\n",
    ),
    "accelerate": Lines(
        "Accelerate",
        "accelerate torch",
        before=f"{TORCH}from accelerate import Accelerator\n",
        after=f"accelerator.init_trackers('script')\n{LOOP}    optimizer.step()\n    accelerator.log({LOGGED}, step=step)\naccelerator.end_training()\n",
    ),
    "notebook": Lines("Notebooks", "torch", before=f"{TORCH}train = lambda batch: 0.5\n"),
    "ray_train": Lines("Ray Train and Ray Tune", "torch", before=RAY, after="train_loop({'steps': 4})\n"),
    "ray_tune": Lines("Ray Train and Ray Tune", "torch", before=RAY, after="objective({})\n"),
    "hydra_lightning": Lines(
        "Hydra",
        "hydra torch lightning",
        before=f"{LIGHTNING}{HYDRA}cfg.run_name = 'script'\ncfg.trainer.accelerator = 'cpu'\n",
        after=f"trainer = hydra.utils.instantiate(cfg.trainer)\n{FITS}",
    ),
    "hydra_transformers": Lines(
        "Hydra",
        "hydra torch transformers",
        2,
        before=f"{TRANSFORMERS}{HYDRA}cfg.training.update(max_steps=4, use_cpu=True, save_strategy='no')\n"
        "import trackside.integrations.transformers\nfrom hydra.utils import instantiate\n",
        after=re.findall(r"```python\n(.*?)```", section("Hydra"), re.DOTALL)[1] + TRAINS,
    ),
}


def has_finished(found: Trained, name: str) -> bool:
    return bool(found.run(name)["state"] == "finished")


@pytest.mark.usefixtures("only_soak")
@pytest.mark.parametrize(
    "name", [name for name, block in BLOCKS.items() if all(find_spec(one) for one in block.libraries.split())]
)
def test_a_documented_block_pushes_the_same_alone_and_under_auto(name: str) -> None:
    changed = {"script.py": BLOCKS[name].script()}
    alone, auto = ("{folder}/script.py",), ("-m", "trackside.auto", "{folder}/script.py")
    found = []
    for command in (alone, auto):
        with trained(command, changed=changed, environ={"KERAS_BACKEND": "torch", "PYTHONWARNINGS": "ignore"}) as one:
            [run] = one.daemon.api("runs").json()["runs"]
            eventually(partial(has_finished, one, run["name"]))
            found.append(one.points(run["name"], BLOCKS[name].key))
            assert one.alarms(run["name"]) == {}
    assert len(found[0]) > 0
    assert list(found[0]) == list(found[1])
