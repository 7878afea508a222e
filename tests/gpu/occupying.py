"""Work for the GPU that lasts as long as a test wants."""

from __future__ import annotations

import torch


def occupy(cycles: int) -> None:
    """Have the current stream wait for so many cycles of the GPU's clock; PyTorch has no public way to do so."""
    torch.cuda._sleep(cycles)
