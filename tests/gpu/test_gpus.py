"""GPUs that this process uses, as PyTorch reports them on a real one."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import trackside


def test_the_gpu_that_a_value_comes_from_is_told_by_the_uuid_that_nvidia_smi_shows(run: trackside.Run) -> None:
    run.push(loss=torch.ones((), device="cuda"))
    shown = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(run.queue.session.gpus) <= set(shown)
    assert run.queue.session.gpus
