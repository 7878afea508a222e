"""A socket for PyTorch's profiler in a short directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trackside_daemon.captures.kineto.pollers import Pollers
from trackside_daemon.captures.kineto.profiler_socket import ProfilerSocket
from trackside_daemon.captures.kineto.socket_file import directory

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
    return directory(place / "push.sock")


@pytest.fixture
def served(profiler: Path, pollers: Pollers) -> Iterator[ProfilerSocket]:
    """The socket, which is served."""
    made = ProfilerSocket(profiler, pollers)
    made.start()
    yield made
    made.stop()
