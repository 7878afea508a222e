"""Tests that need a real GPU, and are skipped where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from client.conftest import nowhere, process, router, start_router

import trackside

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["nowhere", "process", "router", "start_router"]


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """A GPU without pending work, before and after the test."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    torch.cuda.synchronize()
    yield
    torch.cuda.synchronize()


@pytest.fixture
def run(gpu: None, nowhere: str) -> trackside.Run:
    """A run without a daemon."""
    return trackside.init(endpoint=nowhere)
