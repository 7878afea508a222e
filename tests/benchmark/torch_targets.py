"""Targets of the tests that need PyTorch."""

from __future__ import annotations

from torch import nn


def embedded() -> nn.Module:
    return nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))
