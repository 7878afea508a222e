"""GPUs that this process uses, as PyTorch reports them on a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bench.gpu_report import nvidia_smi

if TYPE_CHECKING:
    import trackside


def test_the_gpu_that_a_value_comes_from_is_named_by_the_uuid_that_nvidia_smi_shows(run: trackside.Run) -> None:
    run.push(loss=torch.ones((), device="cuda"))
    assert set(run.queue.session.gpus) <= {row["uuid"] for row in nvidia_smi.query([]).rows}
    assert run.queue.session.gpus
