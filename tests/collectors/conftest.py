"""A machine's mounts as a table of a test, and collectors of these file systems, whose servers can hang."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from collectors.blocking import BLOCKS, by_mount, wait_for_answers
from collectors.mountinfo import Table
from scripted_workers import Clock

from trackside_daemon.collectors.host.filesystem.filesystem import FilesystemCollector
from trackside_daemon.collectors.host.filesystem.remote import RemoteFilesystems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def statvfs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that the collector itself passes to statvfs, which returns the same sizes for all."""
    asked: list[str] = []
    room = SimpleNamespace(f_frsize=4096, f_blocks=1000, f_bfree=400, f_bavail=300, f_files=200, f_ffree=150)

    def answer(path: str) -> SimpleNamespace:
        asked.append(path)
        return room

    monkeypatch.setattr(os, "statvfs", answer)
    return asked


@pytest.fixture
def collect(table: Table, clock: Clock) -> Iterator[Callable[..., FilesystemCollector]]:
    """A function that makes collectors of paths, with the table of mounts of the machine or another one."""
    made: list[FilesystemCollector] = []

    def make(*paths: str, command: Sequence[str] = (), proc: Path = table.proc, root: Path = table.root) -> Any:
        made.append(FilesystemCollector(paths, proc, root, remote=RemoteFilesystems(command, clock), clock=clock))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def fifos(tmp_path: Path) -> Path:
    """A directory of fifos; a mount hangs if the directory has a fifo of its name."""
    directory = tmp_path / "fifos"
    directory.mkdir()
    return directory


@pytest.fixture
def far(table: Table, collect: Callable[..., FilesystemCollector], fifos: Path) -> FilesystemCollector:
    """A collector of the root and two remote mounts that answer, with `BLOCKS` as its worker."""
    table.mount("/nfs", "nfs4")
    table.mount("/lustre", "lustre")
    collector = collect("/", "/nfs", "/lustre", command=(sys.executable, "-c", BLOCKS, str(fifos)))
    wait_for_answers(collector, 30.0)
    assert {point: reported["device_error"] for point, reported in by_mount(collector).items()} == {
        "/": 0,
        "/nfs": 0,
        "/lustre": 0,
    }
    wait_for_answers(collector, 0.2)
    return collector
