"""The line of an epoch: its numbers follow from steps and waits, and both frameworks' callbacks write one for each epoch."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from processes import require

from trackside.integrations import epoch_line
from trackside.integrations.epoch_line import EpochLine

LINE = re.compile(
    r"^trackside: epoch (\S+): ([\d.]+) samples/s, (\d+) % of what the steps alone allow, load [\d.]+ ms "
    r"\(p95 [\d.]+ ms\), peak memory [\d.]+ GB of the host$",
    re.MULTILINE,
)
LIGHTNING = """
import torch, lightning
from trackside.integrations.lightning import TracksideCallback
class M(lightning.LightningModule):
    def __init__(self): super().__init__(); self.l = torch.nn.Linear(2, 1)
    def training_step(self, batch, _): return self.l(batch).pow(2).mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.1)
quiet = dict(enable_progress_bar=False, enable_model_summary=False, logger=False, enable_checkpointing=False)
data = torch.utils.data.DataLoader(torch.randn(8, 2), batch_size=4)
lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[TracksideCallback(%s)], **quiet).fit(M(), data)
"""
TRANSFORMERS = """
import torch
from transformers import Trainer, TrainingArguments
from trackside.integrations.transformers import TracksideCallback
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.l = torch.nn.Linear(2, 1)
    def forward(self, x=None, labels=None): return {"loss": self.l(x).pow(2).mean()}
given = dict(output_dir="out", num_train_epochs=2, per_device_train_batch_size=4, save_strategy="no", report_to=[])
args = TrainingArguments(use_cpu=True, disable_tqdm=True, **given)
data = [{"x": torch.randn(2), "labels": torch.zeros(1)} for _ in range(8)]
Trainer(M(), args, train_dataset=data, callbacks=[TracksideCallback(%s)]).train()
"""


def test_a_line_has_the_waits_before_the_steps_and_what_the_steps_alone_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(epoch_line, "perf_counter", lambda: now[0])
    line = EpochLine()
    for place in range(20):
        now[0] += 0.5 if place == 19 else 0.1  # a wait
        line.began()
        now[0] += 0.3  # a step
        line.stepped(8)
        now[0] += 2.0  # an evaluation
        line.pause()
    assert line.efficiency == pytest.approx(6.0 / 8.4)
    assert line.text(1).startswith(
        "trackside: epoch 1: 19.0 samples/s, 71 % of what the steps alone allow, load 100.0 ms (p95 500.0 ms), peak memory "
    )
    line.begin()
    assert line.efficiency is None


def test_many_waits_are_thinned() -> None:
    line = EpochLine()
    for _ in range(100_000):
        line.began()
    assert len(line._waits) < epoch_line.MOST


@pytest.mark.parametrize(("library", "script"), [("lightning", LIGHTNING), ("transformers", TRANSFORMERS)])
def test_a_callback_writes_a_line_for_each_epoch_if_it_is_wanted(
    library: str, script: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    require(library)
    found = []
    for option in ("epoch_line=True", ""):
        place = tmp_path_factory.mktemp("run")
        away = {"TRACKSIDE_ENDPOINT": f"ipc://{place}/none", "TRACKSIDE_SPOOL": f"{place}/spool"}
        done = subprocess.run(
            [sys.executable, "-c", script % option],
            cwd=place,
            env={"PATH": "/usr/bin:/bin", "TRACKSIDE_FLUSH_TIMEOUT": "0", "HF_HUB_OFFLINE": "1", **away},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(LINE.findall(done.stderr))
    assert [epoch for epoch, _, _ in found[0]] == (["0", "1"] if library == "lightning" else ["1.0", "2.0"])
    assert found[1] == []
