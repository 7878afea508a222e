"""Fixtures for tests of one client: endpoints, and a test daemon."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest
from client.router import Router
from client_process import client_process

import trackside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trackside.process_state import ProcessState


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch, spool: Path) -> Iterator[ProcessState]:
    """All that runs of a process share, made anew for each test; and an environment that leads nowhere."""
    for name in list(os.environ):
        if name.startswith(("TRACKSIDE_", "SLURM_")) and name not in {"TRACKSIDE_SPOOL", "TRACKSIDE_CODE"}:
            monkeypatch.delenv(name)
    with client_process() as fresh:
        yield fresh


@pytest.fixture
def nowhere(place: Path) -> str:
    """An endpoint where no daemon listens."""
    return f"ipc://{place}/nobody.sock"


@pytest.fixture
def run(nowhere: str) -> trackside.Run:
    """A run without a daemon."""
    return trackside.init(endpoint=nowhere)


@pytest.fixture
def quiet() -> Iterator[None]:
    """A log without the line on a missing daemon."""

    def is_kept(record: logging.LogRecord) -> bool:
        return "no daemon found" not in str(record.args)

    logger = logging.getLogger("trackside")
    logger.addFilter(is_kept)
    yield
    logger.removeFilter(is_kept)


@pytest.fixture
def start_router(place: Path) -> Iterator[Callable[[], Router]]:
    """A function that starts test daemons, one after the other at the same path."""
    started: list[Router] = []

    def start() -> Router:
        started.append(Router(f"ipc://{place}/push.sock"))
        return started[-1]

    yield start
    for router in started:
        router.close()


@pytest.fixture
def router(start_router: Callable[[], Router]) -> Router:
    """One test daemon."""
    return start_router()
