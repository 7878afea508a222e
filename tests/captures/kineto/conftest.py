"""A socket for PyTorch's profiler in a short directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trackside.captures.kineto import socket_directory
from trackside_daemon.captures.kineto.profiler_socket import Pollers, ProfilerSocket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def pollers() -> Pollers:
    """The processes that ask."""
    return Pollers()


@pytest.fixture
def profiler(place: Path) -> Path:
    """The directory of the socket."""
    return socket_directory(place / "push.sock")


@pytest.fixture
def served(profiler: Path, pollers: Pollers) -> Iterator[ProfilerSocket]:
    """The socket, which is served."""
    made = ProfilerSocket(profiler, pollers)
    made.start()
    yield made
    made.stop()
